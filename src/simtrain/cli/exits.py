"""How a command ends: exit codes, and messages instead of tracebacks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from simtrain.errors import ConfigError, DivergenceError, RankError, SimulationError

DONE = 0
FAILED = 1
MISTAKE = 2
INTERRUPTED = 130
TERMINATED = 143


def run_command(command: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its code; known errors end with a message and theirs.

    Other exceptions are mistakes of the program or of a task file: they keep their traceback, and
    Python exits with 1.
    """
    try:
        code = command()
    except ConfigError as error:
        code = _say(error, MISTAKE)
    except (SimulationError, RankError, DivergenceError) as error:
        code = _say(error, FAILED)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (`... | head`): nobody is left to tell.
        sys.stderr.close()
        code = FAILED
    sys.exit(code)


def _say(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code
