"""Evaluation of a policy over episodes, with the mean of its actions.

The first episode of every environment after a reset counts. If the first episodes to finish were
counted, short episodes would be over-represented.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress

import torch
from torch import Tensor

from simtrain.algorithms.cfg import ActorCfg
from simtrain.algorithms.networks import Memory, Policy, remembering
from simtrain.config.train import TrainConfig
from simtrain.env.cfg import TaskCfg
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.env.randomness import forked_randomness
from simtrain.errors import SimulationError
from simtrain.sim import EngineCfg, choose_engine
from simtrain.sim.cuda_graphs import CudaGraphs, make_graph_backend
from simtrain.training.graphs import StepGraph
from simtrain.training.loop import rollout_threads

CONFIDENCE = 0.95
"""Probability that an interval contains the true value."""
_CHECK_STEPS = 32
"""Steps between two checks whether all episodes have ended, because a check waits for the device.
All kernels have been compiled before the first check."""


@dataclass(frozen=True)
class Estimate:
    """A mean or rate over episodes, and its confidence interval, which is infinite if unknown."""

    value: float
    low: float
    high: float

    @staticmethod
    def of_mean(values: Sequence[float]) -> Estimate:
        """The mean of one or more independent values, with Student's interval."""
        value = statistics.fmean(values)
        if len(values) == 1:
            return Estimate(value, -math.inf, math.inf)
        if not all(map(math.isfinite, values)):
            return Estimate(value, math.nan, math.nan)
        from scipy.special import stdtrit  # scipy.stats has it too, and takes a second to import

        error = statistics.stdev(values, value) / math.sqrt(len(values))
        half = error * float(stdtrit(len(values) - 1, (1.0 + CONFIDENCE) / 2.0))
        return Estimate(value, value - half, value + half)

    @staticmethod
    def of_rate(happened: int, count: int) -> Estimate:
        """The rate of an event in `count` episodes, with Wilson's score interval."""
        from scipy.special import ndtri

        rate, z = happened / count, float(ndtri((1.0 + CONFIDENCE) / 2.0))
        weight = 2.0 * (count + z**2)
        middle = (2.0 * count * rate + z**2) / weight
        half = z / weight * math.sqrt(4.0 * count * rate * (1.0 - rate) + z**2)
        low = 0.0 if happened == 0 else middle - half
        return Estimate(rate, low, 1.0 if happened == count else middle + half)


@dataclass(frozen=True)
class Evaluation:
    """The episodes of an evaluation, in lists of equal length."""

    returns: list[float]
    lengths: list[float]
    """Control steps."""
    failed: list[bool]
    """Whether a termination other than a time-out ended the episode."""
    metrics: dict[str, list[float]]
    """The task's metrics."""
    warnings: dict[str, str]
    """Buffers of the engine that overflowed, by the flag that enlarges them."""
    kinds: dict[str, list[str]] = field(default_factory=dict)
    """The kind of each episode, by the metrics that have ``labels`` for their values."""

    @staticmethod
    def of_rows(rows: Tensor, env: Env) -> Evaluation:
        """The episodes of `FirstEpisodes.rows` in `env`."""
        returns, lengths, failed, *metrics = rows.cpu().T.tolist()
        overflow = env.sim.overflow()
        kinds = {}
        by_name = dict(zip(env.metrics.names, metrics, strict=True))
        for name, term in zip(env.metrics.names, env.metrics.terms, strict=True):
            if labels := getattr(term.function, "labels", None):
                kinds[name] = [labels[round(value)] for value in by_name.pop(name)]
        return Evaluation(
            returns=returns,
            lengths=lengths,
            failed=[value > 0.0 for value in failed],
            metrics=by_name,
            warnings={} if overflow is None else overflow.messages,
            kinds=kinds,
        )

    def parts(self) -> dict[str, Evaluation]:
        """The episodes of each kind, by metric and label: ``clip squat``."""
        return {
            f"{name} {label}": self._where([other == label for other in labels])
            for name, labels in self.kinds.items()
            for label in dict.fromkeys(labels)
        }

    def _where(self, chosen: list[bool]) -> Evaluation:
        metrics = {name: list(compress(values, chosen)) for name, values in self.metrics.items()}
        returns, lengths = (list(compress(v, chosen)) for v in (self.returns, self.lengths))
        return Evaluation(returns, lengths, list(compress(self.failed, chosen)), metrics, {})

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Means and rates over the episodes; the names are those of the tags ``Eval/<name>``."""
        return {
            "mean_return": Estimate.of_mean(self.returns),
            "mean_episode_length": Estimate.of_mean(self.lengths),
            "failure_rate": Estimate.of_rate(sum(self.failed), len(self.failed)),
            **{name: Estimate.of_mean(values) for name, values in self.metrics.items()},
        }

    def tags(self, iteration: int) -> dict[str, float]:
        """TensorBoard tag -> value; `iteration` is that of the policy."""
        values = {f"Eval/{name}": estimate.value for name, estimate in self.estimates.items()}
        return {**values, "Eval/iteration": float(iteration)}

    def __str__(self) -> str:
        return "  ".join(f"{heading(n)} {with_margin(n, e)}" for n, e in self.estimates.items())


def heading(name: str) -> str:
    """The name of an estimate in tables."""
    known = {"mean_return": "return", "mean_episode_length": "length", "failure_rate": "failures"}
    return known.get(name, name)


def with_margin(name: str, estimate: Estimate) -> str:
    """An estimate and its interval as text, with two digits of the margin: ``45.2 ± 1.3``."""
    if name == "failure_rate":
        low, high = 100.0 * estimate.low, 100.0 * estimate.high
        return f"{100.0 * estimate.value:.1f} % [{low:.1f}, {high:.1f}]"
    margin = (estimate.high - estimate.low) / 2.0
    if not math.isfinite(margin) or margin == 0.0:
        return f"{estimate.value:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(margin)))
    return f"{estimate.value:.{decimals}f} ± {margin:.{decimals}f}"


class Evaluator:
    """Evaluates policies of one kind in separate environments, one after another.

    It has its own seed, so all policies get the same starts and commands. The random generators of
    the process are not changed.
    """

    def __init__(
        self,
        cfg: TaskCfg,
        episodes: int,
        *,
        engine: EngineCfg,
        max_envs: int | None = None,
        seed: int = 0,
        graphs: CudaGraphs | None = None,
    ) -> None:
        """Build the environments; ConfigError if the task does not fit its model.

        Args:
            cfg: the task, see `simtrain.env.model.evaluation_task`.
            episodes: number of episodes of an evaluation.
            engine: the physics engine; policies run on its device, with its number of threads.
            max_envs: maximum number of environments; None for one per episode.
            seed: of starts, commands and noise.
            graphs: makes a CUDA graph of a step; None launches each operation separately.
        """
        self._episodes, self._seed, self._threads = episodes, seed, engine.threads
        rounds = math.ceil(episodes / min(episodes, max_envs or episodes))
        # Rounds of equal size: an environment has its own ground and its own friction.
        num_envs = math.ceil(episodes / rounds)
        with forked_randomness(seed, torch.device(engine.device)):
            engine_of_envs = replace(engine, threads=min(engine.threads, num_envs))
            self.env = Env(cfg, num_envs, engine_of_envs, metrics=True)
            self.env.metrics.compute()
        self._first = FirstEpisodes(self.env)  # which a graph writes to
        self._backend = graphs
        self._graph: StepGraph | None = None
        self._policy: tuple[ActorCfg, Policy] | None = None

    def __call__(
        self, actor: ActorCfg, state: dict[str, Tensor], stop: Callable[[], bool] = lambda: False
    ) -> Evaluation | None:
        """Evaluate a policy; None if `stop`, which is called from time to time, returned True.

        Args:
            actor: the policy's network.
            state: ``actor_state_dict`` of a checkpoint, on any device.
            stop: ends the evaluation.

        Raises:
            ConfigError: the policy does not fit the task.
            SimulationError: MuJoCo failed.
        """
        env, threads = self.env, torch.get_num_threads()
        rows: list[Tensor] = []
        try:
            policy = self._load(actor, state)
            torch.set_num_threads(rollout_threads(policy.actor, env.num_envs, self._threads))
            with forked_randomness(self._seed, env.device), torch.inference_mode():
                while len(rows) * env.num_envs < self._episodes:
                    rows.append(self._first_episodes(stop))
                    if stop():
                        return None
        except SimulationError as error:
            raise SimulationError(f"in the evaluation: {error}") from error
        finally:
            torch.set_num_threads(threads)
        evaluation = Evaluation.of_rows(torch.cat(rows)[: self._episodes], env)
        if self._graph is not None and self._graph.refusal is not None:
            text = f"steps run without CUDA graphs, and slower: {self._graph.refusal}"
            evaluation.warnings["graphs"] = text
        return evaluation

    def _load(self, actor: ActorCfg, state: dict[str, Tensor]) -> Policy:
        if self._policy is not None and self._policy[0] == actor:
            self._policy[1].load(state)
            return self._policy[1]
        env, obs = self.env, self.env.get_observations()
        with forked_randomness(self._seed, env.device):  # a new network draws its parameters
            policy = Policy(actor, obs, env.num_actions, state)
        policy(obs)  # from now on a recurrent one has a state
        self._policy, self._memory = (actor, policy), Memory(policy.actor)
        if self._graph is not None:
            self._graph.close()
        if self._backend is not None:
            tensors = *self._memory.tensors, *self._first.tensors()
            self._graph = StepGraph(env, self._backend, self._step, env.sim.forward, tensors)
        return policy

    def _first_episodes(self, stop: Callable[[], bool]) -> Tensor:
        """Return, length, failure and metrics of each environment's first episode after a reset."""
        env, first, graph = self.env, self._first, self._graph
        env.reset()
        for tensor, initial in zip(first.tensors(), FirstEpisodes(env).tensors(), strict=True):
            tensor.copy_(initial)
        # Without a time-out among its terminations a task would never end.
        for step in range(env.max_episode_length):
            if step % _CHECK_STEPS == _CHECK_STEPS - 1:
                if stop() or not first.running.any():
                    break
                if graph is not None and graph.outdated:
                    graph.make()
            if graph is None or not graph.run():
                self._step()
        return first.rows()

    def _step(self) -> None:
        """Act, step the environments and add the results, in place."""
        env, memory = self.env, self._memory
        assert self._policy is not None
        memory.forget(env.is_fresh)
        with remembering((memory,)):
            actions = self._policy[1](env.observations.latest)
        self._first.add(*env.step_in_place(actions))


def evaluator_of_run(config: TrainConfig, device: torch.device | str, threads: int) -> Evaluator:
    """The evaluator for the configuration of a training."""
    engine = choose_engine(config.engine, device, threads)
    graphs = make_graph_backend(torch.device(engine.device)) if config.cuda_graphs else None
    task = evaluation_task(config.env)
    return Evaluator(task, config.eval_episodes, engine=engine, graphs=graphs)


class FirstEpisodes:
    """Returns, lengths, failures and metrics of the first episode of every environment."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        """Environments whose episode has not ended yet."""
        self._failed = torch.zeros_like(self.running)
        self._returns = torch.zeros(env.num_envs, device=env.device)
        self._lengths = torch.zeros_like(self._returns)
        self._sums = torch.zeros_like(env.metrics.values)
        self._last = torch.zeros_like(self._sums)
        self._largest = torch.full_like(self._sums, -torch.inf)

    def tensors(self) -> list[Tensor]:
        """All tensors that `add` changes; not copies."""
        sums = self._returns, self._lengths, self._sums, self._last, self._largest
        return [self.running, self._failed, *sums]

    def add(self, rewards: Tensor, dones: Tensor) -> None:
        """Add the results of a step, in place."""
        running, metrics = self.running, self._env.metrics.values
        # Values after the end of an episode may be anything, even NaN.
        self._returns += torch.where(running, rewards, 0.0)
        self._lengths += running
        self._failed |= running & self._env.terminations.terminated
        rows = running.unsqueeze(1)
        torch.where(rows, metrics, self._last, out=self._last)
        self._sums += torch.where(rows, metrics, 0.0)
        largest = self._largest.maximum(metrics)
        torch.where(rows, largest, self._largest, out=self._largest)
        running &= ~dones

    def rows(self) -> Tensor:
        """A row for each environment: return, length, whether it failed, metrics."""
        means = self._sums / self._lengths.unsqueeze(1)
        values = {"mean": means, "last": self._last, "max": self._largest}
        metrics = [values[kind][:, i] for i, kind in enumerate(self._env.metrics.reduce)]
        known = (self._returns, self._lengths, self._failed.float())
        return torch.stack((*known, *metrics), dim=1)
