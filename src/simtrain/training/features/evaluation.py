"""Evaluation of the policy during training, the best checkpoint, and early stopping.

Rank 0 evaluates, in its own process or in an `EvaluatorProcess`, and broadcasts the results.
Evaluations do not change the metrics of training, not even in the last bit.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from simtrain.files import damage_as_config_error
from simtrain.run.checkpoint import BEST, copied_to_host, read_checkpoint
from simtrain.training.context import RunContext
from simtrain.training.evaluator import Evaluation, Evaluator, evaluator_of_run
from simtrain.training.features import Feature, Iteration
from simtrain.training.features.checkpoint import PolicySnapshot, save_best
from simtrain.training.features.conditions import StopCondition, stop_condition
from simtrain.training.features.evaluator_process import EvaluatorProcess

if TYPE_CHECKING:
    from simtrain.training.loop import Trainer

LAST_SECONDS = 300.0
"""Time that the end of training waits for the last evaluation."""
_RETURN = "eval_mean_return"
"""Key of the mean return in the ``infos`` of the best checkpoint."""


class PeriodicEvaluation(Feature):
    """Evaluates every ``--eval-interval`` iterations; ends training when a condition is true."""

    phase = "evaluation"

    def __init__(self, context: RunContext, trainer: Trainer) -> None:
        self._context = context
        self._trainer = trainer
        self._interval = context.config.eval_interval
        self._condition = stop_condition(context.config) or StopCondition(())  # that never holds
        self._say = context.console.say
        self._shown: set[str] = set()
        self._evaluator: Evaluator | None = None
        self._process: EvaluatorProcess | None = None
        self._done: list[tuple[PolicySnapshot, Evaluation]] = []
        self._newest: tuple[int, Evaluation] | None = None  # of this process, and its iteration
        self._best = -math.inf

    def __enter__(self) -> Self:
        """Build the evaluator on rank 0; ConfigError if a metric of the task is not as required."""
        context, config, rank = self._context, self._context.config, self._context.rank
        if not rank.is_main:
            return self
        devices = context.shared.evaluator
        if context.member is not None or (self._interval is not None and devices is None):
            self._evaluator = evaluator_of_run(config, rank.device, rank.threads)
        if self._interval is None:
            return self
        if (context.run / BEST).exists():  # of a run that is resumed
            infos = read_checkpoint(context.run / BEST)["infos"]
            with damage_as_config_error(f"{BEST} is damaged"):
                self._best = float(infos.get(_RETURN, self._best))
        if devices is not None:
            # Threads that training on this host leaves, at least one.
            trains = (rank.of_job or rank).world_size
            if rank.device.type == "cpu":
                trains = rank.threads * (config.cpu_workers if rank.of_job is None else trains)
            threads = max(1, len(os.sched_getaffinity(0)) - trains)
            self._process = EvaluatorProcess(config, devices, threads)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._process is not None:
            self._process.close()

    def after_iteration(self, iteration: Iteration) -> None:
        """Add an evaluation's metrics, and end training if due; all ranks call it together."""
        context = self._context
        due = self._interval is not None and (
            iteration.number % self._interval == 0 or iteration.is_last
        )
        if not (due or self._condition.alternatives or context.shared.evaluator):
            return
        metrics: dict[str, float] = {}
        ends = False
        if context.rank.is_main:
            metrics, ends = self._evaluate(iteration, due)
        metrics, ends = context.rank.broadcast_object((metrics, ends))
        iteration.metrics |= metrics
        iteration.is_last = iteration.is_last or ends

    def evaluation_of(
        self, iteration: int, stop: Callable[[], bool] = lambda: False
    ) -> Evaluation | None:
        """Evaluate the current policy, once in each iteration; None if `stop`; on rank 0."""
        if self._newest is None or self._newest[0] != iteration:
            assert self._evaluator is not None
            actor, policy = self._trainer.config.ppo.actor, self._trainer.ppo.actor
            evaluation = self._evaluator(actor, policy.state_dict(), stop)
            if evaluation is None:
                return None
            self._newest = iteration, evaluation
        return self._newest[1]

    def _evaluate(self, iteration: Iteration, due: bool) -> tuple[dict[str, float], bool]:
        """The metrics of an evaluation, and whether a stop condition holds; on rank 0."""
        if due:
            self._submit(iteration)
        metrics = self._results()
        ends = self._condition_holds({**iteration.metrics, **metrics})
        if ends or iteration.is_last:
            if not due:
                self._submit(iteration)
            if self._process is not None:
                self._wait(self._process)
            metrics |= self._results()
            ends = ends or self._condition_holds(metrics)
        return metrics, ends

    def _submit(self, iteration: Iteration) -> None:
        """Evaluate the policy, unless training is to stop."""
        stop, trainer = self._context.stop, self._trainer
        if self._interval is None or stop():
            return
        networks, counts = trainer.ppo.save(), (iteration.number, iteration.env_steps)
        if self._process is not None:
            networks = copied_to_host(networks)  # training goes on to change them
            self._process.submit(PolicySnapshot(*counts, trainer.config, networks))
        elif (evaluation := self.evaluation_of(iteration.number, stop)) is not None:
            policy = PolicySnapshot(*counts, trainer.config, networks)
            self._done.append((policy, evaluation))

    def _results(self) -> dict[str, float]:
        """Show finished evaluations, keep the best policy; the newest evaluation's metrics."""
        context = self._context
        metrics: dict[str, float] = {}
        if self._process is not None:
            self._done += self._process.results()
        done, self._done = self._done, []
        for policy, evaluation in done:
            metrics = evaluation.tags(policy.iteration)
            mean_return, best = metrics["Eval/mean_return"], ""
            if mean_return > self._best:
                best = "  (the best so far)"
                is_saved = save_best(context, context.run, policy, **{_RETURN: mean_return})
                self._best = mean_return if is_saved else -math.inf
            self._say(f"evaluation of iteration {policy.iteration}: {evaluation}{best}")
            for flag, text in evaluation.warnings.items():
                self._say_once(flag, f"warning: in the evaluation {text}")
        failure = None if self._process is None else self._process.failure
        if failure is not None and not context.stop():
            text = (
                f"the evaluator process is gone: {failure}. Training continues without evaluation"
            )
            if self._condition.needs_evaluations:
                text += f'; --until "{self._condition}" will not end it'
            self._say_once("failure", f"warning: {text}")
        return metrics

    def _wait(self, process: EvaluatorProcess) -> None:
        """Wait for the last evaluation, unless the user stops the run."""
        stop = self._context.stop
        if stop() or process.failure is not None:
            return
        self._say("waiting for the evaluation of the last policy")
        deadline = time.monotonic() + LAST_SECONDS
        while process.is_busy and not stop():
            if time.monotonic() > deadline:
                self._say("warning: the last evaluation did not finish in time; it is left out")
                return
            self._done += process.results(0.2)

    def _condition_holds(self, metrics: dict[str, float]) -> bool:
        condition = self._condition
        if not condition.holds(metrics):
            return False
        tags = dict.fromkeys(comparison.tag for comparison in condition.comparisons)
        values = ", ".join(f"{tag} is {metrics[tag]:.4g}" for tag in tags if tag in metrics)
        self._say_once("condition", f'training ends: {values} (--until "{condition}")')
        return True

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._shown:
            self._shown.add(key)
            self._say(text)
