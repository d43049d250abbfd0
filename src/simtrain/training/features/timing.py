"""A trace of a few iterations by ``torch.profiler``, with their phases marked in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

import torch
from torch import profiler
from torch._C._profiler import _ExperimentalConfig

from simtrain.env.phase_timer import Interval, PhaseTimer

TRACE = "trace.json"
FIRST, LAST = 10, 12
"""The iterations that are traced, counted from the start of the command."""


class Profile:
    """Traces this process; a context manager around the iterations."""

    def __init__(self, run: Path, timer: PhaseTimer, say: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            run: the folder for the trace.
            timer: what shall be told the phases of an iteration as well.
            say: shows a line.
        """
        self.timer = MarkingTimer(timer)
        """What to tell the phases, so that the trace shows them."""
        self._path = run / TRACE
        self._say = say
        self._written = False
        os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # it has much to say of itself
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profiler = profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=FIRST - 2, warmup=1, active=LAST - FIRST + 1, repeat=1),
            on_trace_ready=self._write,
            # The value learns in a thread beside the policy's.
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )

    def __enter__(self) -> Self:
        self._profiler.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.timer.end()
        self._profiler.stop()
        if not self._written and exception[0] is None:
            self._say(
                f"warning: there is no trace (--profile): training ended before iteration {FIRST}"
            )

    def step(self) -> None:
        """An iteration is over."""
        self.timer.end()
        self._profiler.step()

    def _write(self, traced: profiler.profile) -> None:
        if self._written:
            return
        self._written = True
        try:
            traced.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:  # a full disk is no reason to end
            self._say(f"warning: {self._path} cannot be written: {error}")
            return
        self._say(f"trace:      {self._path} (--profile; open it in https://ui.perfetto.dev)")


class MarkingTimer(PhaseTimer):
    """Passes phases on to another timer, and shows them in a trace."""

    def __init__(self, inner: PhaseTimer) -> None:
        self._inner = inner
        self._mark: torch.autograd.profiler.record_function | None = None

    def begin(self, phase: str) -> None:
        """See `PhaseTimer.begin`."""
        if self._paused:
            return
        self.end()
        self._inner.begin(phase)
        self._mark = torch.autograd.profiler.record_function(phase)
        self._mark.__enter__()

    def take(self, then: str) -> list[Interval]:
        """See `PhaseTimer.take`."""
        self.end()
        return self._inner.take(then)

    def end(self) -> None:
        """End the mark of the present phase in the trace."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
