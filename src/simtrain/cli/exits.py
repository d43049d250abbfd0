"""How a command ends: exit codes, and messages instead of tracebacks."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from signal import Signals
from types import FrameType
from typing import NoReturn

from simtrain.cli.output import open_standard_streams
from simtrain.errors import ConfigError, DivergenceError, ExportError, RankError, SimulationError
from simtrain.launch.processes import heeded_signals, limit_spinning

DONE, FAILED, MISTAKE, HUNG_UP, INTERRUPTED, TERMINATED = 0, 1, 2, 129, 130, 143
_CODES = {Signals.SIGHUP: HUNG_UP, Signals.SIGINT: INTERRUPTED, Signals.SIGTERM: TERMINATED}


def run_command(command: Callable[[], int], *, outlives_output: bool = False) -> NoReturn:
    """Run a command and exit with its code; known errors end with a message and no traceback.

    What standard output and error refuse ends the command, unless it `outlives_output`: a disk is
    full, a terminal gone, or the program at the other end of a pipe.
    """
    limit_spinning()
    open_standard_streams(lossy=outlives_output)
    try:
        code = command()
    except (ConfigError, SimulationError, RankError, DivergenceError, ExportError) as error:
        from rich.console import Console  # it takes its time

        from simtrain.run.console import fitted

        print(fitted(f"error: {error}", Console(stderr=True)), file=sys.stderr)
        code = MISTAKE if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (`... | head`), and a message would find none.
        sys.stderr.close()
        code = FAILED
    try:
        sys.stdout.flush()
    except OSError:
        # Or Python would try again, print an error, and exit with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or FAILED
    sys.exit(code)


def end_at_once_on_signals(*signals: Signals) -> None:
    """Let these signals, or all that ask to stop, end this process unless it is `interruptible`."""
    # An exception would not do: some imports catch what is raised in them.
    for number in signals or heeded_signals():
        signal.signal(number, _end_at_once)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, Ctrl-C is a KeyboardInterrupt: half a file is removed, a terminal gets its cursor."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    with suppress(OSError, RuntimeError):  # closed, or in the middle of writing
        sys.stdout.flush()
    os._exit(_CODES.get(Signals(number), DONE))
