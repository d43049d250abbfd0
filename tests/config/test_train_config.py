import dataclasses
import datetime
import enum
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tiny_task import tiny_task

from simtrain import RewardTermCfg, mdp
from simtrain.cli.parse import parse_flags
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.config.tree import as_plain, check_storable, overlay, resolved
from simtrain.errors import ConfigError
from simtrain.run.directory import read_config_file, write_config

TASKS = discover().tasks


def _config(name: str = "cartpole-balance") -> TrainConfig:
    return TrainConfig.of_task(name, TASKS[name].make())


def _through_yaml(plain):
    return yaml.safe_load(yaml.safe_dump(plain))


@pytest.mark.parametrize("name", TASKS)
def test_a_configuration_is_within_all_limits_and_comes_back_from_yaml(name):
    config = _config(name)
    config.check()
    assert overlay(_config(name), _through_yaml(as_plain(config))) == config


def test_overlay_leaves_the_default_as_it_is():
    default = _config()
    plain = as_plain(default)
    plain["env"]["rewards"]["upright"]["weight"] = 9.0
    assert overlay(default, plain).env.rewards["upright"].weight == 9.0
    assert default.env.rewards["upright"].weight == 1.0


def test_a_term_that_the_task_no_longer_has_is_named():
    plain = as_plain(_config())
    plain["env"]["rewards"]["fell"] = plain["env"]["rewards"]["upright"]
    with pytest.raises(TypeError, match="the task has no term 'fell'"):
        overlay(_config(), plain)


FLAGS = [
    ("--num_envs 32", lambda c: c.num_envs, 32),
    ("--gpu-ids None", lambda c: c.gpu_ids, None),
    ("--gpu-ids 0 1", lambda c: c.gpu_ids, (0, 1)),
    ("--env.rewards.upright.weight -2", lambda c: c.env.rewards["upright"].weight, -2.0),
    (
        "--env.events.reset-pole.position -1e-2 0",
        lambda c: c.env.events["reset_pole"].params["position"],
        (-0.01, 0.0),
    ),
    (
        "--env.rewards.upright.cart-joints hinge",
        lambda c: c.env.rewards["upright"].params["cart_joints"],
        "hinge",
    ),
    (
        "--env.observations.actor.velocities.joints slider hinge",
        lambda c: c.env.observations["actor"]["velocities"].params["joints"],
        ("slider", "hinge"),
    ),
    ("--env.sim.solver CG", lambda c: c.env.sim.solver, "CG"),
    ("--ppo.actor.hidden-dims 128 128", lambda c: c.ppo.actor.hidden_dims, (128, 128)),
    ("--env.model other.xml", lambda c: c.env.model, Path("other.xml")),
    ("--ppo.critic.obs-normalization False", lambda c: c.ppo.critic.obs_normalization, False),
    ("--ppo.learning-rate 3e-4", lambda c: c.ppo.learning_rate, 3e-4),
]


@pytest.mark.parametrize(("flags", "get", "value"), FLAGS, ids=[f[0] for f in FLAGS])
def test_a_flag_sets_a_typed_value_which_comes_back_from_yaml(flags, get, value):
    config = parse_flags("train", _config(), flags.split())
    given = get(config)
    assert given == value
    assert type(given) is type(value)
    assert overlay(_config(), _through_yaml(as_plain(config))) == config


@pytest.mark.parametrize(
    ("changes", "world_size", "iterations"),
    [
        ({"max_iterations": 7}, 2, 7),
        ({"total_env_steps": 1000}, 1, 10),
        ({"total_env_steps": 1001}, 2, 6),
    ],
)
def test_iterations_count_environment_steps_over_all_ranks(changes, world_size, iterations):
    config = dataclasses.replace(_config(), num_envs=25, num_steps_per_env=4, **changes)
    assert config.iterations(world_size) == iterations


class Gait(enum.Enum):
    """A parameter of a term."""

    TROT = "trot"


@pytest.mark.parametrize(
    ("value", "comes_back"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1.0, 2.0]]), ((1.0, 2.0),)),
        (torch.tensor(2.0), 2.0),
        ((Path("x"), 1), (Path("x"), 1)),
        ({"a": (Gait.TROT,)}, {"a": (Gait.TROT,)}),
        (mdp.is_alive, mdp.is_alive),
    ],
)
def test_parameters_come_back_from_yaml(value, comes_back):
    def config() -> TrainConfig:
        reward = RewardTermCfg(mdp.is_alive, 1.0, of_mine=value)
        return TrainConfig.of_task("mine", tiny_task(rewards={"mine": reward}))

    check_storable(config())
    again = overlay(config(), _through_yaml(as_plain(config())))
    assert again.env.rewards["mine"].params["of_mine"] == comes_back
    assert type(again.env.rewards["mine"].params["of_mine"]) is type(comes_back)


@pytest.mark.parametrize(
    "value",
    [slice(1), {1, 2}, b"x", datetime.date(2026, 1, 1), Decimal(1), 1j, torch.float32, object()],
)
def test_a_parameter_that_cannot_be_stored_is_refused_by_its_place(value):
    reward = RewardTermCfg(mdp.is_alive, 1.0, of_mine=({"deep": value},))
    config = TrainConfig.of_task("mine", tiny_task(rewards={"alive": reward}))
    with pytest.raises(ConfigError, match=r"--env\.rewards\.alive\.of-mine has .* cannot"):
        check_storable(config)


def test_parameters_that_config_yaml_stores_can_be_read_and_more_are_refused(tmp_path):
    def config(rows: int) -> TrainConfig:
        heights = np.random.default_rng(0).normal(size=(rows, 50))
        terms = {"alive": RewardTermCfg(mdp.is_alive, 1.0, of_mine={"heights": heights})}
        return TrainConfig.of_task("mine", tiny_task(rewards=terms))

    check_storable(config(200))
    write_config(tmp_path / "config.yaml", resolved(config(200)), ["cpu"])
    again = overlay(config(200), read_config_file(tmp_path)["config"])
    assert np.shape(again.env.rewards["alive"].params["of_mine"]["heights"]) == (200, 50)
    with pytest.raises(ConfigError, match=r"--env\.rewards\.alive\.of-mine.* has more than .* KiB"):
        check_storable(config(800))
