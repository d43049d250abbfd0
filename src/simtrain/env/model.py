"""From a task's configuration to a compiled MuJoCo model, checked; and the task for evaluation."""

import contextlib
import copy
import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import mujoco
import numpy as np

from simtrain.env.cfg import CurriculumTermCfg, EventTermCfg, TaskCfg, TermCfg
from simtrain.env.control.actions import Actions
from simtrain.env.control.actuators import set_actuators
from simtrain.env.control.cfg import DcMotorActuatorCfg, IdealPdActuatorCfg, NetworkActuatorCfg
from simtrain.env.names import check_term, patterns_of
from simtrain.env.nan_guard import STEPS
from simtrain.env.terrain import add_terrain, check_terrain
from simtrain.errors import ConfigError, choices, flag, warnings_once, what_raised
from simtrain.limits import check

# Sensors whose values depend on geoms that touch nothing, without naming them.
_SENSORS_THAT_SEE = {
    getattr(mujoco.mjtSensor, f"mjSENS_{name}")
    for name in ("RANGEFINDER", "GEOMDIST", "GEOMNORMAL", "GEOMFROMTO", "PLUGIN")
}


def compile_model(cfg: TaskCfg, *, visuals: bool = False) -> mujoco.MjModel:
    """Compile the task's model with its time step and solver settings; ConfigError if it cannot.

    With `visuals` it has the geoms too that are there to be looked at alone. Everything but geoms,
    meshes and materials is the same in both: a state of the one holds for the other.
    """
    with warnings_once(quiet=True):  # `check_task` tells of them
        return _compile(cfg, visuals)[0]


def self_contained_xml(cfg: TaskCfg) -> str:
    """The model of `compile_model` with visuals as one MJCF, with meshes and heights inside.

    Numbers have six digits, and textures from files are left out. With ``discardvisual`` it is the
    model without visuals. ConfigError if it cannot be.
    """
    with warnings_once(quiet=True):
        model, spec = _compile(cfg, visuals=True)
    _discard_visuals(cfg, spec)  # adds what keeps the geoms that terms name
    spec.compiler.discardvisual = False
    for mesh in spec.meshes:
        if mesh.file:
            _inline(model, mesh)
    for field in spec.hfields:
        if field.file:
            place = model.hfield(field.name)
            field.userdata, field.file = place.data.ravel().tolist(), ""
            field.nrow, field.ncol = int(place.nrow[0]), int(place.ncol[0])
    for texture in [t for t in spec.textures if t.file or any(t.cubefiles)]:
        for material in spec.materials:
            material.textures = [n if n != texture.name else "" for n in material.textures]
        spec.delete(texture)
    try:
        spec.compile()
        text: str = spec.to_xml()
        mujoco.MjModel.from_xml_string(text)
    except ValueError as error:
        raise ConfigError(f"the model cannot be one MJCF: {_one_line(error)}") from error
    return text


def _inline(model: mujoco.MjModel, mesh: mujoco.MjsMesh) -> None:
    """Put the vertices and faces of a compiled mesh into its element, in place of its file."""
    place = model.mesh(mesh.name)
    first, count = int(place.vertadr[0]), int(place.vertnum[0])
    # The compiler has moved them into the frame of the mesh's inertia.
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, model.mesh_quat[place.id])
    vertices = (
        model.mesh_vert[first : first + count] @ rotation.reshape(3, 3).T + model.mesh_pos[place.id]
    )
    faces = model.mesh_face[int(place.faceadr[0]) :][: int(place.facenum[0])]
    mesh.file, mesh.scale = "", [1.0, 1.0, 1.0]
    mesh.refpos, mesh.refquat = [0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]
    mesh.uservert, mesh.userface = vertices.ravel().tolist(), faces.ravel().tolist()


def _compile(cfg: TaskCfg, visuals: bool) -> tuple[mujoco.MjModel, mujoco.MjSpec]:
    """The compiled model and its specification; settings are checked by their limits."""
    check(cfg, "env")
    if isinstance(cfg.model, Path):
        what = str(cfg.model)
        if not cfg.model.is_file():
            why = "is no MJCF file" if cfg.model.exists() else "does not exist"
            raise ConfigError(f"the model {what} {why} (--env.model)")
        try:
            spec = mujoco.MjSpec.from_file(str(cfg.model))
        except ValueError as error:
            raise ConfigError(f"{what} is not a valid model: {_one_line(error)}") from error
    else:
        what = f"the model made by {getattr(cfg.model, '__name__', cfg.model)}()"
        try:
            spec = cfg.model()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{what} cannot be: it {what_raised(error)}") from error
    if cfg.terrain is not None:
        check_terrain(cfg.terrain)
        add_terrain(cfg.terrain, spec)
    _set_options(cfg, spec.option)
    if not visuals:
        _discard_visuals(cfg, spec)
    try:
        if cfg.actuators:
            set_actuators(cfg.actuators, spec)
        return spec.compile(), spec
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{what} does not compile: {_one_line(error)}") from error


def model_digest(model: mujoco.MjModel) -> str:
    """A SHA-256 of a compiled model in hexadecimal digits; it changes with MuJoCo's version."""
    data = np.zeros(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, data)
    return hashlib.sha256(data.data).hexdigest()


def bytes_per_env(model: mujoco.MjModel) -> int:
    """Memory of an environment on the CPU engine, at least: its state and its last steps."""
    size = int(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION.value))
    kept = 1 + model.nq + 2 * model.nv + model.na + 7 * model.nmocap + model.nu
    return 8 * (2 * size + (STEPS + 1) * int(kept))


def check_task(cfg: TaskCfg) -> mujoco.MjModel:
    """Compile the model and resolve all names in the task against it; the model, or ConfigError.

    Warnings of the model are printed only here.
    """
    with warnings_once():
        model = _compile(cfg, visuals=False)[0]
    for kind in ("actions", "rewards"):
        if not getattr(cfg, kind):
            raise ConfigError(f"the task has no {kind}")
    if "actor" not in cfg.observations:
        raise ConfigError("the task has no observation group 'actor'")
    for group, terms in cfg.observation_terms().items():
        if not terms:
            raise ConfigError(f"observations.{group} has no terms")
    if Actions(cfg, model, "cpu").dim == 0:
        raise ConfigError("the task's actions drive no joint")
    commands = {
        flag("env", "actions", n, "reference"): getattr(action, "reference", None)
        for n, action in cfg.actions.items()
    }
    for where, term in _terms(cfg):
        takes_mask = isinstance(term, EventTermCfg | CurriculumTermCfg)
        check_term(where, term, model, cfg.timestep * cfg.decimation, leading=1 + takes_mask)
        commands[f"{where}.command"] = term.params.get("command")
    for where, name in commands.items():
        if isinstance(name, str) and name not in cfg.commands:
            raise ConfigError(f"{where}: there is no command {name!r}{choices(name, cfg.commands)}")
    return model


def _terms(cfg: TaskCfg) -> Iterator[tuple[str, TermCfg]]:
    """All terms but actions, each with its flag."""
    for group, terms in cfg.observation_terms().items():
        yield from ((flag("env", "observations", group, name), t) for name, t in terms.items())
    for kind in ("rewards", "terminations", "commands", "metrics", "events", "curricula"):
        yield from ((flag("env", kind, name), t) for name, t in getattr(cfg, kind).items())


def evaluation_task(cfg: TaskCfg) -> TaskCfg:
    """A copy of a task without observation noise, events between resets, and curricula.

    Policies are evaluated and shown in it. Pushes are gone, commands have their full ranges and the
    parameters that their class has ``in_evaluation``, and on a terrain environments start at every
    level. What is drawn at the start and at resets stays, from the first reset on.
    """
    task = copy.deepcopy(cfg)
    for group in task.observation_terms().values():
        for term in group.values():
            term.noise = None
    task.events = {name: e for name, e in task.events.items() if e.mode in ("startup", "reset")}
    for event in task.events.values():
        event.after_steps = 0
    for changed in (*task.commands.values(), *task.terminations.values()):
        changed.params |= getattr(changed.func, "in_evaluation", {})
    task.curricula = {}
    if task.terrain is not None:
        task.terrain.max_initial_level = None
    return task


def without_hardware(cfg: TaskCfg) -> TaskCfg:
    """A copy of a task as plain MuJoCo has it: without delays, biases and motors' limits of speed.

    ConfigError for motors that are networks, which it cannot have.
    """
    task = copy.deepcopy(cfg)
    observed = [term for group in task.observation_terms().values() for term in group.values()]
    for term in (*observed, *task.actions.values()):
        term.delay_min_lag = term.delay_max_lag = 0
    for term in observed:
        term.bias = None
    for name, motor in task.actuators.items():
        if isinstance(motor, NetworkActuatorCfg):
            where = flag("env", "actuators", name)
            raise ConfigError(f"{where} is a network, and plain MuJoCo has no such motors")
        if isinstance(motor, DcMotorActuatorCfg):
            own = {field.name: getattr(motor, field.name) for field in fields(IdealPdActuatorCfg)}
            task.actuators[name] = IdealPdActuatorCfg(**own)
    return task


def _set_options(cfg: TaskCfg, option: mujoco.MjOption) -> None:
    option.timestep, sim = cfg.timestep, cfg.sim
    if sim.integrator is not None:
        option.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{sim.integrator.upper()}").value
    if sim.solver is not None:
        option.solver = getattr(mujoco.mjtSolver, f"mjSOL_{sim.solver.upper()}").value
    for name in ("iterations", "ls_iterations"):
        if (value := getattr(sim, name)) is not None:
            setattr(option, name, value)


def _discard_visuals(cfg: TaskCfg, spec: mujoco.MjSpec) -> None:
    """Let `spec` compile without geoms that neither physics, sensors nor terms know, in place.

    Kinematics carries them along: without them a Go1 takes 12 % more steps a second. MuJoCo's
    compiler keeps masses, inertias and the order of everything else. All stay where physics or
    sensors depend on geoms that touch nothing (a rangefinder, the fluid around an ellipsoid).
    """
    seen = any(sensor.type in _SENSORS_THAT_SEE for sensor in spec.sensors)
    if seen or any(geom.fluid_ellipsoid for geom in spec.geoms):
        return
    visuals = [geom.name for geom in spec.geoms if not geom.contype and not geom.conaffinity]
    named: set[str] = set()
    for pattern in (p for _, term in _terms(cfg) for p in patterns_of("geoms", term)):
        with contextlib.suppress(re.error):  # told when the term is checked
            named.update(name for name in visuals if re.fullmatch(pattern, name))
    if "" in named:  # what has no name cannot be told from the others
        return
    spec.compiler.discardvisual = True
    if named:
        # The compiler keeps what another element refers to; this one does nothing else.
        types, zeros = [mujoco.mjtObj.mjOBJ_GEOM] * len(named), [0.0] * len(named)
        spec.add_tuple(
            name="geoms that terms name", objtype=types, objname=sorted(named), objprm=zeros
        )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
