"""Evaluation of the policy while it trains, the best checkpoint, and early stopping.

Rank 0 evaluates, in its own process or in another (`EvaluatorProcess`), and decides; others learn
the result by a broadcast. Training itself is not disturbed: its metrics are the same, to the bit,
with and without evaluation. Imports nothing heavy, so that wrong flags are found at once.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Self

from simtrain.config.metric_tags import DISTILLATION_METRICS, PPO_METRICS, RND_METRICS, metric_tags
from simtrain.config.train import TrainConfig
from simtrain.config.tree import checkpoint_infos
from simtrain.errors import ConfigError, did_you_mean
from simtrain.files import damage_as_config_error
from simtrain.training.features import Feature, Iteration
from simtrain.training.features.conditions import stop_condition
from simtrain.training.features.evaluator_process import EvaluatorProcess, PolicySnapshot

if TYPE_CHECKING:
    from simtrain.training.context import RunContext
    from simtrain.training.evaluator import Evaluation
    from simtrain.training.loop import Trainer

LAST_SECONDS = 300.0
"""How long the end of training waits for the last evaluation."""
_RETURN = "eval_mean_return"
"""Where the best checkpoint's ``infos`` have its mean return."""


class PeriodicEvaluation(Feature):
    """Evaluates every ``--eval-interval`` iterations, and ends training when a condition holds."""

    phase = "evaluation"

    def __init__(self, context: RunContext, trainer: Trainer) -> None:
        self._context = context
        self._trainer = trainer
        self._interval = context.config.eval_interval
        self._condition = stop_condition(context.config)
        self._in_process = context.shared.evaluator is None
        self._shown: set[str] = set()
        self._evaluations: EvaluatorProcess | _EvaluatorInProcess | None = None
        self._best = -float("inf")

    def __enter__(self) -> Self:
        """Build the evaluator on rank 0; ConfigError if a metric of the task is not as required."""
        context = self._context
        if self._interval is None or not context.rank.is_main:
            return self
        from simtrain.run.checkpoint import BEST, read_checkpoint

        if (context.run / BEST).exists():  # of a run that is resumed
            try:
                infos = read_checkpoint(context.run / BEST)["infos"]
                with damage_as_config_error(f"{BEST} is damaged"):
                    self._best = float(infos.get(_RETURN, self._best))
            except ConfigError as error:
                self._say(f"warning: {error}; the next evaluation's policy takes its place")
        if context.shared.evaluator is None:
            self._evaluations = _EvaluatorInProcess(context)
        else:
            config, rank = context.config, context.rank
            # Threads that training on this host leaves, at least one.
            trains = (rank.of_job or rank).world_size
            if rank.device.type == "cpu":
                trains = rank.threads * (config.cpu_workers if rank.of_job is None else trains)
            threads = max(1, len(os.sched_getaffinity(0)) - trains)
            devices = context.shared.evaluator
            self._evaluations = EvaluatorProcess(config, devices, threads, context.stop)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._evaluations is not None:
            self._evaluations.close()

    def after_iteration(self, iteration: Iteration) -> None:
        """Add an evaluation's metrics, and whether training ends; all ranks call it together."""
        due = self._interval is not None and (
            iteration.number % self._interval == 0 or iteration.is_last
        )
        if not (due or self._condition or not self._in_process):
            return
        metrics: dict[str, float] = {}
        ends = False
        rank = self._context.rank
        if rank.is_main:
            metrics, ends = self._evaluate(iteration, due)
        metrics, ends = rank.broadcast_object((metrics, ends))
        iteration.metrics |= metrics
        iteration.is_last = iteration.is_last or ends

    def _evaluate(self, iteration: Iteration, due: bool) -> tuple[dict[str, float], bool]:
        """The metrics of an evaluation, and whether a stop condition holds; on rank 0."""
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
        if self._evaluations is None or self._context.stop():
            return
        from simtrain.run.checkpoint import copied_to_host

        config, networks = self._trainer.config, self._trainer.ppo.save()
        if not self._in_process:
            networks = copied_to_host(networks)  # training goes on to change them
        infos = checkpoint_infos(config, iteration.env_steps)
        self._evaluations.submit(PolicySnapshot(iteration.number, config, networks, infos))

    def _take_results(self, metrics: dict[str, float]) -> None:
        """Show the evaluations that came, keep the best policy, and add the newest to `metrics`."""
        if self._evaluations is None:
            return
        for policy, evaluation in self._evaluations.results():
            metrics.update(evaluation.tags(policy.iteration))
            is_best = metrics["Eval/mean_return"] > self._best
            if is_best:
                self._best = metrics["Eval/mean_return"]
                self._save_best(policy)
            best = "  (the best so far)" if is_best else ""
            self._say(f"evaluation of iteration {policy.iteration}: {evaluation}{best}")
            for flag, text in evaluation.warnings.items():
                self._say_once(flag, f"warning: in the evaluation {text}")
        if self._evaluations.failure is not None and not self._context.stop():
            lost = self._condition is not None and self._condition.needs_evaluations
            self._say_once(
                "failure",
                f"warning: the evaluator process is gone: {self._evaluations.failure}. "
                "Training goes on without evaluation"
                + (f'; --until "{self._condition}" will not end it' if lost else ""),
            )

    def _save_best(self, policy: PolicySnapshot) -> None:
        from simtrain.run.checkpoint import BEST
        from simtrain.training.features.checkpoint import save_policy

        infos = {**policy.infos, _RETURN: self._best}
        path = self._context.run / BEST
        try:
            save_policy(
                self._context, path, policy.config, policy.iteration, policy.networks, infos
            )
        except OSError as error:  # a full disk is no reason for a training to end
            self._best = -float("inf")
            self._say(f"warning: {BEST} cannot be written: {error.strerror}")

    def _finish(self, metrics: dict[str, float]) -> None:
        """Wait for the last evaluation, unless the user wants to end."""
        stop = self._context.stop
        if self._evaluations is None or stop():
            return
        if not self._in_process and self._evaluations.failure is None:
            self._say("waiting for the evaluation of the last policy")
        finished = self._evaluations.finish(LAST_SECONDS)
        if not (finished or self._evaluations.failure or stop()):
            self._say("warning: the last evaluation did not finish in time; it is left out")
        self._take_results(metrics)

    def _condition_holds(self, metrics: dict[str, float]) -> bool:
        condition = self._condition
        if condition is None or not condition.holds(metrics):
            return False
        tags = dict.fromkeys(comparison.tag for comparison in condition.comparisons)
        values = ", ".join(f"{tag} is {metrics[tag]:.4g}" for tag in tags if tag in metrics)
        self._say_once("condition", f'training ends: {values} (--until "{condition}")')
        return True

    def _say(self, text: str) -> None:
        self._context.console.say(text)

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._shown:
            self._shown.add(key)
            self._say(text)


class _EvaluatorInProcess:
    """Evaluates while training waits; its calls are those of `EvaluatorProcess`."""

    failure: str | None = None

    def __init__(self, context: RunContext) -> None:
        from simtrain.training.evaluator import evaluator_of_run

        rank = context.rank
        self._stop = context.stop
        self._evaluator = evaluator_of_run(context.config, rank.device, rank.threads)
        self._results: list[tuple[PolicySnapshot, Evaluation]] = []

    def submit(self, policy: PolicySnapshot) -> None:
        from simtrain.run.checkpoint import policy_state

        state = policy_state(policy.networks)
        evaluation = self._evaluator(policy.config.ppo.actor, state, self._stop)
        if evaluation is not None:
            self._results.append((policy, evaluation))

    def results(self) -> list[tuple[PolicySnapshot, Evaluation]]:
        results, self._results = self._results, []
        return results

    def finish(self, seconds: float) -> bool:
        return True

    def close(self) -> None:
        self._results.clear()


def check_evaluation_flags(config: TrainConfig, engine: str | None = None) -> None:
    """Check the flags of evaluation and early stopping; `engine` is that of training if known.

    Raises:
        ConfigError: a metric that training does not log, one that needs an evaluation that is off,
            or a device that cannot evaluate.
    """
    device = config.eval_device
    if device is not None:
        if not re.fullmatch(r"cpu|cuda:\d+", device):
            raise ConfigError(
                f"--eval-device is {device!r}; it must be cpu, or cuda:0, cuda:1, ..."
            )
        if config.eval_interval is None:
            raise ConfigError(
                f"--eval-device {device} needs --eval-interval, the iterations between evaluations"
            )
        if device != "cpu" and config.engine == "mujoco":
            raise ConfigError(
                f"--eval-device {device} simulates on the GPU, which --engine mujoco cannot; "
                "use --eval-device cpu"
            )
    overflow = (engine or config.engine) != "mujoco"
    own = PPO_METRICS if config.teacher is None else DISTILLATION_METRICS
    own += RND_METRICS if config.ppo.rnd.weight != 0.0 else ()
    own += ("Loss/symmetry",) if config.ppo.symmetry.is_used else ()
    tags = metric_tags(config.env, overflow=overflow, phase_times=config.phase_times, algorithm=own)
    condition = stop_condition(config)
    for tag in () if condition is None else (c.tag for c in condition.comparisons):
        if tag not in tags:
            raise ConfigError(
                f"--until: training logs no metric {tag!r}{did_you_mean(tag, tags)}; "
                "metrics.jsonl of a run shows their names"
            )
        if tag.startswith("Eval/") and config.eval_interval is None and config.population is None:
            raise ConfigError(
                f'--until "{condition}" needs evaluations; add --eval-interval, the iterations '
                "between them"
            )
