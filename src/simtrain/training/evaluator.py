"""How good is a policy: some episodes of it, acting by the mean of its actions.

Episodes are chosen before they are run: the first of every environment after a reset of all. Those
that finish first would be the short ones, and a policy that falls would look as if it only fell.

An evaluation draws its random numbers from a seed of its own, the same every time, so that policies
meet the same starts and commands; and it leaves the process's generators as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from simtrain.algorithms.policy import Policy
from simtrain.env.cfg import TaskCfg
from simtrain.env.env import Env
from simtrain.env.randomness import forked_randomness
from simtrain.errors import SimulationError
from simtrain.ppo_cfg import ActorCfg
from simtrain.sim import EngineCfg
from simtrain.training import intervals
from simtrain.training.intervals import Estimate
from simtrain.training.loop import rollout_threads

SEED = 0
"""What evaluations draw from if nobody says otherwise."""
_LOOK_EVERY = 32
"""Steps between two looks at whether all episodes have ended; a look waits for the device."""


@dataclass(frozen=True)
class Evaluation:
    """What a policy did, episode by episode."""

    returns: list[float]
    """Sums of rewards."""
    lengths: list[float]
    """Control steps."""
    failed: list[bool]
    """Whether a termination other than a time-out ended the episode."""
    metrics: dict[str, list[float]]
    """The task's metrics, by their names."""
    warnings: dict[str, str]
    """What did not fit into the engine's buffers, by the flag that mends it."""

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Means and rates over the episodes; the names are those of the tags ``Eval/<name>``."""
        return {
            "mean_return": intervals.mean(self.returns),
            "mean_episode_length": intervals.mean(self.lengths),
            "failure_rate": intervals.rate(sum(self.failed), len(self.failed)),
            **{name: intervals.mean(values) for name, values in self.metrics.items()},
        }

    def tags(self, iteration: int) -> dict[str, float]:
        """TensorBoard tag -> value; `iteration` is that of the policy."""
        values = {f"Eval/{name}": estimate.value for name, estimate in self.estimates.items()}
        return {**values, "Eval/iteration": float(iteration)}

    def __str__(self) -> str:
        texts = {name: with_margin(name, e) for name, e in self.estimates.items()}
        return "  ".join(f"{heading(name)} {text}" for name, text in texts.items())


def heading(name: str) -> str:
    """How people read the name of an estimate."""
    known = {"mean_return": "return", "mean_episode_length": "length", "failure_rate": "failures"}
    return known.get(name, name)


def with_margin(name: str, estimate: Estimate) -> str:
    """An estimate and its interval, with two digits of the margin: ``45.2 ± 1.3``."""
    if name == "failure_rate":
        low, high = 100.0 * estimate.low, 100.0 * estimate.high
        return f"{100.0 * estimate.value:.1f} % [{low:.1f}, {high:.1f}]"
    margin = (estimate.high - estimate.low) / 2.0
    if not math.isfinite(margin) or margin == 0.0:
        return f"{estimate.value:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(margin)))
    return f"{estimate.value:.{decimals}f} ± {margin:.{decimals}f}"


class Evaluator:
    """Environments of their own, in which policies of one kind are evaluated, one after another."""

    def __init__(
        self,
        cfg: TaskCfg,
        actor: ActorCfg,
        episodes: int,
        *,
        engine: EngineCfg,
        max_envs: int | None = None,
        seed: int = SEED,
    ) -> None:
        """Build the environments.

        Args:
            cfg: the task as policies are judged in it, see `undisturbed`.
            actor: the policies' network.
            episodes: how many episodes make an evaluation.
            engine: the physics engine; the policy lives on its device, and takes as many threads.
            max_envs: most environments at a time; None for one for each episode.
            seed: what is random comes from it.

        Raises:
            ConfigError: the task does not fit its model, or a metric has another shape.
        """
        self.episodes = episodes
        self._actor = actor
        self._seed = seed
        rounds = math.ceil(episodes / min(episodes, max_envs or episodes))
        # Rounds of equal size: an environment has its own ground and its own friction.
        num_envs = math.ceil(episodes / rounds)
        with forked_randomness(seed, torch.device(engine.device)):
            self.env = Env(
                cfg,
                num_envs,
                replace(engine, threads=min(engine.threads, num_envs)),
                metrics=True,
            )
            self.env.metrics.compute()
        self._threads = engine.threads
        self._policy: Policy | None = None

    def __call__(
        self, state: dict[str, Tensor], stop: Callable[[], bool] = lambda: False
    ) -> Evaluation | None:
        """Evaluate a policy.

        Args:
            state: ``actor_state_dict`` of a checkpoint, on any device.
            stop: asked now and then; once it is true, the evaluation is given up.

        Returns:
            What the policy did, or None if it was given up.

        Raises:
            ConfigError: the policy does not fit the task.
            SimulationError: MuJoCo failed.
        """
        threads = torch.get_num_threads()
        try:
            policy = self._load(state)
            torch.set_num_threads(rollout_threads(policy.actor, self.env.num_envs, self._threads))
            with forked_randomness(self._seed, self.env.device), torch.inference_mode():
                rows = self._rows(policy, stop)
        except SimulationError as error:
            raise SimulationError(f"in the evaluation: {error}") from error
        finally:
            torch.set_num_threads(threads)
        if rows is None:
            return None
        returns, lengths, failed, *metrics = rows.T.tolist()
        overflow = self.env.sim.overflow()
        return Evaluation(
            returns=returns,
            lengths=lengths,
            failed=[value > 0.0 for value in failed],
            metrics=dict(zip(self.env.metrics.names, metrics, strict=True)),
            warnings={} if overflow is None else overflow.messages,
        )

    def _load(self, state: dict[str, Tensor]) -> Policy:
        if self._policy is None:
            env = self.env
            with forked_randomness(
                self._seed, self.env.device
            ):  # a new network draws its parameters
                obs = env.get_observations()
                self._policy = Policy(self._actor, obs, env.num_actions, state)
        else:
            self._policy.load(state)
        return self._policy

    def _rows(self, policy: Policy, stop: Callable[[], bool]) -> Tensor | None:
        """Return, length, failure and metrics of each episode, on the CPU."""
        rounds: list[Tensor] = []
        while len(rounds) * self.env.num_envs < self.episodes:
            first = self._first_episodes(policy, stop)
            if first is None:
                return None
            rounds.append(first)
        return torch.cat(rounds)[: self.episodes].cpu()

    def _first_episodes(self, policy: Policy, stop: Callable[[], bool]) -> Tensor | None:
        """Reset all environments and run each until it ends once; a row for each."""
        env = self.env
        env.reset()
        nothing = torch.zeros(env.num_envs, device=env.device)
        returns, lengths = nothing.clone(), nothing.clone()
        running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        failed = torch.zeros_like(running)
        sums = torch.zeros_like(env.metrics.values)
        last = torch.zeros_like(sums)
        obs = env.get_observations()
        # Without a time-out among its terminations a task would never end.
        for step in range(env.max_episode_length):
            if step % _LOOK_EVERY == _LOOK_EVERY - 1 and (stop() or not running.any()):
                break
            obs, rewards, dones, _ = env.step(policy(obs))
            # What comes after an episode may be anything, even NaN.
            returns += torch.where(running, rewards, nothing)
            lengths += running
            failed |= running & env.terminations.terminated
            values = torch.where(running.unsqueeze(1), env.metrics.values, last)
            sums += torch.where(running.unsqueeze(1), values, torch.zeros_like(last))
            last = values
            running &= ~dones
        if stop():
            return None
        means = sums / lengths.unsqueeze(1)
        metrics = torch.where(env.metrics.is_mean, means, last)
        return torch.cat((torch.stack((returns, lengths, failed.float()), dim=1), metrics), dim=1)
