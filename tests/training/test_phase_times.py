"""Where the time of an iteration went: phases add up, and each has what happened in it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest
import torch
from tiny_task import tiny_env

from simtrain.algorithms import ppo as training_ppo
from simtrain.algorithms.ppo import PPO
from simtrain.env.env import Env
from simtrain.env.phase_timer import NO_TIMER, CpuTimer, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.metric_tags import PHASES, TAG, metric_tags
from simtrain.registry import discover
from simtrain.sim import EngineCfg
from simtrain.training.loop import Iteration, Trainer
from simtrain.training.phase_times import phase_seconds

STEPS = 5


def make_trainer(env: Env, timer: PhaseTimer, threads: int = 1) -> Trainer:
    rank = Rank(0, 0, 1, torch.device("cpu"), seed=0, threads=threads)
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, STEPS, rank)
    return Trainer(env, ppo, rank, timer)


class Clock:
    """A clock that only what a test says makes go on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def let_last(self, owner: object, method: str, seconds: float) -> None:
        """Let a method, or a function of a module, take that long during the test."""
        original = getattr(owner, method)

        def lasting(*args, **kwargs):
            self.now += seconds
            return original(*args, **kwargs)

        self._patch.setattr(owner, method, lasting)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def timed_by(clock: Clock) -> CpuTimer:
    timer = CpuTimer()
    timer._clock = clock
    return timer


def run(trainer: Trainer, iterations: int, clock: Clock | None = None, seconds: float = 0.0):
    """What was reported, `seconds` each."""
    found: list[Iteration] = []

    def report(iteration: Iteration) -> None:
        found.append(iteration)
        if clock is not None:
            clock.now += seconds

    trainer.run(iterations, report, lambda: False)
    return found


def test_phases_add_up_to_the_iteration_within_3_percent():
    env = Env(discover().find("cartpole-balance").make(), 64, EngineCfg(threads=1))
    trainer = make_trainer(env, CpuTimer())
    ends: list[float] = []

    def report(iteration: Iteration) -> None:
        ends.append(time.perf_counter())
        found.append(iteration)

    found: list[Iteration] = []
    trainer.run(12, report, lambda: False)
    timed = sum(sum(iteration.phases.values()) for iteration in found[1:])
    assert timed == pytest.approx(ends[-1] - ends[0], rel=0.03)


def test_each_phase_has_what_happens_in_it(clock):
    env = tiny_env(4)
    trainer = make_trainer(env, timed_by(clock))
    ppo = trainer.ppo
    for owner, method, seconds in (
        (ppo, "act", 1.0),
        (env.sim, "step", 2.0),
        (env.terminations, "compute", 3.0),
        (env.rewards, "compute", 4.0),
        (env.commands, "compute", 5.0),
        (env.observations, "compute", 6.0),
        (ppo, "process_env_step", 7.0),
        (ppo, "compute_returns", 8.0),
        (ppo, "_shuffle", 9.0),
        (training_ppo, "policy_losses", 10.0),
        (training_ppo, "value_loss", 20.0),
        (ppo._policy, "backward", 2.0),
        (ppo._value, "backward", 5.0),
        (ppo.optimizer, "step", 40.0),
        (env, "failures", 50.0),
    ):
        clock.let_last(owner, method, seconds)
    first, second = run(trainer, 2, clock, seconds=60.0)
    updates = ppo.num_learning_epochs * ppo.num_mini_batches
    expected = dict.fromkeys(PHASES, 0.0) | {
        "inference": STEPS * 1.0,
        "physics": STEPS * 2.0,
        "terminations": STEPS * 3.0,
        "rewards": STEPS * 4.0,
        "resets": STEPS * 5.0,
        "observations": STEPS * 6.0,
        "storage": STEPS * 7.0,
        "advantage": 8.0,
        "mini_batches": 9.0,
        "forward": updates * 30.0,
        "backward": updates * 7.0,
        "optimizer": updates * 40.0,
        "other": 50.0,
    }
    assert first.phases == expected
    assert second.phases == expected | {"logging": 60.0}
    assert {TAG + name: seconds for name, seconds in second.phases.items()}.items() <= (
        second.metrics.items()
    )


def test_waiting_for_the_value_beside_the_policy_is_part_of_the_backward_pass(clock, monkeypatch):
    trainer = make_trainer(tiny_env(4), timed_by(clock), threads=2)
    ppo = trainer.ppo
    policy_is_done = threading.Event()
    learn_policy, value_loss = ppo._learn_policy, training_ppo.value_loss

    def policy(batch):
        losses = learn_policy(batch)
        clock.now += 1.0
        policy_is_done.set()
        return losses

    def value(*args):
        assert policy_is_done.wait(20.0)
        policy_is_done.clear()
        clock.now += 10.0
        return value_loss(*args)

    monkeypatch.setattr(ppo, "_learn_policy", policy)
    monkeypatch.setattr(training_ppo, "value_loss", value)
    (iteration,) = run(trainer, 1)
    updates = ppo.num_learning_epochs * ppo.num_mini_batches
    assert iteration.phases["backward"] == updates * 11.0
    assert sum(iteration.phases.values()) == updates * 11.0


def test_evaluation_is_a_phase(clock):
    trainer = make_trainer(tiny_env(2), timed_by(clock))
    found: list[Iteration] = []

    def judge(iteration: Iteration) -> Iteration:
        clock.now += 3.0
        return iteration

    trainer.run(2, found.append, lambda: False, judge)
    assert found[1].phases["evaluation"] == 3.0


def test_without_a_timer_there_are_no_phases():
    (iteration,) = run(make_trainer(tiny_env(2), NO_TIMER), 1)
    assert iteration.phases == {}
    assert not [tag for tag in iteration.metrics if tag.startswith(TAG)]
    assert {"Perf/total_fps", "Perf/collection_time"} <= set(iteration.metrics)


def test_the_tags_of_phases_are_known_beforehand_if_they_are_timed():
    env = tiny_env(2)
    (iteration,) = run(make_trainer(env, CpuTimer()), 1)
    tags = metric_tags(env.cfg, overflow=False)
    assert {tag for tag in iteration.metrics if tag.startswith("Perf/")} <= set(tags)
    assert not [t for t in metric_tags(env.cfg, overflow=False, phase_times=False) if TAG in t]


@dataclass(frozen=True)
class SecondOfTwo(Rank):
    """A rank whose neighbour was in the collectives for these seconds."""

    of_neighbour: list[float] = field(default_factory=list)

    def all_gather(self, values):
        return torch.tensor([self.of_neighbour, values], dtype=torch.float64)


def test_who_comes_first_to_a_collective_waits_and_the_last_one_does_not():
    rank = SecondOfTwo(1, 1, 2, torch.device("cpu"), 0, 1, of_neighbour=[5.0, 1.0])
    intervals = [("physics", 7.0), ("all_reduce", 2.0), ("forward", 3.0), ("all_reduce", 9.0)]
    seconds = phase_seconds(intervals, rank)
    assert (seconds["all_reduce"], seconds["waiting"]) == (3.0, 8.0)
    assert sum(seconds.values()) == 21.0
