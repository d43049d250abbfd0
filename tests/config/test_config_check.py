"""What a configuration may not be is told by its flag, its value and what is allowed."""

import dataclasses

import numpy as np
import pytest
from tiny_task import tiny_task

from simtrain import (
    CriticCfg,
    JointPositionActionCfg,
    MetricTermCfg,
    ObservationTermCfg,
    PpoCfg,
    RewardTermCfg,
    SimCfg,
)
from simtrain.cli.parse import parse_flags
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.env.model import check_task
from simtrain.errors import ConfigError
from simtrain.limits import Count, check, check_value

TASKS = discover().tasks
REFUSED = [
    ("--num-envs 1000000000000", "--num-envs is 1000000000000; it must be 16777216 or less"),
    ("--max-iterations " + "9" * 400, "--max-iterations is a number of more than 30 digits; it"),
    ("--gpu-ids 0 -1", "--gpu-ids is -1; it must be 0 or more"),
    ("--ppo.clip-param inf", "--ppo.clip-param is inf; it must be a finite number"),
    ("--ppo.actor.std-range 0 1", "--ppo.actor.std-range is 0.0; it must be 1e-12 or more"),
    ("--ppo.actor.hidden-dims", "--ppo.actor.hidden-dims needs one or more values"),
    ("--ppo.actor.std-range 0.1 0.5", "contain --ppo.actor.init-std, 1.0"),
    ("--ppo.actor.obs-groups camera", "names 'camera'; the task has actor"),
    ("--num-envs 1 --num-steps-per-env 3", "4 mini-batches .* cannot be made of 3 samples"),
    ("--env.episode-length-s 1e300", r"--env.episode-length-s is 1e\+300; it must be 10000000 or"),
    ("--env.actions.force.clip 1 -1", "force.clip is 1.0 -1.0; the first must not be greater"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=[flags[:40] for flags, _ in REFUSED])
def test_an_impossible_value_is_told_with_its_flag(flags, message):
    default = TrainConfig.of_task("cartpole-balance", TASKS["cartpole-balance"].make())
    with pytest.raises(ConfigError, match=message) as error:
        parse_flags("train", default, flags.split()).check()
    assert "\n" not in str(error.value)


def alive(env):
    """Like a term."""


TASK_MISTAKES = [
    ({"decimation": 1.5}, r"--env\.decimation is 1\.5; it must be a whole number"),
    ({"decimation": True}, r"--env\.decimation is True; it must be a whole number"),
    ({"sim": None}, r"'mine': --env\.sim is None; it must be a SimCfg"),
    ({"sim": SimCfg(max_contacts=-5)}, r"--env\.sim\.max-contacts is -5; it must be 1 or more"),
    ({"ppo": PpoCfg(actor=CriticCfg())}, r"--env\.ppo\.actor is CriticCfg\(.* a ActorCfg"),
    (
        {"metrics": {"m": MetricTermCfg(alive, reduce="min")}},
        r"--env\.metrics\.m\.reduce is 'min' \(did you mean 'mean'\?\); it must be mean, last",
    ),
    (
        {"rewards": {"r": RewardTermCfg(alive, 1.0, std=float("inf"))}},
        r"--env\.rewards\.r\.std is inf; it must be a finite number",
    ),
    (
        {"actions": {"a": JointPositionActionCfg(joints=".*", rate_limit={"hip": -1.0})}},
        r"--env\.actions\.a\.rate-limit\.hip is -1\.0; it must be 1e-09 or more",
    ),
    (
        {"observations": {"actor": {"o": ObservationTermCfg(alive, history_length=-1)}}},
        r"--env\.observations\.actor\.o\.history-length is -1; it must be 0 or more",
    ),
]


@pytest.mark.parametrize(("change", "message"), TASK_MISTAKES, ids=[m for _, m in TASK_MISTAKES])
def test_a_mistake_in_a_declaration_is_told_by_its_flag(change, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig.of_task("mine", dataclasses.replace(tiny_task(), **change))


def test_a_metric_may_not_be_called_as_one_of_evaluation():
    task = dataclasses.replace(tiny_task(), metrics={"mean_return": MetricTermCfg(alive)})
    with pytest.raises(ConfigError, match="a metric of the task is called 'mean_return', like one"):
        TrainConfig.of_task("mine", task).check()


def test_scalars_of_numpy_are_numbers():
    check(dataclasses.replace(tiny_task(), timestep=np.float32(0.01), decimation=np.int64(2)))


def test_an_alternative_has_its_own_limits():
    check_value(None, Count | None, "keep_checkpoints")
    with pytest.raises(ConfigError, match="--keep-checkpoints is 0; it must be 1 or more"):
        check_value(0, Count | None, "keep_checkpoints")


def test_a_terrain_of_too_many_nodes_is_refused():
    task = TASKS["go1-velocity-rough"].make()
    task.terrain.num_levels = task.terrain.num_columns = 1000
    with pytest.raises(ConfigError, match="nodes; the maximum is 16,777,216; use fewer tiles"):
        check_task(task)
