"""Where the time of an iteration goes: phases add up, and each has what happens in it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace

import torch
from rich.console import Console
from tiny_training import make_context, run_for, tiny_config, tiny_trainer

from simtrain import RewardTermCfg, TerminationTermCfg
from simtrain.launch.phase_timer import NO_TIMER, CpuTimer
from simtrain.launch.rank import Rank
from simtrain.run.metric_tags import PHASES, TAG
from simtrain.training.features import Feature, Iteration
from simtrain.training.features.conditions import metric_tags
from simtrain.training.features.timing import Timing, phase_table
from simtrain.training.loop import phase_seconds, train


class Clock:
    """A clock that goes on only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def lasting(self, seconds: float):
        """A term that takes so long, and gives zeros."""

        def term(env):
            self.now += seconds
            return torch.zeros(env.num_envs)

        return term


class Lasting(Feature):
    """A feature that takes some seconds."""

    def __init__(self, clock: Clock, phase: str, seconds: float) -> None:
        self.phase = phase
        self._clock, self._seconds = clock, seconds

    def after_iteration(self, iteration: Iteration) -> None:
        self._clock.now += self._seconds


def test_each_phase_has_what_happens_in_it():
    clock = Clock()
    config = tiny_config(
        rewards={"slow": RewardTermCfg(clock.lasting(4.0), 1.0)},
        terminations={"slow": TerminationTermCfg(lambda env: clock.lasting(3.0)(env) > 0.0)},
    )
    trainer = tiny_trainer(config, CpuTimer(clock))
    features = [Lasting(clock, "evaluation", 50.0), Lasting(clock, "saving", 60.0)]
    first, second = run_for(trainer, 2, *features)
    steps = config.num_steps_per_env
    expected = dict.fromkeys(PHASES, 0.0) | {"terminations": 3.0 * steps, "rewards": 4.0 * steps}
    assert first.phases == expected
    assert second.phases == expected | {"evaluation": 50.0, "saving": 60.0}
    tags = {TAG + name: seconds for name, seconds in second.phases.items()}
    assert tags.items() <= second.metrics.items()
    assert tags.keys() <= set(metric_tags(config))
    assert not [t for t in metric_tags(replace(config, phase_times=False)) if TAG in t]


def test_the_means_are_over_iterations_and_the_end(tmp_path):
    clock = Clock()
    trainer = tiny_trainer(tiny_config(), CpuTimer(clock))

    class AtTheEnd(Feature):
        def __exit__(self, *exception: object) -> None:
            trainer.timer.begin("saving")
            clock.now += 8.0

    timing = Timing(make_context(tmp_path), trainer)
    train(trainer, [timing, Lasting(clock, "logging", 3.0), AtTheEnd()], 4, lambda: False)
    assert (timing.phases["logging"], timing.phases["saving"]) == (3.0, 2.0)


def test_without_a_timer_there_are_no_phases(tmp_path):
    trainer = tiny_trainer(timer=NO_TIMER)
    timing = Timing(make_context(tmp_path), trainer)
    (iteration,) = run_for(trainer, 1, timing)
    assert iteration.phases == timing.phases == {}
    assert not [tag for tag in iteration.metrics if tag.startswith(TAG)]


def test_the_table_shows_milliseconds_and_shares_of_phases_and_their_groups():
    file = io.StringIO()
    seconds = {"physics": 0.5, "rewards": 0.25, "forward": 0.2, "saving": 0.05, "waiting": 0.0}
    Console(file=file, width=80).print(phase_table(seconds))
    rows = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert rows == [
        "where the time went ms share",
        "rollout 750.00 75.0 %",
        "physics 500.00 50.0 %",
        "rewards 250.00 25.0 %",
        "update 200.00 20.0 %",
        "forward 200.00 20.0 %",
        "between 50.00 5.0 %",
        "saving 50.00 5.0 %",
        "iteration 1,000.00 100.0 %",
    ]


@dataclass(frozen=True)
class SecondOfTwo(Rank):
    """A rank whose neighbour was in the collectives for these seconds."""

    of_neighbour: list[float] = field(default_factory=list)

    def all_gather(self, values):
        return torch.tensor([self.of_neighbour, values], dtype=torch.float64)


def test_the_first_rank_in_a_collective_waits_and_the_last_one_does_not():
    rank = SecondOfTwo(1, 1, 2, torch.device("cpu"), 0, 1, of_neighbour=[5.0, 1.0])
    intervals = [("physics", 7.0), ("all_reduce", 2.0), ("forward", 3.0), ("all_reduce", 9.0)]
    seconds = phase_seconds(intervals, rank)
    assert (seconds["all_reduce"], seconds["waiting"]) == (3.0, 8.0)
    assert sum(seconds.values()) == 21.0
