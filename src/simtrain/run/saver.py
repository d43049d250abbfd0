"""Saves in a thread of its own, so that training does not wait for the disk.

A save writes the checkpoint of the policy and then the state to resume from. One save is in flight
at most; a newer one that is asked for meanwhile waits, and takes the place of one that waits
already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simtrain.run.checkpoint import model_path, model_paths, save_model
from simtrain.run.resume import write_resume_state

_RETRY_SECONDS = 10.0
"""How long after a save that failed it is tried again."""


@dataclass(frozen=True)
class Save:
    """What to write; nothing may change it afterwards."""

    iteration: int
    """How many iterations were trained."""
    networks: dict[str, Any]
    """State of actor, critic and optimizer under rsl_rl's keys."""
    infos: dict[str, Any]
    """Plain values to keep beside them."""
    resume: Callable[[], dict[str, Any]]
    """Makes the whole training state, in the thread."""


class Saver:
    """Writes the newest `Save` that it was given; keeps trying where that fails."""

    def __init__(self, run: Path, keep: int | None, before: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            run: the run directory.
            keep: how many checkpoints to keep, or None for all.
            before: called before a state is written, in the thread.
        """
        self._run = run
        self._keep = keep
        self._before = before
        self._condition = threading.Condition()
        self._next: Save | None = None
        self._busy = False
        self._closing = False
        self._messages: list[str] = []
        self.saved: Path | None = None
        """The last checkpoint that was written."""
        self.error: str | None = None
        """Why the last save could not be written, or None if it was."""
        self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self._thread.start()

    def submit(self, save: Save) -> None:
        """Have `save` written soon; does not wait."""
        with self._condition:
            if self._next is not None and self.error is None:
                self._messages.append(
                    f"warning: {model_path(self._run, self._next.iteration).name} is left out, for "
                    "the disk is slower than --save-interval asks for"
                )
            self._next = save
            self._condition.notify()

    def messages(self) -> list[str]:
        """What a person should know since this was last asked."""
        with self._condition:
            messages, self._messages = self._messages, []
        return messages

    def wait(self) -> None:
        """Wait until everything is written, or the last try has failed."""
        with self._condition:
            self._condition.wait_for(
                lambda: not self._busy and (self._next is None or self.error is not None)
            )

    def close(self) -> None:
        """Write what is left, or find that this is impossible, and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._condition:
                failed = self.error is not None and self._next is not None
                if failed and not self._closing:
                    self._condition.wait(_RETRY_SECONDS)
                else:
                    self._condition.wait_for(lambda: self._next is not None or self._closing)
                if self._next is None:
                    return
                save, self._next, self._busy = self._next, None, True
            error = self._write(save)
            with self._condition:
                self._busy = False
                self._note(save, error)
                if error is not None and self._next is None and not self._closing:
                    self._next = save
                self._condition.notify_all()

    def _write(self, save: Save) -> str | None:
        """Write everything; what went wrong, or None."""
        path = model_path(self._run, save.iteration)
        try:
            self._before()
            save_model(path, save.iteration, save.networks, save.infos)
            write_resume_state(self._run, save.resume())
            self.saved = path
            for old in model_paths(self._run)[: -self._keep] if self._keep else []:
                old.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # torch turns errors of a file into its own
            return getattr(error, "strerror", None) or str(error).splitlines()[0]
        return None

    def _note(self, save: Save, error: str | None) -> None:
        name = model_path(self._run, save.iteration).name
        if error is not None and self.error is None:
            self._messages.append(
                f"warning: {name} cannot be saved, trying again: {error} ({self._run})"
            )
        elif error is None and self.error is not None:
            self._messages.append(f"{name} is saved, the disk can be written again")
        self.error = error
