"""Reading a robot's model from MJCF or URDF, meshes or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from simtrain.errors import ConfigError

_MESH, _SDF = mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_SDF
_GROUND = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
_LARGEST_FILE = 20_000_000


@dataclass
class Source:
    """A model that was read."""

    spec: mujoco.MjSpec
    """The robot alone: without its ground, lights and meshes that are not there."""
    path: Path
    notes: list[str]
    """What was left out or changed, in sentences."""


def read(path: str | Path) -> Source:
    """Read MJCF or URDF.

    Links that are fixed to others stay bodies of their own, and inertias stay as they are written.
    Meshes are looked for where the file says and, by their names, in the folders around it; what
    has none collides by its primitives alone. Raises ConfigError for a file that cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"--model {path} is not a file")
    if path.stat().st_size > _LARGEST_FILE:
        raise ConfigError(f"--model {path} has more than {_LARGEST_FILE // 10**6} MB")
    try:
        spec = mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
        raise ConfigError(f"--model {path} cannot be read: {_in_one_line(error)}") from error
    spec.compiler.fusestatic = False
    source = Source(spec, path, [])
    _name_all(spec)
    _leave_ground(source)
    _find_meshes(source)
    _mend_inertias(source)
    compiled(spec, f"--model {path}")
    return source


def compiled(spec: mujoco.MjSpec, what: str) -> mujoco.MjModel:
    """The model of `spec`; ConfigError that begins with `what` where MuJoCo refuses it."""
    try:
        return spec.compile()
    except ValueError as error:
        raise ConfigError(f"{what}: {_in_one_line(error)}") from error


def _name_all(spec: mujoco.MjSpec) -> None:
    """Give bodies and joints without a name one."""
    for number, body in enumerate(spec.bodies[1:], start=1):
        body.name = body.name or f"body{number}"
        for place, joint in enumerate(body.joints):
            joint.name = joint.name or f"{body.name}_joint{place or ''}"


def _leave_ground(source: Source) -> None:
    """Remove ground and lights: the scene around the robot has its own."""
    spec = source.spec
    ground = [geom for geom in spec.worldbody.geoms if geom.type in _GROUND]
    robots = {geom.name for geom in spec.geoms if geom not in ground}
    for pair in list(spec.pairs):
        named = {pair.geomname1, pair.geomname2}
        if named - robots:
            for name in named & robots:
                spec.geom(name).conaffinity |= 1
            spec.delete(pair)
    kept = robots | {""}
    geom = mujoco.mjtObj.mjOBJ_GEOM
    lost = [s for s in spec.sensors if s.objtype == geom and s.objname not in kept]
    lost += [s for s in spec.sensors if s.reftype == geom and s.refname not in kept]
    if lost:
        names = ", ".join(sensor.name for sensor in lost[:3])
        source.notes.append(f"{len(lost)} sensors of the ground are left out ({names})")
    for item in [*lost, *ground, *spec.worldbody.lights]:
        spec.delete(item)
    if ground:
        source.notes.append("its ground is left out; the scene has one")


def _find_meshes(source: Source) -> None:
    """Let meshes name files that are there, and remove those that are nowhere."""
    spec, missing = source.spec, []
    folders = [source.path.parent / spec.compiler.meshdir, source.path.parent]
    around = source.path.resolve().parent
    nearby: dict[str, Path] = {}
    for folder in (around, around / "meshes", around.parent / "meshes", around / "assets"):
        if folder.is_dir() and spec.meshes:
            nearby |= {file.name: file for file in folder.glob("**/*") if file.is_file()}
    for mesh in list(spec.meshes):
        if not mesh.file:
            continue
        name = mesh.file.rsplit("://", 1)[-1]
        places = [folder / name for folder in folders]
        file = next((f for f in places if f.is_file()), nearby.get(Path(name).name))
        if file is not None and file.suffix.lower() in (".obj", ".stl", ".msh"):
            mesh.file = str(file.resolve())
            continue
        missing.append(Path(name).name)
        for geom in [g for g in spec.geoms if g.meshname == mesh.name]:
            spec.delete(geom)
        spec.delete(mesh)
    spec.compiler.meshdir = ""
    _leave_missing_textures(source)
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        text = f"{len(missing)} meshes are not there or not readable ({shown})"
        source.notes.append(f"{text}: they are neither drawn nor collided with")


def _leave_missing_textures(source: Source) -> None:
    spec, folder = source.spec, source.path.parent / source.spec.compiler.texturedir
    for texture in [t for t in spec.textures if t.file or any(t.cubefiles)]:
        files = [file for file in (texture.file, *texture.cubefiles) if file]
        if all((folder / file).is_file() for file in files):
            continue
        for material in spec.materials:
            material.textures = ["" if name == texture.name else name for name in material.textures]
        spec.delete(texture)


def _mend_inertias(source: Source) -> None:
    """Let bodies that only carry frames weigh nothing, and bound and balance what cannot be."""
    compiler, mended = source.spec.compiler, []
    for body in source.spec.bodies[1:]:
        if source.path.suffix == ".urdf" and not body.explicitinertial:
            for geom in body.geoms:  # a link without inertia weighs nothing, whatever its shape
                geom.mass = 0.0
        full = body.fullinertia
        written = np.diag(body.inertia) if np.isnan(full[0]) else _matrix(full)
        if body.explicitinertial and np.linalg.eigvalsh(written).min() <= 0.0:
            body.fullinertia = [np.nan, 0.0, 0.0, 0.0, 0.0, 0.0]
            body.inertia = np.full(3, max(body.mass, 1e-3) * 1e-4)  # of a ball of 1.6 cm
            mended.append(body.name)
    if mended:
        text = f"inertias that cannot be, of {', '.join(mended[:5])}"
        source.notes.append(f"{text}: they are those of a ball of 1.6 cm now")
    compiler.balanceinertia = True
    compiler.boundmass = max(compiler.boundmass, 1e-4)
    compiler.boundinertia = max(compiler.boundinertia, 1e-8)


def _matrix(full: np.ndarray) -> np.ndarray:
    xx, yy, zz, xy, xz, yz = full
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).removeprefix("Error:").split())
