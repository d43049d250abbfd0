import dataclasses

import pytest
import yaml
from tiny_task import tiny_task

from simtrain import (
    CriticCfg,
    EventTermCfg,
    ObservationTermCfg,
    PpoCfg,
    TaskCfg,
    UniformNoiseCfg,
    mdp,
)
from simtrain.cli.parse import parse_flags
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.config.tree import as_plain, overlay
from simtrain.errors import ConfigError

TASKS = discover().tasks


def _config(name: str = "cartpole-balance") -> TrainConfig:
    return TrainConfig.of_task(name, TASKS[name].make())


def _parse(*flags: str, name: str = "cartpole-balance") -> TrainConfig:
    return parse_flags("train", _config(name), flags)


def _through_yaml(plain):
    return yaml.safe_load(yaml.safe_dump(plain))


@pytest.mark.parametrize("name", TASKS)
def test_a_configuration_comes_back_from_yaml(name):
    config = _config(name)
    assert overlay(_config(name), _through_yaml(as_plain(config))) == config


def test_changes_come_back_from_yaml():
    config = _parse(
        "--seed", "7", "--run-name", "wide", "--gpu-ids", "0", "1", "--log-root", "elsewhere",
        "--total-env-steps", "1000", "--env.rewards.upright.weight", "2.5",
        "--env.events.reset-pole.position", "-0.2", "0.2", "--env.sim.integrator", "RK4",
        "--ppo.actor.hidden-dims", "32", "16", "--ppo.learning-rate", "1e-5",
        "--env.model", "other.xml", "--eval-interval", "5", "--until", "Loss/kl<1",
    )  # fmt: skip
    assert config != _config()
    assert overlay(_config(), _through_yaml(as_plain(config))) == config


def test_noise_clip_scale_and_model_functions_come_back_from_yaml():
    term = ObservationTermCfg(
        mdp.joint_pos,
        joints=("root", "left_.*"),
        noise=UniformNoiseCfg(-0.1, 0.1),
        clip=(-1.0, 1.0),
        scale=(1.0, 2.0),
        history_length=3,
    )
    task = tiny_task(observations={"actor": {"position": term}})
    changed = overlay(task, _through_yaml(as_plain(task)))
    assert changed == task
    assert changed.observations["actor"]["position"].noise == UniformNoiseCfg(-0.1, 0.1)
    assert changed.model is task.model


def test_overlay_leaves_the_default_as_it_is():
    default = _config()
    plain = as_plain(default)
    plain["env"]["rewards"]["upright"]["weight"] = 9.0
    assert overlay(default, plain).env.rewards["upright"].weight == 9.0
    assert default.env.rewards["upright"].weight == 1.0


FLAGS = [
    (["--num-envs", "32"], lambda c: c.num_envs, 32),
    (["--num_envs", "32"], lambda c: c.num_envs, 32),
    (["--gpu-ids", "None"], lambda c: c.gpu_ids, None),
    (["--gpu-ids", "0", "1"], lambda c: c.gpu_ids, (0, 1)),
    (["--total-env-steps", "100000"], lambda c: c.total_env_steps, 100_000),
    (["--env.rewards.upright.weight", "2.0"], lambda c: c.env.rewards["upright"].weight, 2.0),
    (["--env.rewards.upright.weight", "-2"], lambda c: c.env.rewards["upright"].weight, -2.0),
    (
        ["--env.events.reset_pole.position", "-0.1", "0.1"],
        lambda c: c.env.events["reset_pole"].params["position"],
        (-0.1, 0.1),
    ),
    (
        ["--env.events.reset-pole.position", "-1e-2", "0"],
        lambda c: c.env.events["reset_pole"].params["position"],
        (-0.01, 0.0),
    ),
    (
        ["--env.rewards.upright.cart-joints", "hinge"],
        lambda c: c.env.rewards["upright"].params["cart_joints"],
        "hinge",
    ),
    (
        ["--env.observations.actor.velocities.joints", "slider", "hinge"],
        lambda c: c.env.observations["actor"]["velocities"].params["joints"],
        ("slider", "hinge"),
    ),
    (
        ["--env.observations.actor.pole-angle.scale", "0.5"],
        lambda c: c.env.observations["actor"]["pole_angle"].scale,
        0.5,
    ),
    (
        ["--env.observations.actor.pole-angle.history-length", "3"],
        lambda c: c.env.observations["actor"]["pole_angle"].history_length,
        3,
    ),
    (["--env.actions.force.scale", "0.5"], lambda c: c.env.actions["force"].scale, 0.5),
    (["--env.timestep", "0.005"], lambda c: c.env.timestep, 0.005),
    (["--env.keyframe", "down"], lambda c: c.env.keyframe, "down"),
    (["--env.sim.solver", "CG"], lambda c: c.env.sim.solver, "CG"),
    (["--ppo.actor.hidden-dims", "128", "128"], lambda c: c.ppo.actor.hidden_dims, (128, 128)),
    (["--ppo.critic.obs-normalization", "False"], lambda c: c.ppo.critic.obs_normalization, False),
    (["--ppo.learning-rate", "3e-4"], lambda c: c.ppo.learning_rate, 3e-4),
    (["--ppo.schedule", "fixed"], lambda c: c.ppo.schedule, "fixed"),
    (["--eval-interval", "5"], lambda c: c.eval_interval, 5),
    (["--eval-device", "cuda:1"], lambda c: c.eval_device, "cuda:1"),
    (["--until", "fell<0.1"], lambda c: c.until, "fell<0.1"),
]


@pytest.mark.parametrize(("flags", "get", "value"), FLAGS, ids=[f[0][0] for f in FLAGS])
def test_a_flag_sets_a_typed_value(flags, get, value):
    given = get(_parse(*flags))
    assert given == value
    assert type(given) is type(value)


def test_flags_leave_everything_else_and_the_default_as_it_was():
    config = _parse("--env.events.reset-pole.position", "-0.1", "0.1")
    config.env.events["reset_pole"].params["position"] = (-0.034, 0.034)
    assert config == _config()


def test_a_terms_function_survives_the_command_line():
    term = _parse("--env.rewards.upright.weight", "2.0").env.rewards["upright"]
    assert term.func is _config().env.rewards["upright"].func or term.func.__name__ == "upright"
    assert isinstance(_parse().env.events["reset_cart"], EventTermCfg)


WRONG = [
    (["--num-env", "8"], r"there is no flag --num-env \(did you mean '--num-envs'"),
    (["--env.rewards.upright.wait", "8"], r"\(did you mean '--env\.rewards\.upright\.weight'"),
    (["--env.rewards.uprigt.weight=8"], r"no flag --env\.rewards\.uprigt\.weight \(did you mean"),
    (["--num-envs", "many"], "--num-envs is 'many'; it must be a whole number"),
    (["--num-envs", "1.5"], "--num-envs is '1.5'; it must be a whole"),
    (["--num-envs"], "--num-envs"),
    (["--engine", "warpp"], "--engine is 'warpp'; it must be one of "),
    (["--ppo.schedule", "cosine"], "--ppo.schedule is 'cosine'; it must be one of adaptive, fixed"),
    (["--ppo.learning-rate", "fast"], "--ppo.learning-rate is 'fast'; it must be a number"),
    (["stray"], "stray"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG, ids=[" ".join(w[0]) for w in WRONG])
def test_a_wrong_flag_is_told_in_one_line(flags, message):
    with pytest.raises(ConfigError, match=message) as error:
        _parse(*flags)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "world_size", "iterations"),
    [
        ({"max_iterations": 7}, 2, 7),
        ({"total_env_steps": 1000}, 1, 10),
        ({"total_env_steps": 1001}, 1, 11),
        ({"total_env_steps": 1001}, 2, 6),
        ({"total_env_steps": 1}, 4, 1),
    ],
)
def test_iterations_count_environment_steps_over_all_ranks(changes, world_size, iterations):
    config = dataclasses.replace(_config(), num_envs=25, num_steps_per_env=4, **changes)
    assert config.iterations(world_size) == iterations


IMPOSSIBLE = [
    (["--num-envs", "0"], "--num-envs is 0; it must be 1 or more"),
    (["--num-envs", "-4"], "--num-envs is -4; it must be 1 or more"),
    (["--num-steps-per-env", "0"], "--num-steps-per-env is 0"),
    (["--max-iterations", "-1"], "--max-iterations is -1"),
    (["--total-env-steps", "0"], "--total-env-steps is 0"),
    (["--save-interval", "0"], "--save-interval is 0"),
    (["--cpu-threads", "0"], "--cpu-threads is 0"),
    (["--seed", "-1"], "--seed is -1; it must be 0 or more"),
    (["--run-name", "a/b"], "--run-name is 'a/b'; it must not contain '/'"),
    (["--ppo.num-mini-batches", "0"], "--ppo.num-mini-batches is 0"),
    (["--ppo.num-learning-epochs", "-2"], "--ppo.num-learning-epochs is -2"),
    (["--ppo.gamma", "1.5"], "--ppo.gamma is 1.5; it must be 1 or less"),
    (["--ppo.lam", "nan"], "--ppo.lam is nan"),
    (["--ppo.learning-rate", "-1e-3"], "--ppo.learning-rate is -0.001; it must be 1e-12 or more"),
    (["--ppo.clip-param", "0"], "--ppo.clip-param is 0.0"),
    (["--ppo.actor.init-std", "0"], "--ppo.actor.init-std is 0.0; it must be 1e-12 or more"),
    (["--ppo.actor.std-range", "0", "1"], "--ppo.actor.std-range is 0.0; it must be 1e-12 or more"),
    (["--ppo.actor.std-range", "0.1", "0.5"], r"contain --ppo.actor.init-std, 1.0"),
    (["--ppo.actor.hidden-dims", "64", "0"], "--ppo.actor.hidden-dims is 0; it must be 1 or more"),
    (["--ppo.actor.obs-groups", "camera"], "names 'camera'; the task has actor"),
    (
        ["--num-envs", "1", "--num-steps-per-env", "3"],
        "4 mini-batches .* cannot be made of 3 samples",
    ),
]


@pytest.mark.parametrize(("flags", "message"), IMPOSSIBLE, ids=[" ".join(w[0]) for w in IMPOSSIBLE])
def test_an_impossible_value_is_told_with_its_flag(flags, message):
    config = _parse(*flags)
    with pytest.raises(ConfigError, match=message) as error:
        config.check()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sim": None}, "'mine': TaskCfg.sim is None, not SimCfg"),
        ({"ppo": PpoCfg(symmetry=None)}, "'mine': TaskCfg.ppo.symmetry is None, not SymmetryCfg"),
        ({"ppo": PpoCfg(actor=CriticCfg())}, r"TaskCfg.ppo.actor is CriticCfg\(.*, not ActorCfg"),
    ],
)
def test_something_else_in_the_place_of_a_part_is_told_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig.of_task("mine", dataclasses.replace(tiny_task(), **change))


def test_a_task_gives_its_own_defaults():
    task = TaskCfg(tiny_task().model, 0.01, 1, 1.0, num_envs=3, num_steps_per_env=5)
    config = TrainConfig.of_task("mine", task)
    assert (config.num_envs, config.num_steps_per_env, config.task) == (3, 5, "mine")
    assert config.ppo is task.ppo
