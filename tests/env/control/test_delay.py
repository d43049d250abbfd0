"""What is observed and what is done comes late, by lags of each environment and term."""

from itertools import pairwise

import pytest
import torch
from tiny_task import at_step, idle, steps_lived, tiny_env, tiny_model

from simtrain import (
    JointEffortActionCfg,
    JointPositionActionCfg,
    ObservationTermCfg,
    TerminationTermCfg,
)

NEVER = {"never": TerminationTermCfg(at_step([0]))}


def _observing(num_envs=1, terminations=NEVER, **terms):
    return tiny_env(num_envs, observations={"actor": terms}, terminations=terminations)


def _seen(env, steps):
    """What the group shows at the start and after each step, ``(steps + 1, envs, ...)``."""
    return torch.stack(
        [env.reset()["actor"].clone(), *(idle(env)[0]["actor"].clone() for _ in range(steps))]
    )


def _lived(min_lag, max_lag, **more):
    return ObservationTermCfg(steps_lived, delay_min_lag=min_lag, delay_max_lag=max_lag, **more)


def test_an_observation_is_that_of_so_many_steps_ago_but_of_this_episode():
    ends = {"end": TerminationTermCfg(at_step([3, 0]))}
    env = _observing(2, ends, late=_lived(2, 2), now=ObservationTermCfg(steps_lived))
    ended, other = _seen(env, 5).unbind(dim=1)
    assert ended.T.tolist() == [[0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 1, 2]]
    assert other.T.tolist() == [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]


def test_what_is_delayed_is_clipped_and_scaled_and_has_its_history():
    late = _lived(1, 1, scale=10.0, clip=(0.0, 3.0), history_length=2)
    seen = _seen(_observing(late=late), 5)
    assert seen[:, 0].tolist() == [[0, 0], [0, 0], [0, 10], [10, 20], [20, 30], [30, 30]]


def test_lags_are_drawn_for_each_environment_and_held_for_an_episode():
    env = _observing(256, late=_lived(1, 3, delay_hold_prob=1.0))
    lags = torch.arange(9.0).view(-1, 1) - _seen(env, 8)[:, :, 0]
    held = lags[3:]  # until then there is nothing as old as that
    assert torch.equal(held, held[:1].expand_as(held))
    assert set(held[0].tolist()) == {1.0, 2.0, 3.0}
    again = torch.arange(9.0).view(-1, 1) - _seen(env, 8)[:, :, 0]
    assert not torch.equal(again[-1], held[-1])


def test_lags_may_be_drawn_anew_at_every_step_or_from_time_to_time():
    def changes(**more):
        seen = _seen(_observing(256, late=_lived(0, 3, **more)), 12)[:, :, 0]
        lags = torch.arange(13.0).view(-1, 1) - seen
        return [bool((a != b).any()) for a, b in pairwise(lags[3:])]

    assert all(changes())
    every_fourth = changes(delay_update_period=4)
    assert every_fourth == [step % 4 == 0 for step in range(4, 13)]
    half = _seen(_observing(4096, late=_lived(0, 1, delay_hold_prob=0.5)), 3)[:, :, 0]
    # Of those that draw anew, half draw the other lag.
    assert ((3.0 - half[3]) != (2.0 - half[2])).float().mean() == pytest.approx(0.25, abs=0.03)


def test_terms_with_equal_delays_come_together_and_others_by_lags_of_their_own():
    held = {"delay_hold_prob": 1.0}
    env = _observing(512, a=_lived(0, 1, **held), b=_lived(0, 1), c=_lived(0, 1, **held))
    a, b, c = _seen(env, 4)[-1].T
    assert torch.equal(a, c)
    assert len(set(zip(a.tolist(), b.tolist(), strict=True))) == 4


@pytest.mark.parametrize(("lag", "pushes"), [(0, 2), (1, 2), (3, 1)])
def test_an_action_takes_effect_so_many_physics_steps_later(lag, pushes):
    push = JointEffortActionCfg("left_slide", delay_min_lag=lag, delay_max_lag=lag)
    env = tiny_env(1, actions={"push": push}, terminations=NEVER)
    env.step(torch.ones(1, 1))
    env.step(torch.zeros(1, 1))
    # 1 kg, and two physics steps of 0.01 s in each of these.
    assert env.bind("qvel")[0, 6] == pytest.approx(0.01 * pushes, abs=1e-6)


def test_until_the_first_action_comes_actuators_hold_the_initial_state():
    turn = JointPositionActionCfg("left_hinge", delay_min_lag=4, delay_max_lag=4)
    env = tiny_env(1, actions={"turn": turn}, terminations=NEVER, keyframe="bent")
    for expected in (0.2, 0.2, 1.2):
        env.step(torch.ones(1, 1))
        assert env.bind("ctrl")[0, 1] == pytest.approx(expected)


def test_with_a_delay_too_servos_without_actions_hold_the_keyframes_targets():
    def model():
        spec = tiny_model()
        spec.keys[0].ctrl = [0.0, 0.7, 0.0, 0.0]
        return spec

    push = JointEffortActionCfg("left_slide", delay_max_lag=2, delay_hold_prob=1.0)
    env = tiny_env(2, model=model, keyframe="bent", actions={"push": push})
    idle(env, 2)
    assert env.bind("ctrl")[:, 1].tolist() == pytest.approx([0.7, 0.7])
    assert env.held_joints == {"left_hinge": pytest.approx(0.7)}


def test_without_delays_physics_is_one_call_and_targets_are_ctrl(monkeypatch):
    calls = []
    env = tiny_env(1)
    step = env.sim.step
    monkeypatch.setattr(env.sim, "step", lambda *a, **k: (calls.append(a), step(*a, **k)))
    env.step(torch.ones(1, 1))
    assert calls == [(2,)]
    assert not [name for name in env.state() if "delay" in name or "targets" in name]
