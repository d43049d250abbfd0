"""The trainer loop: roll out, learn, report, save; the same on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rsl_rl.models import MLPModel

from simtrain.algorithms.ppo import PPO
from simtrain.env.env import Env
from simtrain.env.nan_guard import Dump, Failures
from simtrain.env.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.phases import TAG
from simtrain.sim.engine import Overflow
from simtrain.training.features.failures import FailureWatch
from simtrain.training.graphs.cuda import GraphBackend
from simtrain.training.graphs.rollout import RolloutGraphs
from simtrain.training.graphs.update import UpdateGraphs
from simtrain.training.phase_times import phase_seconds
from simtrain.training.reduction import Reduction
from simtrain.training.statistics import EpisodeStatistics


@dataclass(frozen=True)
class Iteration:
    """What one iteration brought, over all ranks."""

    number: int
    """How many iterations were trained so far."""
    env_steps: int
    """Environment steps so far, over all ranks."""
    metrics: dict[str, float]
    """TensorBoard tag -> value."""
    is_last: bool
    """Whether training ends with it."""
    warnings: tuple[str, ...] = ()
    """What a person should know, of all ranks, each told once."""
    dumps: tuple[tuple[int, Dump], ...] = ()
    """The last steps of simulations that failed, with their ranks; on rank 0 alone."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase on this rank since the iteration before; empty without a timer."""


class Trainer:
    """Trains `ppo` on `env`; the state that goes on from iteration to iteration."""

    def __init__(
        self,
        env: Env,
        ppo: PPO,
        rank: Rank,
        timer: PhaseTimer = NO_TIMER,
        graphs: GraphBackend | None = None,
    ) -> None:
        """Prepare.

        Args:
            env: the environments.
            ppo: what learns.
            rank: this process.
            timer: told which phase of an iteration begins.
            graphs: makes graphs of steps and mini-batches; None for neither.
        """
        self.env = env
        self.ppo = ppo
        self.rank = rank
        self.timer = env.timer = ppo.timer = timer
        self.iteration = 0
        self.env_steps = 0
        self._episodes = EpisodeStatistics()
        self._reduce = Reduction(rank)
        self.warned: set[str] = set()
        """What this rank has warned of."""
        self.env_is_fresh = True
        """Whether the environments have not been trained on yet."""
        self._watch = FailureWatch(
            rank, env.num_envs, ppo.num_learning_epochs * ppo.num_mini_batches
        )
        self._graphs: RolloutGraphs | None = None
        if graphs is not None:
            ppo.graphs = UpdateGraphs(ppo, graphs)
            if not env.sim.synchronous:
                self._graphs = RolloutGraphs(env, ppo, graphs)
        self._steps = ppo.storage.num_transitions_per_env
        self._rollout_threads = rollout_threads(ppo.actor, env.num_envs, rank.threads)

    def run(
        self,
        iterations: int,
        report: Callable[[Iteration], None],
        stop: Callable[[], bool],
        judge: Callable[[Iteration], Iteration] = lambda iteration: iteration,
    ) -> None:
        """Train until `iterations` are done or `stop` says so at the end of one of them.

        Args:
            iterations: how many iterations to have trained at the end.
            report: called after every iteration.
            stop: asked at the end of every iteration; one rank's yes ends training on all.
            judge: may add metrics to an iteration before it is reported, and end training with it.

        Raises:
            DivergenceError: nothing was learned for many iterations, on all ranks together.
        """
        env = self.env
        if self.env_is_fresh:
            # Spread the first resets over time, or all episodes would end at once.
            env.episode_length_buf = torch.randint_like(
                env.episode_length_buf, env.max_episode_length
            )
            self.env_is_fresh = False
        self.ppo.train_mode()
        self.timer.take("other")
        while self.iteration < iterations:
            iteration = self._iterate(iterations, stop)
            self.timer.begin("evaluation")
            iteration = judge(iteration)
            self.timer.begin("logging")
            report(iteration)
            self.timer.begin("other")
            if iteration.is_last:
                return
            self._watch.check(iteration.metrics)

    def state(self) -> dict[str, Any]:
        """What goes on from iteration to iteration beside environments and PPO, as plain data."""
        return {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "episodes": self._episodes.state(),
            "failures": self._watch.state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.iteration = state["iteration"]
        self.env_steps = state["env_steps"]
        self._episodes.set_state(state["episodes"])
        self._watch.set_state(state["failures"])

    def _iterate(self, iterations: int, stop: Callable[[], bool]) -> Iteration:
        start = time.perf_counter()
        torch.set_num_threads(self._rollout_threads)
        self.collect()
        if self.rank.device.type == "cuda":
            # Or what is left of the rollout would be timed as learning.
            torch.cuda.synchronize(self.rank.device)
        collected = time.perf_counter()
        torch.set_num_threads(self.ppo.learning_threads)
        losses = self.ppo.update()
        failures = self.env.failures()
        sums = self._finished_episodes() | self._watch.sums(failures)
        overflow = self.env.sim.overflow()
        if overflow is not None:
            sums["Sim/overflow"] = (overflow.num_envs, self.env.num_envs)
        if self._graphs is not None:
            self._graphs.prepare()
        warnings = self._new_warnings(overflow, failures)
        end = time.perf_counter()
        phases = self._end_of_period()
        sums |= {TAG + phase: (seconds, 1.0) for phase, seconds in phases.items()}
        totals = self._reduce(
            {
                **sums,
                "stop": (float(stop()), 1.0),
                "warnings": (float(len(warnings)), 1.0),
                "refused": (float(self._refuses_graphs()), 1.0),
            },
            {
                "Perf/collection_time": collected - start,
                "Perf/learning_time": end - collected,
                "seconds": end - start,
            },
        )
        self.timer.begin("other")
        seconds = totals.maxima.pop("seconds")
        stopped = totals.sums.pop("stop")[0] > 0.0
        if totals.sums.pop("refused")[0] > 0.0 and self._graphs is not None:
            self._graphs.refuse()
        if totals.sums.pop("warnings")[0] > 0.0:
            warnings = self._warnings_of_all_ranks(warnings)
        metrics = self._episode_metrics(totals.sums)
        self.iteration += 1
        steps = self._steps * self.env.num_envs * self.rank.world_size
        self.env_steps += steps
        metrics |= {f"Loss/{name}": value for name, value in losses.items()}
        metrics |= {
            "Loss/learning_rate": self.ppo.learning_rate,
            "Policy/mean_std": float(self.ppo.std.mean()),
            "Perf/total_fps": steps / seconds,
            **totals.maxima,
        }
        if self.ppo.skipped_steps:
            metrics["Loss/skipped_steps"] = self.ppo.skipped_steps
        self._watch.count(self.ppo.skipped_steps, metrics)
        is_last = stopped or self.iteration >= iterations
        dumps = self._watch.dumps(failures, metrics)
        return Iteration(self.iteration, self.env_steps, metrics, is_last, warnings, dumps, phases)

    def _end_of_period(self) -> dict[str, float]:
        """Seconds of each phase since the iteration before; the next period begins.

        It begins before the numbers of all ranks are brought together, for these times are among
        them: an iteration's period has its rollout and update, and what followed the one before.
        """
        together = "all_reduce" if self.rank.world_size > 1 else "other"
        return phase_seconds(self.timer.take(together), self.rank)

    def _new_warnings(self, overflow: Overflow | None, failures: Failures) -> tuple[str, ...]:
        """What did not fit into the engine's buffers, was not finite or refused, once."""
        messages = {} if overflow is None else overflow.messages
        for term in failures.terms:
            messages[term] = f"{term} was not finite in some environments, and counts as 0 there"
        for what, graphs in (("rollouts", self._graphs), ("updates", self.ppo.graphs)):
            if graphs is not None and graphs.refusal is not None:
                text = f"{what} run without CUDA graphs, and slower: {graphs.refusal}"
                messages[f"graphs of {what}"] = text
        new = tuple(text for flag, text in messages.items() if flag not in self.warned)
        self.warned.update(messages)
        return new

    def _refuses_graphs(self) -> bool:
        """Whether this rank cannot replay steps, so that no rank shall."""
        return self._graphs is not None and self._graphs.refusal is not None

    def _warnings_of_all_ranks(self, mine: tuple[str, ...]) -> tuple[str, ...]:
        """All new warnings with the rank that each comes from; all ranks call it together."""
        if self.rank.world_size == 1:
            return mine
        everyone = self.rank.all_gather_objects(mine)
        return tuple(f"rank {i}: {text}" for i, texts in enumerate(everyone) for text in texts)

    @torch.inference_mode()
    def collect(self) -> None:
        """Fill the storage with a rollout, and compute its returns."""
        if self._graphs is not None and self._graphs.ready:
            self.timer.begin("rollout_graph")
            self._graphs.begin()
            for _ in range(self._steps):
                self._graphs.step()
        else:
            self._step_eagerly()
        self.timer.begin("advantage")
        self.ppo.compute_returns(self.env.get_observations().to(self.rank.device))

    def _step_eagerly(self) -> None:
        env, ppo = self.env, self.ppo
        learner = self.rank.device
        obs = env.get_observations()
        for _ in range(self._steps):
            self.timer.begin("inference")
            if env.device != learner:  # physics on CPU threads, networks on a GPU
                obs = obs.to(learner)
            actions = ppo.act(obs)
            obs, rewards, dones, extras = env.step(actions.to(env.device))
            self.timer.begin("storage")
            ppo.process_env_step(obs, rewards, dones, extras)

    def _finished_episodes(self) -> dict[str, tuple[float, float]]:
        """Sums and counts over the episodes of this rank that finished, and its curricula."""
        episodes = self.env.episodes
        totals = dict(zip(episodes.names, episodes.take().tolist(), strict=True))
        count = totals.pop("count")
        sums = {name: (total, count) for name, total in totals.items()}
        return sums | {name: (float(v), 1.0) for name, v in self.env.curricula.log.items()}

    def _episode_metrics(self, sums: dict[str, tuple[float, float]]) -> dict[str, float]:
        """Means over the episodes of all ranks, of this iteration and of the latest."""
        if "return" in sums:
            returns, count = sums.pop("return")
            self._episodes.add(count, returns, sums.pop("length")[0])
        metrics = {name: total / count for name, (total, count) in sums.items()}
        means = self._episodes.means()
        if means is not None:
            metrics["Train/mean_reward"], metrics["Train/mean_episode_length"] = means
        return metrics


def rollout_threads(actor: MLPModel, num_envs: int, threads: int) -> int:
    """Threads of torch while a policy acts.

    Torch's and MuJoCo's threads take turns within a step, and an OpenMP team that is still spinning
    when MuJoCo's threads want the cores costs more than it gained unless the networks are large.
    """
    operations = 2 * num_envs * sum(p.numel() for p in actor.parameters())
    return threads if operations > 2e8 else 1
