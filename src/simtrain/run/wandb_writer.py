"""Where an iteration's numbers and checkpoints go with ``--logger wandb``: Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import wandb

Mode = Literal["online", "offline", "disabled"]


class WandbWriter:
    """A W&B run beside the run directory; its own files lie in ``<run>/wandb``."""

    def __init__(
        self,
        run: Path,
        project: str,
        mode: Mode | Literal["auto"],
        config: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """Start a W&B run, and say where it goes.

        Args:
            run: the run directory.
            project: W&B's project.
            mode: W&B's mode; auto is online if there is an API key, else offline.
            config: the configuration as mappings, lists and scalars.
            say: called with what the user should know, a line.
        """
        chosen = _choose(mode)
        self._run = wandb.init(
            project=project,
            name=run.name,
            dir=run,
            config=config,
            mode=chosen,
        )
        # Iterations, not W&B's own count of calls, are on the axis.
        self._run.define_metric("*", step_metric="iteration")
        self._folder = run
        if chosen == "online":
            say(f"W&B: {self._run.url}")
        elif chosen == "offline":
            reason = "" if mode == "offline" else "no API key, so "
            say(f"W&B: {reason}offline; `wandb sync {Path(self._run.dir).parent}` uploads it")

    def write(
        self, iteration: int, env_steps: int, wall_s: float, metrics: dict[str, float]
    ) -> None:
        """Log the numbers of an iteration; see `MetricsWriter.write`."""
        self._run.log(
            {"iteration": iteration, "env_steps": env_steps, "wall_s": wall_s, **metrics},
            step=iteration,
        )

    def save(self, checkpoint: Path) -> None:
        """Add a checkpoint to W&B's run."""
        self._run.save(checkpoint, base_path=self._folder, policy="now")

    def write_video(self, iteration: int, path: Path) -> None:
        """Add an MP4 file to what is logged of an iteration."""
        self._run.log({"Video": wandb.Video(str(path), format="mp4")}, step=iteration)

    def close(self, *, failed: bool) -> None:
        """Upload or write what is left, and end W&B's run."""
        self._run.finish(exit_code=1 if failed else 0)


def _choose(mode: Mode | Literal["auto"]) -> Mode:
    """The mode: the flag, else the variable ``WANDB_MODE``, else by whether there is an API key."""
    settings = wandb.setup(wandb.Settings(silent=True)).settings
    if mode != "auto":
        return mode
    if settings.mode in ("offline", "disabled"):
        return settings.mode
    return "online" if wandb.login(prompt=False, verify=False) else "offline"
