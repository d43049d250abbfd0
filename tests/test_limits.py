"""Numbers out of their bounds are told by the flag, the value and what is allowed."""

from __future__ import annotations

import pytest

from simtrain.cli.parse import parse_flags
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.env.model import check_task
from simtrain.errors import ConfigError

TASKS = discover().tasks
REFUSED = [
    ("--num-envs 1000000000000", "--num-envs is 1000000000000; it must be 16777216 or less"),
    ("--max-iterations " + "9" * 400, "--max-iterations is a number of more than 30 digits; it"),
    ("--ppo.actor.hidden-dims 1000000000", "hidden-dims is 1000000000; it must be 65536 or less"),
    ("--ppo.clip-param inf", "--ppo.clip-param is inf; it must be a finite number"),
    ("--env.timestep 1e-300", "--env.timestep is 1e-300; it must be 1e-06 or more"),
    ("--env.episode-length-s 1e300", r"--env.episode-length-s is 1e\+300; it must be 10000000 or"),
    ("--env.decimation 1000000000", "--env.decimation is 1000000000; it must be 10000 or less"),
    ("--env.actions.slide.clip 1 -1", "slide.clip is 1.0 -1.0; the first must not be greater"),
    ("--env.rewards.upright.weight 1e300", r"upright.weight is 1e\+300; it must be 3e\+38 or less"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=[flags[:40] for flags, _ in REFUSED])
def test_a_number_that_no_training_has_is_refused(flags, message):
    default = TrainConfig.of_task("cartpole-balance", TASKS["cartpole-balance"].make())
    if "--env.actions" in flags:
        (name,) = default.env.actions
        flags, message = (text.replace("slide", name) for text in (flags, message))
    config = parse_flags("train", default, flags.split())
    with pytest.raises(ConfigError, match=message):
        config.check()


@pytest.mark.parametrize("name", TASKS)
def test_the_tasks_that_ship_are_within_all_bounds(name):
    TrainConfig.of_task(name, TASKS[name].make()).check()


def test_a_terrain_of_too_many_nodes_is_refused():
    task = TASKS["go1-velocity-rough"].make()
    task.terrain.num_levels = task.terrain.num_columns = 1000
    with pytest.raises(ConfigError, match="nodes, and 16,777,216 are the most; use fewer tiles"):
        check_task(task)
