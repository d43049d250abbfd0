"""After each iteration: evaluate the policy, keep the best, and say whether training ends.

Rank 0 evaluates, in its own process or in another (`EvaluatorProcess`), and decides; all others
learn what came of it by a broadcast. Training itself is not disturbed: its metrics are the same,
to the bit, with and without evaluation.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from simtrain.algorithms.ppo import PPO
from simtrain.config import TrainConfig
from simtrain.env.model import evaluation_task
from simtrain.errors import ConfigError
from simtrain.launch.devices import Devices
from simtrain.launch.rank import Rank
from simtrain.run.checkpoint import BEST, read_checkpoint, save_model
from simtrain.sim import choose_engine
from simtrain.stop_conditions import first_that_holds, stop_conditions
from simtrain.training.evaluator import Evaluation, Evaluator
from simtrain.training.features.evaluator_process import Candidate, EvaluatorProcess
from simtrain.training.loop import Iteration

_RETURN = "eval_mean_return"
"""Where the best checkpoint's ``infos`` have its mean return."""


class Evaluations(Protocol):
    """Where policies are evaluated; see `EvaluatorProcess`, whose calls never wait."""

    @property
    def failure(self) -> str | None:
        """Why no more evaluations come, or None."""

    def submit(self, candidate: Candidate) -> None:
        """Have a policy evaluated."""

    def results(self) -> list[tuple[Candidate, Evaluation]]:
        """The evaluations that came since the last call, oldest first."""

    def finish(self, stop: Callable[[], bool]) -> bool:
        """Wait for what was submitted; whether all of it is evaluated."""

    def close(self) -> None:
        """No more evaluations are wanted."""


class Judge:
    """Reviews iterations, on every rank; a context manager."""

    def __init__(
        self,
        config: TrainConfig,
        rank: Rank,
        run: Path,
        ppo: PPO,
        stop: Callable[[], bool],
        say: Callable[[str], None],
        evaluator: Devices | None,
    ) -> None:
        """Prepare; on rank 0 build what evaluates, if something shall.

        Args:
            config: the run's configuration.
            rank: this process.
            run: the run directory.
            ppo: the networks as they are trained.
            stop: whether the user wants training to end; evaluations are then given up.
            say: shows a line.
            evaluator: what the process of its own computes on; None for evaluation on rank 0.

        Raises:
            ConfigError: a metric of the task is not as it must be.
        """
        self._task = config.task
        self._interval = config.eval_interval
        self._conditions = stop_conditions(config)
        self._beside = evaluator is not None
        self._rank = rank
        self._run = run
        self._ppo = ppo
        self._stop = stop
        self._say = say
        self._told: set[str] = set()
        self._evaluations: Evaluations | None = None
        self._best = -float("inf")
        if self._interval is None or not rank.is_main:
            return
        if (run / BEST).exists():  # of a run that is continued
            try:
                self._best = read_checkpoint(run / BEST)["infos"].get(_RETURN, self._best)
            except ConfigError as error:
                self._say(f"warning: {error}; the next evaluation's policy takes its place")
        if evaluator is None:
            self._evaluations = _OnThisRank(config, rank, stop)
        else:
            self._evaluations = EvaluatorProcess(config, evaluator, _threads_beside(config, rank))

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._evaluations is not None:
            self._evaluations.close()

    def __call__(self, iteration: Iteration) -> Iteration:
        """The iteration with its evaluation's metrics, and with whether training ends with it.

        All ranks call it together.
        """
        due = self._interval is not None and (
            iteration.number % self._interval == 0 or iteration.is_last
        )
        if not (due or self._conditions or self._beside):
            return iteration
        metrics: dict[str, float] = {}
        ends = False
        if self._rank.is_main:
            metrics, ends = self._judge(iteration, due)
        metrics, ends = self._rank.broadcast_object((metrics, ends))
        return replace(
            iteration,
            metrics={**iteration.metrics, **metrics},
            is_last=iteration.is_last or ends,
        )

    def _judge(self, iteration: Iteration, due: bool) -> tuple[dict[str, float], bool]:
        """What rank 0 finds: the metrics of an evaluation, and whether a condition holds."""
        metrics: dict[str, float] = {}
        if due:
            self._submit(iteration)
        self._take_results(metrics)
        ends = self._condition_holds({**iteration.metrics, **metrics})
        if ends or iteration.is_last:
            if not due:
                self._submit(iteration)
            self._finish(metrics)
            ends = ends or self._condition_holds(metrics)
        return metrics, ends

    def _submit(self, iteration: Iteration) -> None:
        if self._evaluations is None or self._stop():
            return
        networks = self._ppo.save()
        if self._beside:
            networks = copy.deepcopy(networks)  # training goes on to change them
        infos = {"task": self._task, "env_steps": iteration.env_steps}
        self._evaluations.submit(Candidate(iteration.number, networks, infos))

    def _take_results(self, metrics: dict[str, float]) -> None:
        """Show the evaluations that came, keep the best policy, and add the newest to `metrics`."""
        if self._evaluations is None:
            return
        for candidate, evaluation in self._evaluations.results():
            metrics.update(evaluation.tags(candidate.iteration))
            is_best = metrics["Eval/mean_return"] > self._best
            if is_best:
                self._best = metrics["Eval/mean_return"]
                self._save_best(candidate)
            best = "  (the best so far)" if is_best else ""
            self._say(f"evaluation of iteration {candidate.iteration}: {evaluation}{best}")
            for flag, text in evaluation.warnings.items():
                self._say_once(flag, f"warning: in the evaluation {text}")
        if self._evaluations.failure is not None and not self._stop():
            lost = [str(c) for c in self._conditions if c.tag.startswith("Eval/")]
            self._say_once(
                "failure",
                f"warning: the evaluator process is gone: {self._evaluations.failure}. "
                "Training goes on without evaluation"
                + (f"; {' and '.join(lost)} will not end it" if lost else ""),
            )

    def _save_best(self, candidate: Candidate) -> None:
        infos = {**candidate.infos, _RETURN: self._best}
        try:
            save_model(self._run / BEST, candidate.iteration, candidate.networks, infos)
        except OSError as error:  # a full disk is no reason for a training to end
            self._best = -float("inf")
            self._say(f"warning: {BEST} cannot be written: {error.strerror}")

    def _finish(self, metrics: dict[str, float]) -> None:
        """Wait for the last evaluation, unless the user wants to end."""
        if self._evaluations is None or self._stop():
            return
        if self._beside and self._evaluations.failure is None:
            self._say("waiting for the evaluation of the last policy")
        finished = self._evaluations.finish(self._stop)
        if not (finished or self._evaluations.failure or self._stop()):
            self._say("warning: the last evaluation did not finish in time; it is left out")
        self._take_results(metrics)

    def _condition_holds(self, metrics: dict[str, float]) -> bool:
        condition = first_that_holds(self._conditions, metrics)
        if condition is None:
            return False
        value = metrics[condition.tag]
        self._say_once("condition", f"training ends: {condition.tag} is {value:.4g} ({condition})")
        return True

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self._say(text)


class _OnThisRank:
    """Evaluations while training waits."""

    failure: str | None = None

    def __init__(self, config: TrainConfig, rank: Rank, stop: Callable[[], bool]) -> None:
        self._evaluator = Evaluator(
            evaluation_task(config.env),
            config.ppo.actor,
            config.eval_episodes,
            engine=choose_engine(config.engine, rank.device, rank.threads),
        )
        self._stop = stop
        self._results: list[tuple[Candidate, Evaluation]] = []

    def submit(self, candidate: Candidate) -> None:
        evaluation = self._evaluator(candidate.networks["actor_state_dict"], self._stop)
        if evaluation is not None:
            self._results.append((candidate, evaluation))

    def results(self) -> list[tuple[Candidate, Evaluation]]:
        results, self._results = self._results, []
        return results

    def finish(self, stop: Callable[[], bool]) -> bool:
        return True

    def close(self) -> None:
        self._results.clear()


def _threads_beside(config: TrainConfig, rank: Rank) -> int:
    """CPU threads for the process of its own: what training on this host leaves, at least one."""
    trains = rank.threads * config.cpu_workers if rank.device.type == "cpu" else rank.world_size
    return max(1, len(os.sched_getaffinity(0)) - trains)
