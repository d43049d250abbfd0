"""Rewards, terminations, events, curricula and sums over episodes on hand-made values."""

import pytest
import torch
from tiny_task import STEP_DT, at_step, idle, steps_lived, tiny_env, tiny_model, values

from simtrain import (
    CurriculumTermCfg,
    EventTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
    mdp,
)
from simtrain.errors import ConfigError


def test_a_reward_is_the_sum_of_weight_times_value_times_step_duration_and_summed_by_term():
    env = tiny_env(
        2,
        rewards={
            "good": RewardTermCfg(lambda env: torch.tensor([1, 2]), weight=3),
            "bad": RewardTermCfg(lambda env: torch.tensor([10.0, 0.0]).double(), weight=-0.5),
        },
        terminations={"end": TerminationTermCfg(at_step([3, 0]))},
    )
    rewards = idle(env, 2)[1]
    torch.testing.assert_close(rewards, torch.tensor([3.0 - 5.0, 6.0]) * STEP_DT)
    torch.testing.assert_close(
        env.rewards.episode_sums, torch.tensor([[6.0, -10.0], [12.0, 0.0]]) * STEP_DT
    )
    idle(env)
    torch.testing.assert_close(
        env.rewards.episode_sums, torch.tensor([[0.0, 0.0], [18.0, 0.0]]) * STEP_DT
    )


def test_a_curriculum_can_change_a_weight_and_is_called_with_the_environments_to_reset():
    masks = []

    def raise_weight(env, mask):
        masks.append(mask.tolist())
        if mask[0]:
            env.rewards.set_weight("alive", 4.0)
        return env.episode_length_buf.float()

    env = tiny_env(
        2,
        rewards={"alive": RewardTermCfg(values(1.0, 1.0), weight=1.0)},
        terminations={"end": TerminationTermCfg(at_step([1, 2]))},
        curricula={
            "harder": CurriculumTermCfg(raise_weight),
            "none": CurriculumTermCfg(lambda env, mask: None),
        },
    )
    env.rewards.set_weight("alive", 1.0)
    masks.clear()
    torch.testing.assert_close(idle(env)[1], torch.full((2,), STEP_DT))
    _, rewards, _, extras = idle(env)
    torch.testing.assert_close(rewards, torch.full((2,), 4.0 * STEP_DT))
    assert masks == [[True, False], [True, True]]
    # Environment 0 lived one step and 1 two, before they were reset.
    assert extras["log"]["Curriculum/harder"] == 1.5
    assert "Curriculum/none" not in extras["log"]


def test_an_episode_that_fails_and_times_out_at_once_has_failed():
    env = tiny_env(
        4,
        terminations={
            "time_out": TerminationTermCfg(at_step([1, 1, 0, 0]), time_out=True),
            "fell": TerminationTermCfg(at_step([1, 0, 1, 0])),
        },
    )
    _, _, dones, extras = idle(env)
    assert dones.tolist() == [True, True, True, False]
    assert extras["time_outs"].tolist() == [False, True, False, False]
    assert env.terminations.terminated.tolist() == [True, False, True, False]
    assert env.terminations.flags[0].tolist() == [True, True]


def test_an_episode_times_out_after_its_longest_duration_or_never():
    env = tiny_env(1, episode_length_s=0.06)
    assert [idle(env)[2].item() for _ in range(6)] == [False, False, True, False, False, True]
    env = tiny_env(1, terminations={})
    assert not any(idle(env)[2].item() for _ in range(12))


BOTH, FIRST, SECOND = [True, True], [True, False], [False, True]


@pytest.mark.parametrize(
    ("mode", "after_steps", "expected"),
    [
        ("startup", 0, {0: BOTH}),
        ("reset", 0, {0: BOTH, **dict.fromkeys((2, 4, 6, 8), SECOND), 10: BOTH}),
        ("reset", 5, {**dict.fromkeys((6, 8), SECOND), 10: BOTH}),
        ("step", 0, dict.fromkeys(range(1, 10), BOTH)),
        ("step", 5, dict.fromkeys(range(5, 10), BOTH)),
        # 0.05 s have passed at every third step; environment 1 never lives that long.
        ("interval", 0, dict.fromkeys((3, 6, 9), FIRST)),
        ("interval", 5, dict.fromkeys((6, 9), FIRST)),
    ],
)
def test_when_and_where_events_happen(mode, after_steps, expected):
    seen, step = [], 0
    event = EventTermCfg(
        lambda env, mask: seen.append((step, mask.tolist())),
        mode=mode,
        interval_range_s=(0.05, 0.05),
        after_steps=after_steps,
    )
    ends = {"end": TerminationTermCfg(at_step([0, 2]))}
    env = tiny_env(2, events={"it": event}, terminations=ends)
    assert mode in ("startup", "reset") or seen == []
    for step in range(1, 10):  # noqa: B007 - the event notes it
        idle(env)
    step = 10
    env.reset()
    assert [(at, mask) for at, mask in seen if any(mask)] == list(expected.items())


def test_intervals_are_drawn_for_each_environment_from_their_range():
    waits = torch.zeros(500)

    def push(env, mask):
        waits[mask & (waits == 0.0)] = env.episode_length_buf[0].float()

    event = EventTermCfg(push, mode="interval", interval_range_s=(0.1, 0.2))
    idle(tiny_env(500, terminations={}, events={"push": event}), 12)
    assert waits.unique().tolist() == [6.0, 7.0, 8.0, 9.0, 10.0]


class Follows:
    def __init__(self, env, goal):
        self.command = env.commands.terms[goal]


def breaks(env):
    raise ValueError("oh")


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (RewardTermCfg(mdp.flat_orientation_l2, weight=1.0), "a floating base is needed"),
        (RewardTermCfg(Follows, weight=1.0, goal="gaol"), "no command 'gaol'; there are none"),
        (RewardTermCfg(steps_lived, weight=1.0), r"has shape \(2, 1\); it must be"),
    ],
)
def test_what_a_term_needs_and_the_task_does_not_have_is_told_with_the_term(reward, says):
    def fixed():
        spec = tiny_model()
        spec.delete(spec.joint("root"))
        spec.delete(spec.key("bent"))
        return spec

    with pytest.raises(ConfigError, match=f"rewards.odd:? .*{says}"):
        idle(tiny_env(model=fixed, rewards={"odd": reward}))


def test_an_exception_in_a_term_names_the_term():
    env = tiny_env(rewards={"odd": RewardTermCfg(breaks, weight=1.0)})
    with pytest.raises(ValueError, match="oh") as caught:
        idle(env)
    assert caught.value.__notes__ == ["in the term rewards.odd"]


@pytest.mark.parametrize("reward", [lambda env: env.sim.data.qpos, lambda env: env.scene["robot"]])
def test_attributes_of_other_environments_are_answered_with_what_to_write(reward):
    env = tiny_env(rewards={"odd": RewardTermCfg(reward, weight=1.0)})
    with pytest.raises(AttributeError, match=r"no attribute '(data|scene)'") as caught:
        idle(env)
    assert 'env.bind("qpos")' in caught.value.__notes__[1]


def test_terms_share_a_value_until_the_state_changes():
    calls = []

    def shared(env):
        return env.once("lived", lambda: calls.append("made") or steps_lived(env))

    def reward(env):
        calls.append("reward")
        return shared(env)[:, 0]

    env = tiny_env(
        2,
        rewards={
            "a": RewardTermCfg(reward, weight=1.0),
            "b": RewardTermCfg(lambda env: reward(env), weight=1.0),
        },
        observations={"actor": {"c": ObservationTermCfg(shared)}},
        events={"d": EventTermCfg(lambda env, mask: shared(env), mode="interval")},
    )
    calls.clear()
    obs, rewards, _, _ = idle(env, 2)
    step = ["reward", "made", "reward", "made", "made"]
    assert calls == step + step
    torch.testing.assert_close(rewards, torch.full((2,), 4.0) * STEP_DT)
    torch.testing.assert_close(obs["actor"], torch.full((2, 1), 2.0))


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
