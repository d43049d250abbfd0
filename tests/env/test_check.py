"""Mistakes in a task, and what `check_task` says before anything is built."""

import warnings
from pathlib import Path

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


def _observe(*terms: ObservationTermCfg):
    return {"observations": {"actor": {f"term{i}": term for i, term in enumerate(terms)}}}


def _action(cfg):
    return {"actions": {"move": cfg}}


def tracked(env, command: str):
    return env.command(command)[:, 0]


class Counter:
    def __init__(self, env, start: int) -> None: ...


MISTAKES = {
    "a command that there is not": (
        {"rewards": {"track": RewardTermCfg(tracked, 1.0, command="gaol")}},
        r"--env\.rewards\.track\.command: there is no command 'gaol'; there are none",
    ),
    "one value where a term takes two bounds": (
        {
            "events": {
                "reset": EventTermCfg(
                    mdp.reset_joints_uniform, mode="reset", joints="left_slide", position=(0.1,)
                )
            }
        },
        r"--env\.events\.reset\.position takes 2 values such as \(0\.0, 0\.0\), not \(0\.1,\)",
    ),
    "bounds in the wrong order": (
        {
            "events": {
                "reset": EventTermCfg(
                    mdp.reset_joints_uniform, "reset", joints="left_slide", position=(0.1, -0.1)
                )
            }
        },
        r"--env\.events\.reset\.position is 0\.1 -0\.1; the lower bound comes first",
    ),
    "two action terms on one actuator": (
        {
            "actions": {
                "a": JointEffortActionCfg("left_slide"),
                "b": JointEffortActionCfg(("left_slide", "right_hinge")),
            }
        },
        r"--env\.actions\.a and --env\.actions\.b both drive the actuator 'push'",
    ),
    "a parameter that the term does not take": (
        {"rewards": {"alive": RewardTermCfg(alive, weight=1.0, std=0.5)}},
        r"--env\.rewards\.alive: alive has no parameter 'std'; it takes none",
    ),
    "a misspelt parameter": (
        _observe(ObservationTermCfg(mdp.joint_pos, joint="left_slide")),
        r"observations\.actor\.term0: joint_pos has no parameter 'joint' \(did you mean 'joints'",
    ),
    "a missing parameter": (
        _observe(ObservationTermCfg(mdp.joint_pos)),
        r"observations\.actor\.term0: joint_pos needs the parameter 'joints'",
    ),
    "a missing parameter of a class": (
        {"terminations": {"counted": TerminationTermCfg(Counter)}},
        r"terminations\.counted: Counter needs the parameter 'start'",
    ),
    "a missing parameter of an event": (
        {"events": {"spread": EventTermCfg(mdp.reset_joints_uniform, mode="reset")}},
        r"events\.spread: reset_joints_uniform needs the parameter 'joints'",
    ),
    "a pattern that matches nothing": (
        _observe(ObservationTermCfg(mdp.joint_pos, joints=".*_knee")),
        r"--env\.observations\.actor\.term0\.joints: no joint matches '\.\*_knee'; the model has",
    ),
    "an action on a joint that there is not": (
        _action(JointEffortActionCfg("left_knee")),
        r"--env\.actions\.move: no joint matches 'left_knee'",
    ),
    "an action on a joint without actuator": (
        _action(JointEffortActionCfg("root")),
        "JointEffortActionCfg needs exactly one actuator on joint 'root': no actuator drives it",
    ),
    "efforts for a position actuator": (
        _action(JointEffortActionCfg("left_hinge")),
        "JointEffortActionCfg needs a motor actuator on joint 'left_hinge', but 'turn' is a pos",
    ),
    "positions for a motor": (
        _action(JointPositionActionCfg("left_slide")),
        "JointPositionActionCfg needs a position actuator on joint 'left_slide', but 'push' is a m",
    ),
    "velocities for a position actuator": (
        _action(JointVelocityActionCfg("left_hinge")),
        "JointVelocityActionCfg needs a velocity actuator on joint 'left_hinge', but 'turn' is a p",
    ),
    "a scale for a joint that the action does not drive": (
        _action(JointEffortActionCfg("left_slide", scale={"right_.*": 2.0})),
        r"--env\.actions\.move: scale: nothing is called 'right_\.\*'; there are left_slide",
    ),
    "no actions": ({"actions": {}}, "the task has no actions"),
    "no rewards": ({"rewards": {}}, "the task has no rewards"),
    "no observations": ({"observations": {}}, "no observation group 'actor'"),
    "an empty group": ({"observations": {"actor": {}}}, r"observations\.actor has no terms"),
    "an unknown keyframe": (
        {"keyframe": "bend"},
        r"the model has no keyframe 'bend' \(did you mean 'bent'\?\); it has bent",
    ),
    "a model that is a folder": (
        {"model": Path()},
        r"the model \. is a folder; name its MJCF file \(--env\.model\)",
    ),
    "a model that is not there": (
        {"model": Path("no/robot.xml")},
        r"the model no/robot\.xml does not exist \(--env\.model\)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_check_task_tells(mistake):
    changes, message = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=message) as error:
        check_task(tiny_task(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<mujoco><worldbody>", "is not a valid model"),
        ("<mujoco><worldbody><bodi/></worldbody></mujoco>", "bodi"),
        ('<mujoco><worldbody><geom type="mesh" mesh="none"/></worldbody></mujoco>', "none"),
        ("not XML at all", "is not a valid model"),
    ],
)
def test_malformed_mjcf_is_told_in_one_line_with_the_files_name(tmp_path, text, says):
    path = tmp_path / "robot.xml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        check_task(tiny_task(model=path))
    message = str(error.value)
    assert str(path) in message
    assert says in message
    assert "\n" not in message


def test_a_model_function_is_named_when_its_model_does_not_compile():
    def robot():
        import mujoco

        spec = mujoco.MjSpec()
        spec.worldbody.add_body(name="massless").add_joint()
        return spec

    with pytest.raises(ConfigError, match=r"the model made by robot\(\) does not compile"):
        check_task(tiny_task(model=robot))


def test_a_model_function_that_raises_is_named_with_the_place():
    def robot():
        raise KeyError("leg")

    with pytest.raises(
        ConfigError, match=r"robot\(\) cannot be: it raised KeyError: 'leg' \(.*:\d"
    ):
        check_task(tiny_task(model=robot))


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
