"""Mistakes that `check_task` finds before anything is built, and models without visuals."""

import warnings
from pathlib import Path

import mujoco
import numpy as np
import pytest
from tiny_task import alive, tiny_env, tiny_model, tiny_task

from simtrain import (
    EventTermCfg,
    JointEffortActionCfg,
    JointPositionActionCfg,
    JointVelocityActionCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SimCfg,
    SubTerrainCfg,
    TerminationTermCfg,
    TerrainCfg,
    mdp,
)
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.env.model import check_task, compile_model
from simtrain.env.names import names_of
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg


def tracked(env, command: str):
    return env.command(command)[:, 0]


def massless():
    spec = mujoco.MjSpec()
    spec.worldbody.add_body(name="massless").add_joint()
    return spec


def broken():
    raise KeyError("leg")


class Counter:
    def __init__(self, env, start: int) -> None: ...


def _observe(term):
    return {"observations": {"actor": {"x": term}}}


def _reset(**params):
    spread = EventTermCfg(mdp.reset_joints_uniform, "reset", params=params)
    return {"events": {"reset": spread}}


def _act(**cfgs):
    return {"actions": cfgs}


Effort, Position, Velocity = JointEffortActionCfg, JointPositionActionCfg, JointVelocityActionCfg
SLIDE = {"joints": "left_slide"}
MISTAKES = [
    (
        {"rewards": {"track": RewardTermCfg(tracked, 1.0, command="gaol")}},
        r"--env\.rewards\.track\.command: there is no command 'gaol'; there are none",
    ),
    (_reset(**SLIDE, position=(0.1,)), r"reset\.position is \(0\.1,\); it must be two numbers"),
    (_reset(), r"events\.reset: reset_joints_uniform needs the parameter 'joints'"),
    (
        {"rewards": {"alive": RewardTermCfg(alive, weight=1.0, std=0.5)}},
        r"--env\.rewards\.alive: alive has no parameter 'std'; it takes none",
    ),
    (
        _observe(ObservationTermCfg(mdp.joint_pos, joint="x")),
        r"actor\.x: joint_pos .* mean 'joints'",
    ),
    (
        {"terminations": {"n": TerminationTermCfg(Counter)}},
        "Counter needs the parameter 'start'",
    ),
    (
        _act(a=Effort("left_slide"), b=Effort(("left_slide", "right_hinge"))),
        r"--env\.actions\.b: --env\.actions\.a drives the actuator 'push' already",
    ),
    (_act(a=Effort("root")), "exactly one actuator on joint 'root': no actuator drives it"),
    (_act(a=Effort("left_hinge")), "needs a motor actuator on .*'left_hinge', but 'turn' is a pos"),
    (_act(a=Position("left_slide")), "needs a position actuator .* but 'push' is a motor actuator"),
    (_act(a=Velocity("left_hinge")), "needs a velocity actuator .* but 'turn' is a position act"),
    (
        _act(a=Effort("left_slide", scale={"right_.*": 2.0})),
        r"--env\.actions\.a: scale: nothing is called 'right_\.\*'; there are left_slide",
    ),
    ({"actions": {}}, "the task has no actions"),
    ({"rewards": {}}, "the task has no rewards"),
    ({"observations": {}}, "no observation group 'actor'"),
    ({"observations": {"actor": {}}}, r"observations\.actor has no terms"),
    ({"keyframe": "bend"}, r"no keyframe 'bend' \(did you mean 'bent'\?\); there are bent"),
    ({"model": Path()}, r"the model \. is no MJCF file \(--env\.model\)"),
    ({"model": massless}, r"the model made by massless\(\) does not compile"),
    ({"model": broken}, r"broken\(\) .* raised KeyError: 'leg' \(.*:\d"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES, ids=[m[:40] for _, m in MISTAKES])
def test_a_mistake_in_a_task_is_told_in_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        check_task(tiny_task(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<mujoco><worldbody><bodi/></worldbody></mujoco>", "bodi"),
        ('<mujoco><worldbody><geom type="mesh" mesh="none"/></worldbody></mujoco>', "none"),
        ("not XML at all", "is not a valid model"),
    ],
)
def test_malformed_mjcf_is_told_in_one_line_with_the_files_name(tmp_path, text, says):
    path = tmp_path / "robot.xml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}.*{says}") as error:
        check_task(tiny_task(model=path))
    assert "\n" not in str(error.value)


def test_a_warning_of_the_model_is_told_once():
    def robot():
        warnings.warn("the feet are balls", stacklevel=1)
        return tiny_model()

    task = tiny_task(model=robot)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_task(task)
        Env(task, 1, EngineCfg(threads=1))
        check_task(task)
    assert [(str(each.message), each.filename) for each in told] == [
        ("the feet are balls", __file__)
    ]


def test_a_sound_task_gives_its_model_with_the_tasks_time_step_and_solver():
    model = check_task(tiny_task(sim=SimCfg(integrator="RK4", solver="CG", iterations=7)))
    assert model.opt.timestep == 0.01
    assert (model.opt.integrator, model.opt.solver, model.opt.iterations) == (1, 1, 7)


def test_an_environment_made_by_hand_checks_the_limits_of_its_task():
    terrain = TerrainCfg(sub_terrains={"flat": SubTerrainCfg(mdp.flat)}, resolution=0.0)
    with pytest.raises(ConfigError, match=r"--env\.terrain\.resolution is 0\.0; it must be 0\.001"):
        Env(tiny_task(terrain=terrain), 1, EngineCfg(threads=1))


LOOKS = """
<mujoco>
  <asset><material name="red" rgba="1 0 0 1"/></asset>
  <default><geom material="red"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 1"/>
    <body name="box" pos="0 0 .3">
      <freejoint/>
      <geom name="box" size=".1"/>
      <geom name="heavy" size=".1" pos=".3 .1 0" contype="0" conaffinity="0"/>
      <geom name="eye" size=".02" pos="0 .1 0" mass="0" contype="0" conaffinity="0"/>
      <geom {unnamed} size=".02" pos="0 -.1 0" mass="0" contype="0" conaffinity="0"/>
      <site name="front"/>
    </body>
    <body name="cart" pos="0 2 1">
      <joint name="left_slide" type="slide" axis="1 0 0"/> <geom name="cart" size=".1"/>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="left_slide"/></actuator>
  <sensor>{sensor}</sensor>
</mujoco>
"""
SAME = ("body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_invweight0", "qpos0")


def looks(unnamed: str = 'name="ear"', sensor: str = "") -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(LOOKS.format(unnamed=unnamed, sensor=sensor))


def geoms(**changes) -> list[str]:
    """What is left of them in a task's model."""
    model = compile_model(tiny_task(**{"model": looks, **changes}))
    return [model.geom(i).name for i in range(model.ngeom)]


def with_geoms(pattern) -> dict:
    params = {"field": "geom_friction", "ranges": (1.0, 2.0)}
    event = EventTermCfg(mdp.randomize_field, mode="reset", geoms=pattern, params=params)
    return {"events": {"friction": event}}


def test_geoms_that_touch_nothing_are_left_out_unless_asked_for() -> None:
    assert geoms() == ["floor", "box", "cart"]
    full = compile_model(tiny_task(model=looks), visuals=True)
    assert (full.ngeom, full.nmat) == (6, 1)


def test_geoms_that_a_term_names_stay() -> None:
    assert geoms(**with_geoms(("box", "ey."))) == ["floor", "box", "eye", "cart"]
    reward = RewardTermCfg(lambda env, eye_geoms: env.bind("geom_xpos")[:, eye_geoms.ids, 2], 1.0)
    reward.params["eye_geoms"] = "eye"
    env = tiny_env(1, model=looks, rewards={"eye": reward})
    height = reward.func(env, env.terms()["rewards.eye"].params["eye_geoms"])  # type: ignore[attr-defined]
    assert height.item() == pytest.approx(0.3)
    # A pattern that matches geoms without a name keeps all of them.
    changes = {"model": lambda: looks(unnamed=""), **with_geoms(".*")}
    assert geoms(**changes) == ["floor", "box", "heavy", "eye", "", "cart"]
    assert geoms(model=changes["model"]) == ["floor", "box", "cart"]


def test_nothing_is_left_out_where_a_sensor_sees_it_or_it_feels_a_fluid() -> None:
    spec = looks()
    spec.geom("eye").fluid_ellipsoid = 1.0
    sensors = '<rangefinder site="front"/>', '<distance body1="box" body2="cart" cutoff="9"/>'
    for full in (spec, *(looks(sensor=sensor) for sensor in sensors)):
        assert len(geoms(model=lambda spec=full: spec)) == 6


@pytest.mark.parametrize("name", ["go1-velocity-flat", "cartpole-balance", None])
def test_a_robot_moves_the_same_with_and_without_its_looks(name: str | None) -> None:
    cfg = tiny_task(model=looks) if name is None else discover().find(name).make()
    bare, full = compile_model(cfg), compile_model(cfg, visuals=True)
    assert bare.nmat < full.nmat
    for kind in ("body", "joint", "site", "sensor", "actuator", "keyframe"):
        assert names_of(bare, kind) == names_of(full, kind)
    for field in SAME:
        np.testing.assert_array_equal(getattr(bare, field), getattr(full, field))
    random = np.random.default_rng(0)
    both = [mujoco.MjData(model) for model in (bare, full)]
    for model, data in zip((bare, full), both, strict=True):
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, data, 0)
    home = both[0].ctrl.copy()
    for _ in range(40):
        ctrl = home + random.normal(0.0, 0.3, bare.nu)
        for model, data in zip((bare, full), both, strict=True):
            data.ctrl[:] = ctrl
            mujoco.mj_step(model, data, nstep=5)
    for field in ("qpos", "qvel", "qacc", "sensordata"):
        np.testing.assert_array_equal(getattr(both[0], field), getattr(both[1], field))
