"""Stop signals of a run: messages to the user, the deadline, and the end where it expires."""

import math
import os
import shlex
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from signal import Signals
from typing import NoReturn

from simtrain.launch.launcher import end_launched_ranks
from simtrain.launch.processes import StopSignals
from simtrain.run.checkpoint import model_paths
from simtrain.run.console import TrainingConsole
from simtrain.run.directory import MEMBERS, shown
from simtrain.training.resumption import can_resume

_MESSAGE_SECONDS = 3.0
"""How long the last message may wait for a terminal that takes nothing."""


class Stopping(ExitStack):
    """Shows stop signals on a console, and holds a run to their deadline, while it is entered."""

    def __init__(
        self, task: str, seconds: float, console: TrainingConsole, *, ends_process: bool = True
    ) -> None:
        """Prepare; `seconds` is how long a run of `task` may take to stop, if it `ends_process`.

        Else there is no deadline, and a second Ctrl-C raises KeyboardInterrupt.
        """
        super().__init__()
        self.run: Path | None = None
        """The run directory, once there is one."""
        self.signals = StopSignals(
            seconds if ends_process else math.inf,
            on_signal=self._announce,
            on_expiry=self._expire,
            on_second_interrupt=self._stop_at_once if ends_process else lambda: None,
            raises=not ends_process,
        )
        self._task = task
        self._seconds = seconds
        self._within = f", within {seconds:g} s (--grace-seconds)" if ends_process else ""
        self._console = console
        self._ending = threading.Event()

    def __enter__(self) -> StopSignals:  # type: ignore[override]
        # Python lets no other thread handle signals: there they remain what they are.
        if threading.current_thread() is threading.main_thread():
            self.enter_context(self.signals)
        return self.signals

    def resume_command(self) -> str | None:
        """The command that resumes the run; None where nothing is saved yet."""
        if self.run is None or not can_resume(self.run):
            return None
        return f"uv run train {self._task} --resume {shlex.quote(str(shown(self.run)))}"

    def wait_if_ending(self) -> None:
        """Do not return while another thread ends the process: it has said why."""
        if self._ending.is_set():
            threading.Event().wait()

    def _announce(self, number: Signals) -> None:
        self._console.say(
            f"{number.name}: stopping after this iteration{self._within}; "
            "Ctrl-C again stops at once and does not save"
        )

    def _expire(self, number: Signals) -> NoReturn:
        text = (
            f"error: told to stop by {number.name}, the run could not finish its iteration and "
            f"save within {self._seconds:g} s (--grace-seconds)"
        )
        self._end(text, exit_code(number) or 1)

    def _stop_at_once(self) -> NoReturn:
        text = "stopped at once: the policy of this iteration is not saved"
        self._end(text, exit_code(signal.SIGINT))

    def _end(self, message: str, code: int) -> NoReturn:
        """End this process and its ranks; the main thread may be stuck anywhere."""
        self._ending.set()
        forced = threading.Timer(_MESSAGE_SECONDS, _exit, (code,))
        forced.daemon = True
        forced.start()
        self._console.close()
        last = "there is no checkpoint"
        run = self.run
        if run is not None and (saved := model_paths(run) or model_paths(run / MEMBERS / "0")):
            last = f"the last checkpoint is {shown(saved[-1])}"
            if command := self.resume_command():
                last += f"\nto go on: {command}"
        print(f"{message}; {last}", file=sys.stderr, flush=True)
        _exit(code)


def exit_code(number: int) -> int:
    """The exit code of a run that a signal stopped; 0 for SIGUSR1, by which a scheduler asks."""
    return 0 if number == signal.SIGUSR1 else 128 + number


def _exit(code: int) -> NoReturn:
    end_launched_ranks()
    os._exit(code)
