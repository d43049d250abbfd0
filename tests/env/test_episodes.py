"""Sums over finished episodes."""

import pytest
import torch
from tiny_task import STEP_DT, at_step, idle, tiny_env, values

from simtrain import RewardTermCfg, TerminationTermCfg


@pytest.fixture
def env():
    """Environment 0 fails after two steps, 1 is cut after three; ten steps are 0.2 s."""
    return tiny_env(
        2,
        rewards={
            "a": RewardTermCfg(values(1.0, 2.0), weight=1.0),
            "b": RewardTermCfg(values(1.0, 1.0), weight=-0.5),
        },
        terminations={
            "fell": TerminationTermCfg(at_step([2, 0])),
            "time_out": TerminationTermCfg(at_step([0, 3]), time_out=True),
        },
    )


def _take(env):
    return dict(zip(env.episodes.names, env.episodes.take().tolist(), strict=True))


def test_sums_over_finished_episodes_are_counted_once(env):
    counts = []
    for _ in range(4):  # episodes of environment 0: two, of 2 steps; of 1: one, of 3
        idle(env)
        counts.append(float(env.episodes.finished_envs()))
    assert counts == [0, 1, 2, 2]
    assert _take(env) == pytest.approx(
        {
            "count": 3,
            "return": (2 * 2 * 0.5 + 3 * 1.5) * STEP_DT,
            "length": 2 + 2 + 3,
            # The weighted sum over the longest episode's seconds.
            "Episode_Reward/a": (4 * 1.0 + 3 * 2.0) * STEP_DT / 0.2,
            "Episode_Reward/b": 7 * -0.5 * STEP_DT / 0.2,
            "Episode_Termination/fell": 2,
            "Episode_Termination/time_out": 1,
        }
    )
    assert set(_take(env).values()) == {0.0}


def test_the_log_is_the_mean_over_each_environments_latest_episode(env):
    log = idle(env)[3]["log"]
    assert set(log) == set(env.episodes.names) - {"count", "return", "length"}
    assert all(value == 0.0 for value in log.values())
    log = idle(env, 2)[3]["log"]
    assert log["Episode_Termination/fell"] == 0.5
    assert log["Episode_Reward/a"] == pytest.approx((2.0 + 6.0) / 2 * STEP_DT / 0.2)


def test_an_episode_that_is_not_whole_does_not_count(env):
    env.episode_length_buf = torch.tensor([1, 0])
    idle(env)
    assert _take(env)["count"] == 0
    idle(env, 2)  # environment 0 lives two steps, from its start; 1 three
    sums = _take(env)
    assert (sums["count"], sums["length"]) == (2, 2 + 3)
    idle(env)
    env.reset()  # breaks off both
    idle(env, 2)
    sums = _take(env)
    assert (sums["count"], sums["length"]) == (1, 2)
