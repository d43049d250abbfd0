"""Records of a run: ``config.yaml``, ``metrics.jsonl``, TensorBoard, W&B and the console."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

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


class Recorder(Feature):
    """Writes and shows every iteration."""

    main_rank_only = True

    def __init__(self, context: RunContext, trainer: Trainer) -> None:
        self._context = context
        self._trainer = trainer
        self._wandb_id: str | None = None
        self._event_sizes: dict[str, int] | None = None
        self._before = 0.0
        self._wall_s = 0.0
        self._failing = False

    def __enter__(self) -> Self:
        """Open the files where a resumed run left off.

        Raises:
            ConfigError: another process writes to this run, or the folder cannot be written to.
        """
        config, run = self._context.config, self._context.run
        # An unfinished iteration is recorded again.
        self._first = self._trainer.iteration - (self._trainer.unfinished is not None)
        self._iterations = self._context.iterations(self._first, self._trainer.env_steps)
        self._metrics = MetricsWriter(
            run,
            tensorboard=config.logger == "tensorboard",
            after=self._first,
            env_steps=None if self._trainer.unfinished else self._trainer.env_steps,
            event_sizes=self._event_sizes,
        )
        for warning in self._metrics.warnings:
            self._context.console.say(f"warning: {warning}")
        try:
            devices = list(self._context.shared.devices)
            write_config(run / "config.yaml", resolved(self._trainer.config), devices)
        except OSError as error:
            raise ConfigError(f"{run} cannot be written: {error.strerror}") from error
        self._wandb: WandbWriter | None = None
        if config.logger == "wandb":
            from simtrain.run.wandb_writer import WandbWriter

            self._wandb = WandbWriter(
                run,
                self._trainer.config,
                self._context.console.say,
                run_id=self._wandb_id,
                group=None if self._context.member is None else self._context.shared.run.name,
            )
            self._wandb_id = self._wandb.run_id
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        run = self._context.run
        self._metrics.close()
        if self._wandb is not None:
            if (run / BEST).exists():
                self._wandb.save(run / BEST)
            self._wandb.close(failed=kind is not None)
        if kind is None:
            from simtrain.plot.report import draw_finished

            draw_finished(run, self._context.console.say)

    @property
    def error(self) -> str | None:
        """Why the last metrics could not be written, or None if they were."""
        return self._metrics.error

    def after_iteration(self, iteration: Iteration) -> None:
        """Write and show the iteration's metrics and warnings, unless it is unfinished."""
        if self._trainer.unfinished is not None:
            return
        seconds = time.perf_counter() - self._start
        self._wall_s = self._before + seconds
        numbers = (iteration.number, iteration.env_steps, self._wall_s, iteration.metrics)
        self._metrics.write(*numbers)
        if self._wandb is not None:
            self._wandb.write(*numbers)
        done = iteration.number - self._first
        remaining = self._iterations - iteration.number
        console = self._context.console
        console.show(
            Status(
                iteration=iteration.number,
                iterations=self._iterations,
                env_steps=iteration.env_steps,
                metrics=iteration.metrics,
                max_episode_length=self._trainer.env.max_episode_length,
                seconds_left=0.0 if iteration.is_last else seconds / done * remaining,
            )
        )
        for warning in iteration.warnings:
            console.say(f"warning: {warning}")
        if (self._metrics.error is not None) != self._failing:
            self._failing = not self._failing
            console.say(
                f"warning: metrics cannot be written, trying again: {self._metrics.error}"
                if self._failing
                else "metrics are written again, without a gap"
            )

    @property
    def wall_s(self) -> float:
        """Seconds of training so far, over all commands that went on with it."""
        return self._before + time.perf_counter() - self._start

    def state(self) -> dict[str, Any]:
        """See `Feature.state`."""
        sizes = self._metrics.event_sizes()
        return {"wall_s": self._wall_s, "wandb": self._wandb_id, "event_sizes": sizes}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Feature.set_state`."""
        self._before = self._wall_s = float(state["wall_s"])
        self._wandb_id = state["wandb"]
        self._event_sizes = state.get("event_sizes")  # older versions did not save it

    def sync(self) -> None:
        """Wait until the metrics are on the disk; for another thread."""
        self._metrics.sync()

    def save_checkpoint(self, path: Path) -> None:
        """Add a checkpoint to W&B's run."""
        if self._wandb is not None:
            self._wandb.save(path)

    def write_video(self, iteration: int, path: Path) -> None:
        """Show a video in W&B or TensorBoard."""
        if self._wandb is not None:
            self._wandb.write_video(iteration, path)
        elif self._context.config.logger == "tensorboard":
            from simtrain.view.video import as_gif

            self._metrics.write_video(iteration, as_gif(path))
