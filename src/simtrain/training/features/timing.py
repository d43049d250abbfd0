"""Phases of an iteration in a table, and a trace by ``torch.profiler``."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Self

from rich.table import Table
from torch import profiler
from torch._C._profiler import _ExperimentalConfig

from simtrain.launch.phase_timer import NO_TIMER, Interval, PhaseTimer, make_timer
from simtrain.run.metric_tags import GROUPS
from simtrain.training.context import RunContext
from simtrain.training.features import Feature, Iteration
from simtrain.training.loop import Trainer

TRACE = "trace.json"
_FEWEST = 5
"""Minimum number of iterations for the table at the end; the first ones warm up."""
FIRST, LAST = 10, 12
"""The iterations that are traced, counted from the start of the command."""


def training_timer(context: RunContext) -> PhaseTimer:
    """The timer for environments, algorithm and trainer."""
    config = context.config
    timer = make_timer(context.rank.device) if config.phase_times else NO_TIMER
    return TracedTimer(timer) if config.profile and context.rank.is_main else timer


class Timing(Feature):
    """Adds up the phases, including those of later features; traces with ``--profile``."""

    phase = "other"
    main_rank_only = True

    def __init__(self, context: RunContext, trainer: Trainer) -> None:
        self._context = context
        self._trainer = trainer
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._profiler: profiler.profile | None = None
        self._marks = ExitStack()  # of the timer, in a trace
        self._is_written = False

    def __enter__(self) -> Self:
        self._first = self._trainer.iteration
        if isinstance(self._trainer.timer, TracedTimer):
            self._marks = self._trainer.timer.marks
            os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # it prints much
            self._profiler = profiler.profile(
                schedule=profiler.schedule(
                    wait=FIRST - 2, warmup=1, active=LAST - FIRST + 1, repeat=1
                ),
                on_trace_ready=self._write,
                # The value learns in a thread beside the policy's.
                experimental_config=_ExperimentalConfig(profile_all_threads=True),
            )
            self._profiler.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self._add(self._trainer.timer.take("other"))  # since the last iteration
        if self._profiler is not None:
            self._marks.close()
            self._profiler.stop()
            if not self._is_written and kind is None:
                self._context.console.say(
                    "warning: there is no trace (--profile): training ended before iteration "
                    f"{FIRST}"
                )

    @property
    def phases(self) -> dict[str, float]:
        """Mean seconds per iteration of each phase; empty without a timer."""
        iterations = max(1, self._trainer.iteration - self._first)
        return {phase: total / iterations for phase, total in self._totals.items()}

    @property
    def shown(self) -> dict[str, float]:
        """`phases` for the table at the end; empty if there were only a few iterations."""
        return self.phases if self._trainer.iteration - self._first >= _FEWEST else {}

    def after_iteration(self, iteration: Iteration) -> None:
        """Add the phases of the iteration, and end it in a trace."""
        self._add(iteration.phases.items())
        if self._profiler is not None:
            self._marks.close()
            self._profiler.step()

    def _add(self, intervals: Iterable[Interval]) -> None:
        for phase, seconds in intervals:
            self._totals[phase] += seconds

    def _write(self, traced: profiler.profile) -> None:
        self._is_written = True
        path, console = self._context.run / TRACE, self._context.console
        try:
            traced.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:  # a full disk is no reason to end
            console.say(f"warning: {path} cannot be written: {error}")
        else:
            console.say(f"trace:      {path} (--profile; open it in https://ui.perfetto.dev)")


class TracedTimer(PhaseTimer):
    """Passes phases on to another timer, and marks them in a trace."""

    def __init__(self, inner: PhaseTimer) -> None:
        self._inner = inner
        self.marks = ExitStack()
        """The mark of the present phase; closing it ends the mark."""

    def begin(self, phase: str) -> None:
        """See `PhaseTimer.begin`."""
        if not self._paused:
            self.marks.close()
            self._inner.begin(phase)
            self.marks.enter_context(profiler.record_function(phase))

    def take(self, then: str) -> list[Interval]:
        """See `PhaseTimer.take`."""
        self.marks.close()
        return self._inner.take(then)


def phase_table(seconds: Mapping[str, float]) -> Table:
    """A row for each phase, and each group of phases, that took time in an iteration."""
    total = sum(seconds.values())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("where the time went")
    for title in ("ms", "share"):
        table.add_column(title, justify="right")

    def add_row(name: str, part: float, style: str = "") -> None:
        table.add_row(name, f"{1e3 * part:,.2f}", f"{100.0 * part / total:.1f} %", style=style)

    for name, group in GROUPS.items():
        parts = {label: seconds.get(phase, 0.0) for phase, label in group.items()}
        if sum(parts.values()) > 0.0:
            add_row(name, sum(parts.values()), "bold")
        for label, part in parts.items():
            if part > 0.0:
                add_row(f"  {label}", part)
    add_row("iteration", total, "bold")
    return table
