"""Mistakes in a task, and what `check_task` says before anything is built."""

import warnings
from pathlib import Path

import mujoco
import pytest
from tiny_task import alive, tiny_model, tiny_task

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
from simtrain.env.env import Env
from simtrain.env.model import check_task
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg


def tracked(env, command: str):
    return env.command(command)[:, 0]


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


def test_a_model_function_is_named_when_its_model_cannot_be():
    def massless():
        spec = mujoco.MjSpec()
        spec.worldbody.add_body(name="massless").add_joint()
        return spec

    def broken():
        raise KeyError("leg")

    with pytest.raises(ConfigError, match=r"the model made by massless\(\) does not compile"):
        check_task(tiny_task(model=massless))
    with pytest.raises(ConfigError, match=r"broken\(\) .* raised KeyError: 'leg' \(.*:\d"):
        check_task(tiny_task(model=broken))


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
