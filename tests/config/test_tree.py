import dataclasses

from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.config.tree import (
    DECISIVE,
    continued,
    differences,
    resolved,
)

TASK = "cartpole-balance"


def default() -> TrainConfig:
    return default_config(TASK)


def trained() -> TrainConfig:
    """The configuration of a run with flags of every kind."""
    config = default()
    config.num_envs, config.seed, config.save_interval = 7, 3, 5
    config.resume, config.run_name = "latest", "old"
    config.ppo.actor.hidden_dims = (16, 8)
    config.env.rewards["upright"].weight = 2.5
    return config


def test_without_flags_a_resumed_run_has_those_of_the_run():
    config = continued(default(), resolved(default()), resolved(trained()))
    assert (config.num_envs, config.seed, config.save_interval) == (7, 3, 5)
    assert config.ppo.actor.hidden_dims == (16, 8)
    assert config.env.rewards["upright"].weight == 2.5
    assert config.env.rewards["upright"].func.__name__ == "upright"
    assert (config.resume, config.run_name) == (None, "")
    assert differences(resolved(trained()), resolved(config)) == {}


def test_what_was_changed_in_the_task_since_is_seen():
    now = default()
    now.env.rewards["upright"].params["pole_joints"] = ".*"
    now.env.episode_length_s = 7.0
    config = continued(now, resolved(default()), resolved(trained()))
    assert config.env.rewards["upright"].weight == 2.5
    assert differences(resolved(trained()), resolved(config)) == {
        "--env.episode-length-s": f"{default().env.episode_length_s} in the run, 7.0 now",
        "--env.rewards.upright.pole-joints": "'hinge' in the run, '.*' now",
    }


def test_a_term_that_came_or_went_is_a_difference():
    now = default()
    now.env.rewards["new"] = now.env.rewards.pop("upright")
    config = continued(now, resolved(default()), resolved(trained()))
    found = differences(resolved(trained()), resolved(config))
    assert found["--env.rewards.upright.weight"] == "2.5 in the run, nothing now"
    assert found["--env.rewards.new.weight"] == "nothing in the run, 1.0 now"


def test_how_long_where_and_what_is_shown_may_change_freely():
    free = {"max_iterations": 1, "gpu_ids": None, "cpu_threads": 4, "save_interval": 6}
    free |= {"logger": "none", "log_root": "elsewhere"}
    before, after = resolved(default()), resolved(dataclasses.replace(default(), **free))
    assert differences(before, after) == {}
    assert not set(free) & set(DECISIVE)


def test_what_decides_the_results_may_not():
    for name in DECISIVE:
        before, after = resolved(default()), resolved(default())
        after[name] = "other"
        assert differences(before, after), name
