"""The training loop: collect, learn, then each feature; the same on every rank."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from rsl_rl.models import MLPModel

from simtrain.algorithms.distillation import Algorithm
from simtrain.config.train import TrainConfig
from simtrain.env.env import Env
from simtrain.env.nan_guard import Failures
from simtrain.env.randomness import random_state, set_random_state
from simtrain.launch.phase_timer import NO_TIMER, Interval, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.run.metric_tags import FINISHED_ENVS, LENGTH, PHASES, RETURN, STEP_REWARD, TAG
from simtrain.sim.cuda_graphs import CudaGraphs
from simtrain.sim.engine import Overflow
from simtrain.training.features import Feature, Iteration
from simtrain.training.graphs import RolloutGraphs, UpdateGraphs, collect_transition

MIN_EPISODES = 100
"""Minimum number of episodes of a mean return, once so many have finished (as rsl_rl)."""

Sums = dict[str, tuple[float, float]]
"""Name -> sum and count."""


def train(
    trainer: Trainer, features: Sequence[Feature], iterations: int, stop: Callable[[], bool]
) -> None:
    """Train until `iterations` are done, or until `stop` is true on any rank after an iteration.

    Raises:
        DivergenceError: nothing was learned for many iterations, on all ranks together.
    """
    with ExitStack() as entered:
        for feature in features:
            entered.enter_context(feature)
        trainer.begin()
        progress = trainer.rank.progress
        while trainer.unfinished is not None or trainer.iteration < iterations:
            progress.iteration = trainer.iteration + 1
            iteration = trainer.iterate(iterations, stop)
            progress.iteration = None
            for feature in features:
                trainer.timer.begin(feature.phase)
                feature.after_iteration(iteration)
            trainer.timer.begin("other")
            if iteration.is_last:
                break


class Trainer:
    """Trains `ppo` on `env` as one rank; owns timer and graphs."""

    def __init__(
        self,
        env: Env,
        ppo: Algorithm,
        rank: Rank,
        timer: PhaseTimer = NO_TIMER,
        graphs: CudaGraphs | None = None,
        config: TrainConfig | None = None,
    ) -> None:
        """Prepare; `timer` is that of `env` and `ppo`; `graphs` makes graphs, None for none."""
        self.env = env
        self.rank = rank
        self.timer = timer
        self.iteration = 0
        self.env_steps = 0
        self.unfinished: Iteration | None = None
        """An iteration that features act on again when the saved run goes on."""
        self._episodes = EpisodeStatistics()
        self._step_reward = torch.zeros(())  # the mean over the rollout
        self._warned: set[str] = set()
        self._env_is_fresh = True
        self._backend = graphs
        self._update_graphs: UpdateGraphs | None = None
        self._rollout_graphs: RolloutGraphs | None = None
        self._make_rollout_graphs = False  # before the next rollout, as all ranks have agreed
        self._steps = ppo.storage.num_transitions_per_env
        self.set_ppo(ppo, TrainConfig("") if config is None else config)

    def set_ppo(self, ppo: Algorithm, config: TrainConfig) -> None:
        """Train `ppo` from now on: another one, or the same with other settings.

        `config` is the configuration to save, with the settings of `ppo` and the environments.
        """
        self.close()
        self.ppo, self.config = ppo, config
        if self._backend is not None:
            self._update_graphs = UpdateGraphs(ppo, self._backend)
            if not self.env.sim.synchronous:
                self._rollout_graphs = RolloutGraphs(self.env, ppo, self._backend)
        self._rollout_threads = rollout_threads(ppo.actor, self.env.num_envs, self.rank.threads)
        ppo.train_mode()

    def close(self) -> None:
        """End all graphs; call it before the process group of their collectives is destroyed."""
        for graphs in (self._update_graphs, self._rollout_graphs):
            if graphs is not None:
                graphs.close()

    def begin(self) -> None:
        """Prepare the first iteration of this process, in place."""
        env = self.env
        if self._env_is_fresh:
            # Spread the first resets over time, or all episodes would end at once.
            env.episode_length_buf = torch.randint_like(
                env.episode_length_buf, env.max_episode_length
            )
            self._env_is_fresh = False
        self.ppo.train_mode()
        self.timer.take("other")

    def iterate(self, iterations: int, stop: Callable[[], bool]) -> Iteration:
        """Collect a rollout, learn from it, and combine the numbers of all ranks.

        If an iteration is unfinished, it is returned instead.
        """
        if (iteration := self.unfinished) is not None:
            self.unfinished = None
            return replace(iteration, is_last=self.iteration >= iterations, is_stopped=False)
        start = time.perf_counter()
        torch.set_num_threads(self._rollout_threads)
        self.collect()
        if self.rank.device.type == "cuda":
            # Or the rest of the rollout would be timed as learning.
            torch.cuda.synchronize(self.rank.device)
        collected = time.perf_counter()
        torch.set_num_threads(self.ppo.learning_threads)
        graphs = None if self._update_graphs is None else self._update_graphs.prepare
        losses = self.ppo.update(graphs, progress=self.iteration / iterations)
        failures, overflow = self.env.failures(), self.env.sim.overflow()
        end = time.perf_counter()
        sums, warnings = self._sums(failures, overflow), self._new_warnings(overflow, failures)
        # The period ends before numbers are brought together, for these times are among them.
        together = "all_reduce" if self.rank.world_size > 1 else "other"
        phases = phase_seconds(self.timer.take(together), self.rank)
        report = Report(
            sums | {TAG + phase: (seconds, 1.0) for phase, seconds in phases.items()},
            maxima={
                "Perf/collection_time": collected - start,
                "Perf/learning_time": end - collected,
                "seconds": end - start,
            },
            is_stopped=stop(),
            is_outdated=self._rollout_graphs is not None and self._rollout_graphs.outdated,
            warnings=warnings,
        ).of_all(self.rank)
        self.timer.begin("other")
        self._make_rollout_graphs = report.is_outdated
        self.iteration += 1
        steps = self._steps * self.env.num_envs * self.rank.world_size
        self.env_steps += steps
        seconds = report.maxima.pop("seconds")
        metrics = self._episode_metrics(report.sums)
        metrics |= {n if "/" in n else f"Loss/{n}": value for n, value in losses.items()}
        metrics |= {
            "Loss/learning_rate": self.ppo.learning_rate,
            "Policy/mean_std": float(self.ppo.std.mean()),
            "Perf/total_fps": steps / seconds,
            **report.maxima,
        }
        if self.ppo.skipped_steps:
            metrics["Loss/skipped_steps"] = self.ppo.skipped_steps
        return Iteration(
            self.iteration,
            self.env_steps,
            metrics,
            is_last=report.is_stopped or self.iteration >= iterations,
            is_stopped=report.is_stopped,
            warnings=report.warnings,
            failures=failures,
            phases=phases,
        )

    @torch.inference_mode()
    def collect(self) -> None:
        """Fill the storage with a rollout, and compute its returns."""
        graphs, make = self._rollout_graphs, self._make_rollout_graphs
        self._make_rollout_graphs = False
        self.env.sim.finish_const()  # too costly for every step
        if graphs is None or not graphs.collect(make=make):
            self.ppo.begin_rollout()
            for transition in self.ppo.storage.transitions:
                collect_transition(self.env, self.ppo, transition)
                self.ppo.storage.step += 1
        self._step_reward = self.ppo.storage.rewards.mean()  # before any intrinsic one is added
        self.timer.begin("advantage")
        self.ppo.compute_returns(self.env.get_observations().to(self.rank.device))

    def state(self) -> dict[str, Any]:
        """Counters and statistics, the same on all ranks, as plain data."""
        return {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "episodes": self._episodes.state(),
            "unfinished": None if self.unfinished is None else self.unfinished.metrics,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""
        self.iteration = state["iteration"]
        self.env_steps = state["env_steps"]
        self._episodes.set_state(state["episodes"])
        if (metrics := state["unfinished"]) is not None:
            self.unfinished = Iteration(self.iteration, self.env_steps, metrics, is_last=False)

    def rank_state(self) -> dict[str, Any]:
        """The state of this rank alone, as copies on the host: environments, hidden states of
        recurrent networks, random generators."""
        return {
            "env": self.env.state(),
            "hidden_states": [tensor.to("cpu", copy=True) for tensor in self.ppo.hidden_states()],
            "random": random_state(self.rank.device),
            "warned": sorted(self._warned),
        }

    def set_rank_state(self, state: dict[str, Any]) -> None:
        """Continue from the result of `rank_state`, in place."""
        self.env.set_state(state["env"])
        self.ppo.set_hidden_states(state["hidden_states"])
        self._env_is_fresh = False
        self._warned = set(state["warned"])
        set_random_state(state["random"], self.rank.device)

    def _sums(self, failures: Failures, overflow: Overflow | None) -> Sums:
        """Sums and counts of this rank: episodes that finished, curricula, failures."""
        episodes = self.env.episodes
        totals = dict(zip(episodes.names, episodes.take().tolist(), strict=True))
        count = totals.pop("count")
        sums: Sums = {name: (total, count) for name, total in totals.items()}
        sums[FINISHED_ENVS] = (float(episodes.finished_envs()), self.env.num_envs)
        sums[STEP_REWARD] = (float(self._step_reward), 1.0)
        sums |= {name: (float(v), 1.0) for name, v in self.env.curricula.log.items()}
        # Counts are added up over ranks, not averaged.
        share = 1.0 / self.rank.world_size
        sums["Sim/nan_resets"] = (float(failures.resets), share)
        if failures.terms:
            sums["Sim/nan_terms"] = (float(len(failures.terms)), share)
        if overflow is not None:
            sums["Sim/overflow"] = (overflow.num_envs, self.env.num_envs)
        return sums

    def _episode_metrics(self, sums: Sums) -> dict[str, float]:
        """Means over the episodes of all ranks, for this iteration and for the latest ones."""
        if "return" in sums:
            returns, count = sums.pop("return")
            self._episodes.add(count, returns, sums.pop("length")[0])
        metrics = {name: total / count for name, (total, count) in sums.items()}
        means = self._episodes.means()
        if means is not None:
            metrics[RETURN], metrics[LENGTH] = means
        return metrics

    def _new_warnings(self, overflow: Overflow | None, failures: Failures) -> tuple[str, ...]:
        """Buffers that overflowed, terms that were not finite, refused graphs; each once."""
        messages = {} if overflow is None else overflow.messages
        for term in failures.terms:
            messages[term] = f"{term} was not finite in some environments, and counts as 0 there"
        for name, graphs in (("rollouts", self._rollout_graphs), ("updates", self._update_graphs)):
            if graphs is not None and graphs.refusal is not None:
                text = f"{name} run without CUDA graphs, and slower: {graphs.refusal}"
                messages[f"graphs of {name}"] = text
        new = tuple(text for key, text in messages.items() if key not in self._warned)
        self._warned.update(messages)
        return new


def rollout_threads(actor: MLPModel, num_envs: int, threads: int) -> int:
    """Threads of torch while a policy acts.

    The threads of torch and of MuJoCo alternate within a step. OpenMP threads that still spin when
    MuJoCo needs the cores cost more than they save, unless the networks are large.
    """
    operations = 2 * num_envs * sum(p.numel() for p in actor.parameters())
    return threads if operations > 2e8 else 1


class EpisodeStatistics:
    """Means over the latest episodes, from each iteration's sums and count."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, float, float]] = deque()

    def add(self, count: float, returns: float, lengths: float) -> None:
        """Add an iteration: number of finished episodes, sums of their returns and lengths."""
        if count > 0:
            self._window.append((count, returns, lengths))
        total = sum(entry[0] for entry in self._window)
        while self._window and total - self._window[0][0] >= MIN_EPISODES:
            total -= self._window.popleft()[0]

    def means(self) -> tuple[float, float] | None:
        """Mean return and length; None before the first episode has finished."""
        if not self._window:
            return None
        count, returns, lengths = (sum(column) for column in zip(*self._window, strict=True))
        return returns / count, lengths / count

    def state(self) -> list[list[float]]:
        """The latest episodes, as plain data."""
        return [list(entry) for entry in self._window]

    def set_state(self, state: list[list[float]]) -> None:
        """Continue from the result of `state`; TypeError or ValueError if it is invalid."""
        window = [tuple(map(float, entry)) for entry in state]
        self._window = deque((count, returns, lengths) for count, returns, lengths in window)


@dataclass(frozen=True)
class Report:
    """The numbers of an iteration, of one rank or of all."""

    sums: Sums
    """Ranks may have different names, such as of a curriculum that has begun on one rank only."""
    maxima: dict[str, float]
    is_stopped: bool
    """Whether the user or the system asked to stop."""
    is_outdated: bool
    """Whether graphs of rollouts must be made again."""
    warnings: tuple[str, ...]

    def of_all(self, rank: Rank) -> Report:
        """Sums, maxima and warnings over all ranks, which call it together."""
        reports: list[Report] = rank.all_gather_object(self)
        names = sorted({name for report in reports for name in report.sums})
        pairs = [[report.sums.get(name, (0.0, 0.0)) for name in names] for report in reports]
        totals = torch.tensor(pairs, dtype=torch.float64).sum(dim=0).tolist()
        warnings = self.warnings
        if rank.world_size > 1:
            rows = enumerate(report.warnings for report in reports)
            warnings = tuple(f"rank {i}: {text}" for i, texts in rows for text in texts)
        return Report(
            {n: (total, count) for n, (total, count) in zip(names, totals, strict=True) if count},
            {name: max(report.maxima[name] for report in reports) for name in self.maxima},
            any(report.is_stopped for report in reports),
            any(report.is_outdated for report in reports),
            warnings,
        )


def phase_seconds(intervals: Sequence[Interval], rank: Rank) -> dict[str, float]:
    """Seconds of every phase on this rank, which add up to all intervals; all ranks call it.

    The time in a collective consists of its own time and of waiting for slower ranks. The rank that
    arrives last does not wait, so its time is the collective's own. Without intervals, from a timer
    that is off, the mapping is empty.
    """
    if not intervals:
        return {}
    seconds = dict.fromkeys(PHASES, 0.0)
    for phase, duration in intervals:
        seconds[phase] += duration
    if rank.world_size > 1:
        collectives = [duration for phase, duration in intervals if phase == "all_reduce"]
        own = float(rank.all_gather(collectives).amin(dim=0).sum())
        seconds["waiting"] = seconds["all_reduce"] - own
        seconds["all_reduce"] = own
    return seconds
