"""Reading a robot's model from MJCF or URDF, with or without meshes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np

from simtrain.errors import ConfigError, did_you_mean
from simtrain.files import LFS_POINTER, read_in_child_first
from simtrain.robots.shapes import inertia_sizes, surface

_SLIDE, _HINGE = mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE
_BALL = mujoco.mjtJoint.mjJNT_BALL
_FAR = 50.0
"""A size of a part, or a distance from its parent, that no robot has, m."""
_POINT = 0.005
"""Radius of a ball that has none, m."""
_UNKNOWN = 0.016
"""Radius of a body of unknown size, m."""
_NOTHING = 0.01
"""Mass of less than any robot, kg."""
_SUFFIXES = (".obj", ".stl", ".msh")
_LARGEST_MESH, _MOST_FACES = 200 * 10**6, 200_000  # the latter in an STL file, as MuJoCo's own
_MOST_BODIES, _MOST_DOFS, _MOST_FILES = 1000, 300, 100_000
_FORMER = {"apirate", "convexhull", "mpr_iterations", "mpr_tolerance", "sensornoise"}
"""Attributes of MJCF that were removed from it, and on which nothing here depends."""
_FOREIGN = rf"repeated element: 'material'|unrecognized attribute: '({'|'.join(sorted(_FORMER))})'"
_SHAPE = r'<(box|cylinder|sphere|capsule)\b|<mesh\b[^>]*filename="[^"]+"'
_ROUNDED = 1.01  # of a moment of inertia that is the sum of the others
_UNUSABLE = r"[^\w./:-]"  # characters of names, in Python and in patterns
_LARGEST_NUMBER = 1e10  # as MuJoCo's own for positions and speeds
_NUMBERS = (
    *("body_pos", "body_quat", "body_ipos", "body_mass", "body_inertia", "jnt_pos", "jnt_axis"),
    *("geom_pos", "geom_quat", "geom_size", "actuator_gear", "actuator_gainprm"),
    *("jnt_range", "jnt_actfrcrange", "actuator_ctrlrange", "actuator_forcerange"),
)


@dataclass
class Source:
    """A model that was read."""

    spec: mujoco.MjSpec
    """The robot alone: without ground, lights, other objects and missing meshes."""
    base: str
    """The root of the tree of bodies."""
    notes: list[str]
    """Sentences about omitted and changed parts of the model."""


def read(path: str | Path, *, base: str | None = None) -> Source:
    """Read MJCF or URDF; `base` names the root body of one of several robots.

    Links that are fixed to others stay separate bodies, and inertias are not changed. Meshes are
    searched in the place that the file gives and, by name, in the folders around it; missing ones
    are left out. Raises ConfigError for a file that cannot be read.
    """
    path = Path(path)
    return read_in_child_first(path, partial(_read, path, base))


def load(path: Path) -> mujoco.MjModel:
    """Compile MJCF without changes. Raises ConfigError for a file that cannot be read."""
    compile_file = refused(f"the model {path} cannot be read")(mujoco.MjModel.from_xml_path)
    return read_in_child_first(path, partial(compile_file, str(path)))


def _read(path: Path, base: str | None) -> Source:
    with refused(f"the model {path} cannot be read"):
        spec = _spec(path)
        spec.compiler.fusestatic = spec.compiler.discardvisual = False
        for number, body in enumerate(spec.bodies[1:], start=1):
            body.name = body.name or f"body{number}"
            for place, joint in enumerate(body.joints):
                joint.name = joint.name or f"{body.name}_joint{place or ''}"
        source = Source(spec, _root(spec, base), [])
        _leave_surroundings(source)
        _free_root(source)
        _find_files(source, path)
        _mend_points(source)
        _mend_inertias(source, is_urdf=path.suffix.lower() == ".urdf")
        model = _compile(source)
        _check_size(model, path)
        _mend_large_inertias(source, model)
        named = set(re.findall(r' material="([^"]+)"', spec.to_xml()))  # by defaults, too
        for name in sorted(named - {material.name for material in spec.materials}):
            spec.add_material(name=name)
        _mend_names(source)
        source.spec.nkey = 0  # a saved number of keyframes, which would be more than there are
    return source


def _spec(path: Path) -> mujoco.MjSpec:
    """The model in a file, without parts for other simulators and older versions of MuJoCo only."""
    try:
        if path.suffix in (".xml", ".mjb", ".zip"):
            return mujoco.MjSpec.from_file(str(path))
        return mujoco.MjSpec.from_string(_with_visuals(path))  # URDF often has another ending
    except ValueError as error:
        if not re.search(_FOREIGN, str(error)):
            raise
        root = ElementTree.fromstring(_with_visuals(path))
    for visual in root.iter("visual"):
        for material in visual.findall("material")[1:]:
            visual.remove(material)
    for element in root.iter():
        for name in _FORMER & element.attrib.keys():
            del element.attrib[name]
    return mujoco.MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"))


def _with_visuals(path: Path) -> str:
    """The text of a model; links of a URDF without collisions keep their visual shapes."""
    text = re.sub("<!--.*?-->", _empty_lines, path.read_text(errors="replace"), flags=re.DOTALL)
    if "<mujoco" in text:
        return text

    def without_doubles(link: re.Match[str]) -> str:
        def kept(visual: re.Match[str]) -> str:
            is_kept = "<collision" not in link[0] and re.search(_SHAPE, visual[0])
            return visual[0] if is_kept else _empty_lines(visual)

        return re.sub(r"<visual\b[^>]*/>|<visual\b.*?</visual>", kept, link[0], flags=re.DOTALL)

    text = re.sub(r"<link\b.*?</link>", without_doubles, text, flags=re.DOTALL)
    shown = r'\1<mujoco><compiler discardvisual="false"/></mujoco>'
    return re.sub(r"(<robot\b[^>]*>)", shown, text, count=1)


def _empty_lines(found: re.Match[str]) -> str:
    """As many lines, so that the numbers of lines in MuJoCo's errors hold."""
    return "\n" * found[0].count("\n")


def compiled(spec: mujoco.MjSpec, what: str = "the prepared model") -> mujoco.MjModel:
    """The model of `spec`; the ConfigError for what MuJoCo refuses begins with `what`."""
    with refused(what):
        return spec.compile()


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Raise a ConfigError that begins with `what` for errors of MuJoCo, SciPy or the disk."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, OSError, ElementTree.ParseError, mujoco.FatalError) as error:
        text = " ".join(str(error).removeprefix("Error:").split())[:200]
        advice = "; rename one" if "repeated name" in text else ""
        advice = "; the file is not XML, or its end is missing" if "XML parse" in text else advice
        raise ConfigError(f"{what}: {text}{advice}") from error


def _compile(source: Source) -> mujoco.MjModel:
    """The model, with meshes that enclose no volume as shells without mass, in place."""
    meshes = {mesh.name: mesh for mesh in source.spec.meshes}
    while True:
        try:
            return source.spec.compile()
        except ValueError as error:
            found = re.search(r"mesh volume is too small: (.+?) \. Try", str(error))
            if found is None or found[1] not in meshes:
                raise
        meshes.pop(found[1]).inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL  # once for each
        for geom in source.spec.geoms:
            if geom.meshname == found[1] and np.isnan(geom.mass):
                geom.mass = 0.0
        source.notes.append(f"the mesh {found[1]} has no volume, so it has no mass")


def _mend_large_inertias(source: Source, model: mujoco.MjModel) -> None:
    """Replace inertias of something larger than the robot, in place.

    Editors write such numbers where no inertia is known. Other bodies with the same moments of
    inertia are changed, too.
    """
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    heavy = np.flatnonzero(model.body_mass > 1e-3 * model.body_mass.sum())
    size = max(np.ptp(data.xipos[heavy], axis=0).max(), 2.0 * model.geom_rbound.max(initial=0.0))
    impossible = [n for n in heavy.tolist() if size**2 < inertia_sizes(model, n).sum()]
    moments = {tuple(model.body_inertia[n].round(9)) for n in impossible}
    mended = []
    for number, body in enumerate(source.spec.bodies):
        if body.explicitinertial and tuple(model.body_inertia[number].round(9)) in moments:
            shapes = [surface(data, geom.id, np.zeros(3)) for geom in body.geoms]
            away = np.concatenate(shapes or [data.xipos[[number]]]) - data.xipos[number]
            radius = max(float(np.linalg.norm(away, axis=1).mean()), _UNKNOWN)
            body.fullinertia = [np.nan, 0.0, 0.0, 0.0, 0.0, 0.0]
            body.inertia = np.full(3, 0.4 * body.mass * radius**2)
            mended.append(body.name)
    if mended:
        names = ", ".join(mended[:3]) + (", ..." if len(mended) > 3 else "")
        text = f"{len(mended)} inertias are those of something larger than the robot ({names})"
        source.notes.append(f"{text}: replaced by those of balls of the bodies' sizes")


def _mend_names(source: Source) -> None:
    """Replace characters of names that a task cannot use, in the whole model."""
    text = source.spec.to_xml()
    if not any(map(re.compile(_UNUSABLE).search, re.findall(r' name="([^"]*)"', text))):
        return
    root = ElementTree.fromstring(text)
    names = {str(element.get("name")) for element in root.iter() if "name" in element.attrib}
    new: dict[str, str] = {}
    for name in sorted(name for name in names if re.search(_UNUSABLE, name)):
        new[name] = re.sub(_UNUSABLE, "_", name)
        while new[name] in names:
            new[name] += "_"
        names.add(new[name])
    for element in root.iter():
        changed = {key: new[value] for key, value in element.attrib.items() if value in new}
        element.attrib.update(changed)
    base = source.spec.body(source.base).id
    source.spec = mujoco.MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"))
    source.base = source.spec.bodies[base].name
    first, second = next(iter(new.items()))
    text = f"of names with characters that a task cannot use, {len(new)} are replaced"
    source.notes.append(f"{text}: {first!r} is {second} now")


def _check_size(model: mujoco.MjModel, path: Path) -> None:
    """Raise ConfigError for more parts, or larger numbers, than a robot has."""
    if model.nbody > _MOST_BODIES or model.nv > _MOST_DOFS:
        text = f"the model {path} has {model.nbody} bodies and {model.nv} degrees of freedom"
        raise ConfigError(f"{text}; at most {_MOST_BODIES} and {_MOST_DOFS} can be prepared")
    for field in _NUMBERS:
        kind, values = field.split("_")[0], getattr(model, field)
        good = np.abs(values) <= (np.inf if field.endswith("range") else _LARGEST_NUMBER)
        if not (good := good.all(axis=tuple(range(1, good.ndim)))).all():
            number = int(good.argmin())
            name = getattr(model, kind)(number).name or f"number {number}"
            text = f"the model {path}: the {kind} {name} has {field} {values[number].tolist()}"
            raise ConfigError(f"{text}; write numbers below {_LARGEST_NUMBER:g}")
    if (reach := float(max(abs(model.body_pos).max(), model.geom_rbound.max(initial=0.0)))) > _FAR:
        text = f"the model {path} has a part of {reach:.3g} m"
        raise ConfigError(f"{text}; MuJoCo's unit is meters")


def _root(spec: mujoco.MjSpec, base: str | None) -> str:
    """The name of the body of the world that has hinges or slides below it."""

    def moves(body: mujoco.MjsBody) -> bool:
        return any(joint.type in (_SLIDE, _HINGE) for joint in body.find_all("joint"))

    def is_placeholder(body: mujoco.MjsBody) -> bool:
        """Whether nothing but a joint is there, such as for one that a version lacks."""
        parts = [body, *body.find_all("body")]
        mass = sum(part.mass if part.explicitinertial else np.inf for part in parts)
        return bool(mass < _NOTHING)

    moving = [body for body in spec.worldbody.bodies if moves(body)]
    names = [body.name for body in moving if base or not is_placeholder(body)]
    names = names or [body.name for body in moving]
    if not names:
        raise ConfigError("the model has no joint that could be driven")
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    if base is None and len(names) > 1:
        text = f"the model has several things that move, {shown}"
        raise ConfigError(f"{text}; say which is the robot: --base {names[0]}")
    if base is not None and base not in names:
        text = f"--base is {base!r}{did_you_mean(base, names)}"
        raise ConfigError(f"{text}; the roots of what moves are {shown}")
    return base or names[0]


def _free_root(source: Source) -> None:
    """Replace three slides and three hinges, or a ball joint, of the base by a free joint."""
    spec, base = source.spec, source.spec.body(source.base)
    kinds = [joint.type for joint in base.joints]
    counts = kinds.count(_SLIDE), kinds.count(_HINGE), kinds.count(_BALL)
    if counts not in ((3, 3, 0), (3, 0, 1)):
        return
    names = {joint.name for joint in base.joints}
    gone = [actuator for actuator in spec.actuators if actuator.target in names]
    gone += [sensor for sensor in spec.sensors if sensor.objname in names]
    gone += [equality for equality in spec.equalities if {equality.name1, equality.name2} & names]
    for item in [*gone, *spec.keys, *base.joints]:  # keyframes have six positions of the base
        spec.delete(item)
    base.add_freejoint(name="floating_base")
    source.notes.append(f"{len(kinds)} joints of {source.base} are a free joint now")


def _leave_surroundings(source: Source) -> None:
    """Remove all but the robot: its scene has its own floor and light."""
    spec, world = source.spec, source.spec.worldbody
    others = [body for body in world.bodies if body.name != source.base]
    left = [*others, *world.geoms, *world.sites, *world.cameras, *world.lights]
    for body in others:
        spec.delete(body)  # with all that refers to it
    base, obj = spec.body(source.base), mujoco.mjtObj
    kinds = obj.mjOBJ_GEOM, obj.mjOBJ_SITE, obj.mjOBJ_CAMERA
    own = {kind: {part.name for part in base.find_all(kind)} for kind in kinds}
    for pair in spec.pairs:
        named = {pair.geomname1, pair.geomname2}
        if named - own[obj.mjOBJ_GEOM]:
            for name in named & own[obj.mjOBJ_GEOM]:
                spec.geom(name).conaffinity |= 1  # touches the ground by that pair alone
            spec.delete(pair)
    lost = [
        sensor
        for sensor in spec.sensors
        if sensor.objname not in own.get(sensor.objtype, {sensor.objname})
        or sensor.refname not in own.get(sensor.reftype, {sensor.refname})
    ]
    if lost:
        shown = ", ".join(sensor.name for sensor in lost[:3])
        source.notes.append(f"{len(lost)} sensors of its surroundings are left out ({shown})")
    rest = [*world.geoms, *world.sites, *world.cameras, *world.lights, *spec.hfields, *spec.skins]
    for item in [*lost, *rest]:
        spec.delete(item)
    if left:
        source.notes.append("its floor, lights and surroundings are left out; the scene has some")


def _find_files(source: Source, path: Path) -> None:
    """Set the paths of meshes and textures to existing files; remove those without a file."""
    spec, missing, around = source.spec, [], path.resolve().parent

    @cache
    def nearby() -> dict[str, Path]:
        folders = around, around.parent / "meshes"
        files = islice(chain(*(folder.glob("**/*") for folder in folders)), _MOST_FILES)
        names = {file.name: file for file in files if file.is_file()}
        return {name.lower(): file for name, file in names.items()} | names

    for mesh in [mesh for mesh in spec.meshes if mesh.file]:
        name = mesh.file.rsplit("://", 1)[-1]
        places = [around / spec.compiler.meshdir / name, around / name]
        file = next((place for place in places if place.is_file()), None)
        name = Path(name).name
        file = file or nearby().get(name) or nearby().get(name.lower())
        if file and _is_readable(file):
            mesh.file = str(file.resolve())
            continue
        missing.append(name)
        for geom in [g for g in spec.geoms if g.meshname == mesh.name]:
            spec.delete(geom)
        spec.delete(mesh)
    for texture in [t for t in spec.textures if t.file or any(t.cubefiles)]:
        for material in spec.materials:  # colours are enough to see a robot by
            material.textures = ["" if name == texture.name else name for name in material.textures]
        spec.delete(texture)
    spec.compiler.meshdir = spec.compiler.texturedir = ""
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        text = f"{len(missing)} meshes are not there or not readable ({shown})"
        source.notes.append(f"{text}: they are neither drawn nor collided with")


def _is_readable(file: Path) -> bool:
    """Whether MuJoCo can read a mesh: one of the formats, not too large, no stand-in of Git LFS."""
    if file.suffix.lower() not in _SUFFIXES or file.stat().st_size > _LARGEST_MESH:
        return False
    with file.open("rb") as mesh:
        head = mesh.read(84)
    faces = int.from_bytes(head[80:], "little")
    is_stl = 1 <= faces <= _MOST_FACES and file.stat().st_size >= 84 + 50 * faces
    return not head.startswith(LFS_POINTER) and (is_stl or file.suffix.lower() != ".stl")


def _mend_points(source: Source) -> None:
    """Give a radius to balls without one: other simulators take these as points of contact.

    Boxes and cylinders without a size, which stand for no shape, are removed.
    """
    sizes = {mujoco.mjtGeom.mjGEOM_BOX: 3, mujoco.mjtGeom.mjGEOM_CYLINDER: 2}
    solid = [geom for geom in source.spec.geoms if geom.type in sizes and not geom.meshname]
    flat = [geom for geom in solid if not all(geom.size[: sizes[geom.type]])]
    for geom in flat:
        source.spec.delete(geom)
    if flat:
        source.notes.append(f"{len(flat)} boxes or cylinders without a size are left out")
    balls = [geom for geom in source.spec.geoms if geom.type == mujoco.mjtGeom.mjGEOM_SPHERE]
    points = [ball for ball in balls if not ball.size[0] and not ball.meshname]
    for point in points:
        point.size[0] = _POINT
    if points:
        text = f"{len(points)} balls without a radius"
        source.notes.append(f"{text} are balls of {1e3 * _POINT:.0f} mm")


def _mend_inertias(source: Source, *, is_urdf: bool) -> None:
    """Remove the mass of URDF links without inertia, and replace impossible inertias."""
    compiler, mended, balanced = source.spec.compiler, [], []
    for body in source.spec.bodies[1:]:
        if is_urdf and not body.explicitinertial:
            for geom in body.geoms:  # a link without inertia weighs nothing, whatever its shape
                geom.mass = 0.0
        full = body.fullinertia
        xx, yy, zz, xy, xz, yz = [*body.inertia, 0.0, 0.0, 0.0] if np.isnan(full[0]) else full
        if not np.isfinite([*full[1:], xx, yy, zz]).all():
            raise ConfigError(f"the inertia of {body.name} is not finite")
        moments = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        if body.explicitinertial and moments.min() <= 0.0:
            body.fullinertia = [np.nan, 0.0, 0.0, 0.0, 0.0, 0.0]
            body.inertia = np.full(3, 0.4 * max(body.mass, 1e-3) * _UNKNOWN**2)
            mended.append(body.name)
        elif body.explicitinertial and moments[2] > _ROUNDED * (moments[0] + moments[1]):
            balanced.append(body.name)
    if balanced:
        text = f"the largest moment of inertia of {', '.join(balanced[:5])}"
        source.notes.append(f"{text} is more than the sum of the others: all are their mean")
    if mended:
        text = f"impossible inertias of {', '.join(mended[:5])}"
        source.notes.append(f"{text}: replaced by that of a ball of 1.6 cm")
    compiler.balanceinertia = True
    compiler.boundmass = max(compiler.boundmass, 1e-4)
    compiler.boundinertia = max(compiler.boundinertia, 1e-8)
