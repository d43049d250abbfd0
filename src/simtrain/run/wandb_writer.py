"""The metrics and checkpoints of a run on Weights & Biases, for ``--logger wandb``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import wandb

Mode = Literal["online", "offline", "disabled"]
# Seconds for W&B's server to answer at the start, and to upload the rest at the end.
_TIMEOUTS: dict[str, Any] = {"init_timeout": 30.0, "finish_timeout": 60.0}


class WandbWriter:
    """A W&B run for a run directory; its own files lie in ``<run>/wandb``."""

    def __init__(
        self,
        run: Path,
        settings: dict[str, Any],
        say: Callable[[str], None],
        *,
        run_id: str | None = None,
        group: str | None = None,
    ) -> None:
        """Start a W&B run, or go on with `run_id`, and print by `say` where it goes.

        `settings` are the plain values of the run's `TrainConfig`.
        Runs of a `group` stand together there; a member's folder is its number.
        """
        name = run.name if group in (None, run.name) else f"{group} member {run.name}"
        about: dict[str, Any] = {"project": settings["wandb_project"], "name": name, "group": group}
        about |= {"dir": run, "id": run_id, "resume": "allow" if run_id is not None else None}
        # A population has several in one process.
        about |= {"config": settings, "reinit": "create_new"}
        start = partial(wandb.init, settings=wandb.Settings(**_TIMEOUTS), **about)
        mode = _choose(settings["wandb_mode"])
        reason = "" if settings["wandb_mode"] == "offline" else "no API key, so "
        try:
            self._run = start(mode=mode)
        except wandb.errors.CommError:
            reason = f"{wandb.setup().settings.base_url} cannot be reached, so "
            mode = "offline"
            self._run = start(mode=mode)
        self.run_id: str = self._run.id
        # Iterations, not W&B's own count of calls, are on the axis.
        self._run.define_metric("*", step_metric="iteration")
        self._folder = run
        if mode == "online":
            say(f"W&B: {self._run.url}")
        elif mode == "offline":
            say(f"W&B: {reason}offline; `wandb sync {Path(self._run.dir).parent}` uploads it")

    def write(
        self, iteration: int, env_steps: int, wall_s: float, metrics: dict[str, float]
    ) -> None:
        """Log the numbers of an iteration; see `MetricsWriter.write`."""
        counts = {"iteration": iteration, "env_steps": env_steps, "wall_s": wall_s}
        self._run.log({**counts, **metrics}, step=iteration)

    def save(self, checkpoint: Path) -> None:
        """Add a checkpoint to W&B's run."""
        self._run.save(checkpoint, base_path=self._folder, policy="now")

    def write_video(self, iteration: int, path: Path) -> None:
        """Add an MP4 file to what is logged of an iteration."""
        self._run.log({"Video": wandb.Video(str(path), format="mp4")}, step=iteration)

    def close(self, *, failed: bool) -> None:
        """Upload or write the remaining data, and end W&B's run."""
        self._run.finish(exit_code=1 if failed else 0)


def _choose(mode: Mode | Literal["auto"]) -> Mode:
    """The mode: the flag, else the variable ``WANDB_MODE``, else by whether there is an API key."""
    settings = wandb.setup(wandb.Settings(silent=True)).settings
    if mode != "auto":
        return mode
    if settings.mode in ("offline", "disabled"):
        return settings.mode
    return "online" if wandb.login(prompt=False, verify=False) else "offline"
