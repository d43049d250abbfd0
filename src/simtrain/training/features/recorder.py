"""Records of a run: ``config.yaml``, ``metrics.jsonl``, TensorBoard, W&B and the console."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from simtrain.config.tasks import task_file
from simtrain.config.train import TrainConfig
from simtrain.config.tree import resolved
from simtrain.errors import ConfigError
from simtrain.run.checkpoint import BEST
from simtrain.run.console import Status
from simtrain.run.directory import write_config
from simtrain.run.metrics import MetricsWriter
from simtrain.training.context import RunContext
from simtrain.training.features import Feature, Iteration

if TYPE_CHECKING:
    from simtrain.run.wandb_writer import WandbWriter
    from simtrain.training.loop import Trainer


class RunRecords:
    """The records in a run directory: of a training, or of a population's exchanges."""

    def __init__(
        self,
        context: RunContext,
        run: Path,
        config: TrainConfig,
        saved: dict[str, Any],
        after: int,
    ) -> None:
        """Open the files; those of a resumed run are continued `after` an iteration.

        `saved` is the `state` at that time, or empty.

        Raises:
            ConfigError: another process writes to this run, or the folder cannot be written to.
        """
        self._run, self._say = run, context.console.say
        self._is_changed, self._shows_videos = False, config.logger == "tensorboard"
        shows_videos, sizes = self._shows_videos, saved.get("event_sizes")
        self.metrics = MetricsWriter(run, tensorboard=shows_videos, after=after, event_sizes=sizes)
        settings, devices = resolved(config), list(context.shared.devices)
        try:
            write_config(run / "config.yaml", settings, devices, task_file(config.task))
        except OSError as error:
            raise ConfigError(f"{run} cannot be written: {error.strerror}") from error
        self._wandb: WandbWriter | None = None
        self._wandb_id: str | None = saved.get("wandb")
        if config.logger == "wandb":
            from simtrain.run.wandb_writer import WandbWriter

            group = None if context.member is None else context.shared.run.name
            self._wandb = WandbWriter(run, settings, self._say, run_id=self._wandb_id, group=group)
            self._wandb_id = self._wandb.run_id

    def write(
        self, iteration: int, env_steps: int, wall_s: float, metrics: dict[str, float]
    ) -> None:
        """Write the numbers of an iteration; see `MetricsWriter.write`."""
        self._is_changed = True
        for writer in (self.metrics, self._wandb):
            if writer is not None:
                writer.write(iteration, env_steps, wall_s, metrics)

    def write_video(self, iteration: int, path: Path) -> None:
        """Show a video in W&B or TensorBoard."""
        if self._wandb is not None:
            self._wandb.write_video(iteration, path)
        elif self._shows_videos:
            from simtrain.view.video import as_gif

            self.metrics.write_video(iteration, as_gif(path))

    def save_checkpoint(self, path: Path) -> None:
        """Add a checkpoint to W&B's run; called in another thread."""
        if self._wandb is not None:
            self._wandb.save(path)

    def state(self) -> dict[str, Any]:
        """The state from which a resumed run continues the records."""
        return {"wandb": self._wandb_id, "event_sizes": self.metrics.event_sizes()}

    def close(self, *, failed: bool) -> None:
        """Close the files, and draw the run's picture unless training `failed`."""
        self.metrics.close()
        if self._wandb is not None:
            if (self._run / BEST).exists():
                self._wandb.save(self._run / BEST)
            self._wandb.close(failed=failed)
        if self._is_changed and not failed:
            from simtrain.plot.report import draw_finished

            draw_finished(self._run, self._say)


class Recorder(Feature):
    """Writes and shows every iteration."""

    main_rank_only = True

    def __init__(self, context: RunContext, trainer: Trainer) -> None:
        self._context = context
        self._trainer = trainer
        self._saved: dict[str, Any] = {}
        self._before = self._wall_s = 0.0
        self._failing = False

    def __enter__(self) -> Self:
        """Open the files, or continue those of a resumed run; ConfigError as in `RunRecords`."""
        context, trainer = self._context, self._trainer
        # An unfinished iteration is recorded again.
        self._first = trainer.iteration - (trainer.unfinished is not None)
        self._iterations = context.iterations(self._first, trainer.env_steps)
        self.records = RunRecords(context, context.run, trainer.config, self._saved, self._first)
        for warning in self.records.metrics.warnings:
            context.console.say(f"warning: {warning}")
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.records.close(failed=kind is not None)

    @property
    def error(self) -> str | None:
        """Why the last metrics could not be written; None if they were written."""
        return self.records.metrics.error

    @property
    def wall_s(self) -> float:
        """Seconds of training so far, over all commands of the run."""
        return self._before + time.perf_counter() - self._start

    def after_iteration(self, iteration: Iteration) -> None:
        """Write and show the metrics and warnings of an iteration, unless it is unfinished."""
        if self._trainer.unfinished is not None:
            return
        number, console = iteration.number, self._context.console
        self._wall_s = self.wall_s
        self.records.write(number, iteration.env_steps, self._wall_s, iteration.metrics)
        seconds_each = (self._wall_s - self._before) / (number - self._first)
        remaining = 0 if iteration.is_last else self._iterations - number
        console.show(
            Status(
                iteration=number,
                iterations=self._iterations,
                env_steps=iteration.env_steps,
                metrics=iteration.metrics,
                max_episode_length=self._trainer.env.max_episode_length,
                seconds_left=seconds_each * remaining,
            )
        )
        for warning in iteration.warnings:
            console.say(f"warning: {warning}")
        if (self.error is not None) != self._failing:
            self._failing = not self._failing
            text = f"warning: metrics cannot be written, trying again: {self.error}"
            console.say(text if self._failing else "metrics are written again, without a gap")

    def state(self) -> dict[str, Any]:
        """See `Feature.state`."""
        return {"wall_s": self._wall_s, **self.records.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Feature.set_state`."""
        self._before = self._wall_s = float(state["wall_s"])
        self._saved = state
