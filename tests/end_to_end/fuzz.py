"""Commands with values that nobody should give them, in this process, from a seed.

``python tests/end_to_end/fuzz.py 1000`` runs as many cases and prints a line for each problem. A
case is a problem if a command ends with a traceback, takes longer than `SECONDS`, says nothing, or
leaves the folder of a start that failed.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from job import make_tasks

from simtrain.cli import terminal
from simtrain.cli.benchmark import BenchmarkFlags, benchmark
from simtrain.cli.evaluate import EvaluateFlags, evaluate
from simtrain.cli.export import ExportConfig, export
from simtrain.cli.play import PlayConfig, ReplayConfig, play
from simtrain.cli.report import ReportConfig, report
from simtrain.cli.train import train
from simtrain.config.tasks import default_config
from simtrain.env.base import make_engine
from simtrain.errors import flag
from simtrain.limits import leaves

SECONDS = 10
TASK = "user-pendulum"
SMALL = ["--gpu-ids", "None", "--cpu-threads", "1", "--num-envs", "4", "--num-steps-per-env", "8",
         "--max-iterations", "4", "--save-interval", "2", "--torchrunx-log-dir="]  # fmt: skip
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    f.__name__: f for f in (train, evaluate, play, export, report, benchmark)
}
NUMBERS = [*map(str, (0, 1, -1, 3, 0.5, 1e-300, 2**24, 10**5, 10**9, 10**12, 2**31, 10**399))]
NUMBERS += ["1e300", "-1e300", "nan", "inf", "-inf", "9" * 5000]
WORDS = ["", " ", "x", "None", "True", "auto", "all", "é\udc80", "a" * 300, "a" * 5000, "-", "--"]
WORDS += [".", "..", "fifo", "loop", "zero", "file", "gone/x", "out.mp4", "out.png", ".*", "("]
SLOW = (
    "simtrain.training.job.launch_ranks",
    "simtrain.launch.plan.probe_hosts",
    "simtrain.training.features.evaluation.EvaluatorProcess",
    "simtrain.run.wandb_writer.WandbWriter",
    "simtrain.benchmark.ranks.measure_cases",
    "simtrain.view.web.WebViewer",
    "simtrain.view.video.record",
    "simtrain.view.film.FilmPage",
    "simtrain.view.film.record_film",
)


class Accepted(Exception):
    """A command has accepted what it was given, and would now work for long."""


class TooLong(BaseException):
    """A command works for longer than `SECONDS`."""


@dataclass
class Ended:
    """How a command ended, and what is wrong with that."""

    code: int | None
    out: str
    err: str
    problem: str | None = None

    @property
    def has_warning(self) -> bool:
        return "warning" in self.out + self.err


def run(command: str, arguments: list[str]) -> Ended:
    """Run a command as its entry point does."""
    out, err = io.StringIO(), io.StringIO()
    code: int | None = None
    problem = None

    def too_long(*of_signal: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with nothing_slow(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            terminal.run_command(lambda: COMMANDS[command](arguments))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Accepted:
        code = 0
    except TooLong:
        problem = f"it takes longer than {SECONDS} s"
    except BaseException:  # noqa: BLE001 - whatever a command ends with
        problem = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    ended = Ended(code, out.getvalue(), err.getvalue(), problem)
    errors = [line for line in ended.err.splitlines() if not line.startswith("warning: ")]
    is_told = 1 <= len(errors) <= 14 and "error: " in ended.err
    # A run whose last checkpoint could not be written, say, has a warning alone.
    if problem is None and not (code == 0 or (code in (1, 2) and is_told)):
        if code != 1 or not ended.has_warning:
            ended.problem = f"exit code {code} with {len(errors)} lines"
    elif "Traceback" in ended.err:
        ended.problem = ended.err
    return ended


def accept(*arguments: object, **named: object) -> None:
    """Stand in for what would take long, and need no more checks."""
    raise Accepted


def small_engine(cfg: Any, model: Any, num_envs: int, **more: Any) -> Any:
    """An engine that is made at once; others are `Accepted`."""
    if cfg.name != "mujoco" or num_envs > 1000:
        raise Accepted
    return make_engine(cfg, model, num_envs, **more)


@contextlib.contextmanager
def nothing_slow() -> Iterator[None]:
    """Within, commands neither start processes, serve pages, draw, nor train at length."""
    from simtrain.training.loop import Trainer

    iterate = Trainer.iterate

    def iterate_a_little(trainer: Any, *arguments: Any) -> Any:
        env = trainer.env
        if trainer.iteration >= 8 or env.num_envs * trainer._steps * env.cfg.decimation > 5000:
            raise Accepted
        return iterate(trainer, *arguments)

    replaced = dict.fromkeys(SLOW, accept) | {
        "simtrain.env.base.make_engine": small_engine,
        "simtrain.training.loop.Trainer.iterate": iterate_a_little,
        "simtrain.deployment.export.export": lambda *of_export: (b"", 0.0),
        "simtrain.plot.panels.as_file": lambda *of_plot: b"",
    }
    with contextlib.ExitStack() as stack:
        for name, stand_in in replaced.items():
            stack.enter_context(mock.patch(name, stand_in))
        yield


@dataclass
class Fuzzer:
    """Cases from one generator, in a folder of a user with a task and a run of it."""

    folder: Path
    random: random.Random
    problems: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        make_tasks(self.folder)
        os.chdir(self.folder)
        os.mkfifo("fifo")
        Path("loop").symlink_to("loop")
        Path("zero").symlink_to("/dev/zero")
        Path("file").write_text("a file")
        assert run("train", [TASK, *SMALL, "--log-root", "template"]).code == 0
        (self.run,) = (self.folder / "template" / TASK).iterdir()
        configs = {
            "train": default_config(TASK),
            "evaluate": EvaluateFlags(),
            "play": PlayConfig(env=default_config(TASK).env),
            "export": ExportConfig(),
            "report": ReportConfig(),
            "benchmark": BenchmarkFlags(),
        }
        self.flags = {
            name: {
                flag(*path): value
                for path, value in leaves(config, suppressed=False).items()
                if path[-1] not in ("stuck_after", "break_rank")  # the task hangs or breaks by them
            }
            for name, config in configs.items()
        }
        self.flags["play"] |= {flag(*path): v for path, v in leaves(ReplayConfig()).items()}

    def wrong_flags(self) -> None:
        """Give a command one or two flags values that it may not expect."""
        shutil.rmtree("logs", ignore_errors=True)
        name = self.random.choices(list(COMMANDS), (12, 3, 3, 1, 1, 2))[0]
        given = {
            "train": [TASK, *SMALL, "--max-iterations", "1"],
            "evaluate": [str(self.run), "--episodes", "2", "--device", "cpu"],
            "play": [str(self.run), "--viewer", "none", "--video", "out.mp4"],
            "export": [str(self.run), "--output", "robot"],
            "report": [str(self.run), "--output", "pages"],
            "benchmark": [TASK, "--gpu-ids", "None"],
        }[name]
        if self.random.random() < 0.1:
            given = [self.word(), *given[1:]]
        for _ in range(self.random.choice((1, 1, 2))):
            name_of, default = self.random.choice(list(self.flags[name].items()))
            given += [name_of, *self.words(default)]
        ended = run(name, given)
        left = list(Path("logs").glob("*/*"))
        if ended.problem is None and ended.code == 2 and left:
            ended.problem = f"it left {left}"
        self.note(name, given, ended)

    def words(self, default: object) -> list[str]:
        """Words for a flag: mostly as many, and of the kind, of what it is by default."""
        if self.random.random() < 0.2:
            return [self.word() for _ in range(self.random.choice((1, 1, 2)))]
        count = len(default) if isinstance(default, tuple) else 1
        sample = default[0] if isinstance(default, tuple) and default else default
        if isinstance(sample, bool):
            return ["True"]
        if isinstance(sample, int):
            return [str(self.random.choice((0, -1, 2, 7, 100, 10**5, 10**9, 2**40, 10**400)))]
        if isinstance(sample, float):
            scale = 10.0 ** self.random.choice((-300, -12, -3, 0, 0, 0, 3, 12, 300))
            return [str(self.random.uniform(-1, 1) * scale) for _ in range(count)]
        return [self.random.choice(WORDS) for _ in range(count)]

    def word(self) -> str:
        return self.random.choice(self.random.choice((NUMBERS, WORDS)))

    def note(self, name: str, given: list[str], ended: Ended) -> None:
        """Count how a case ended, and keep it if it is a problem."""
        warned = ", with a warning" if ended.has_warning else ""
        self.outcomes[f"exit code {ended.code}{warned}"] += 1
        if ended.problem is not None:
            shown = [word if len(word) < 200 else f"{word[:20]}... ({len(word)})" for word in given]
            self.problems.append(f"{name} {shown}: {ended.problem[-1500:]}\n{ended.err[-500:]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), random.Random(0))
        for _ in range(int(sys.argv[1])):
            fuzzer.wrong_flags()
        os.chdir("/")
    print(dict(fuzzer.outcomes), f"{len(fuzzer.problems)} problems", *fuzzer.problems, sep="\n\n")
    sys.exit(bool(fuzzer.problems))
