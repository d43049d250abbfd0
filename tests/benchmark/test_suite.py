"""`benchmarks/suite.py`: its trainings side by side, its file, table and comparison."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from refusal import refused
from rich.console import Console

from simtrain.benchmark.until import Evaluated, SeedResult
from simtrain.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import suite

sys.path.pop(0)


def results(**returns: list[float]) -> suite.SuiteResults:
    tasks = {
        f"toy-{task}": tuple(
            SeedResult(
                i, f"logs/{i}", None, None, (Evaluated(3, 900, 60.0, {"mean_return": value}),)
            )
            for i, value in enumerate(values)
        )
        for task, values in returns.items()
    }
    published = {"ppo": {"toy-a": 100.0, "toy-b": 500.0}, "rpo": {"toy-a": 300.0}}
    return suite.SuiteResults("toy", tasks, published, {"machine": {"device": "abacus"}})


def text(table) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_median_counts_against_the_best_published_return():
    assert results(a=[250.0, 400.0, 290.0], b=[501.0, 600.0, 0.0]).above_published == 1
    assert results(c=[1000.0]).above_published == 0  # nothing is published for it


def test_a_change_is_better_or_worse_only_where_its_interval_leaves_out_zero():
    before = results(a=[100.0, 102.0, 98.0], b=[300.0, 310.0, 290.0], c=[1.0, 500.0, 900.0])
    now = results(a=[200.0, 202.0, 198.0], b=[200.0, 210.0, 190.0], c=[300.0, 2.0, 950.0])
    grown, low, high = now.change(before, "toy-a")
    assert grown == pytest.approx(100.0)
    # Welch: 4 degrees of freedom, standard error sqrt(4 / 3 + 4 / 3), t = 2.776.
    assert (high - low) / 2.0 == pytest.approx(2.776 * math.sqrt(8.0 / 3.0), rel=1e-3)
    rows = text(now.table(before)).splitlines()
    words = {row.split()[0]: row.split()[-1] for row in rows if "toy-" in row}
    assert (words["toy-a"], words["toy-b"]) == ("better", "worse")
    assert words["toy-c"] not in ("better", "worse")
    assert all(map(math.isnan, now.change(results(b=[1.0]), "toy-a")))


def test_the_table_of_a_page_has_all_seeds():
    lines = results(a=[310.0, 290.0, 330.0], c=[7.0]).as_markdown().splitlines()
    assert lines[0] == "| task | ppo | rpo | seeds | median | env steps | time |"
    assert lines[2:] == [
        "| `toy-a` | 100 | 300 | 310, 290, 330 | 310 | 0.0 million | 01:00 |",
        "| `toy-c` | - | - | 7 | 7 | 0.0 million | 01:00 |",
    ]


def test_a_file_gives_back_what_was_written_unless_it_is_damaged(tmp_path):
    path, wanted = tmp_path / "suite.json", results(a=[1.0, 2.0])
    path.write_text(wanted.as_json())
    assert suite.read_suite(path) == wanted
    for before, after in (('"env_steps": 900', '"env_steps": "many"'), ("{", '{"versions": [],')):
        path.write_text(wanted.as_json().replace(before, after, 1))
        with pytest.raises(ConfigError, match="damaged"):
            suite.read_suite(path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "0"], "--seeds is 0; it must be 1 or more"),
        (["--at-once", "-1"], "--at-once is -1; it must be 1 or more"),
        (["--stop-above", "0"], "--stop-above is 0"),
        (["--json", "a.png"], "would be overwritten by the picture"),
        (["--json", "gone/a.json"], "gone"),
        (["--flags='"], "are no words: No closing quotation"),
        (["--flags=--resume latest"], "--flags must not have --resume: the benchmark sets it"),
        (["--flags=--seed=7 --until mean_return>3"], "--flags must not have --seed, --until"),
    ],
)
def test_a_mistake_in_the_flags_is_told_before_any_training(
    words, says, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["suite.py", "cartpole", *words])
    with refused(says, tmp_path):
        suite.main()


def test_a_training_ends_above_so_many_times_the_best_published_return(tmp_path):
    options = suite.Options("cartpole", seeds=2, log_root=tmp_path, stop_above=1.05)
    first, second = suite.trainings_of("cartpole-balance", options, 40.0)
    assert first.config.until == second.config.until == "mean_return>42"
    assert first.flags[first.flags.index("--until") + 1] == "mean_return>42"
    (unpublished,) = suite.trainings_of(
        "cartpole-balance", suite.Options("cartpole", seeds=1, stop_above=1.05), math.nan
    )
    assert unpublished.config.until is None
    assert "--until" not in unpublished.flags
    # A run that ended there is over.
    flags = ("--num-envs", "4", "--ppo.num-mini-batches", "1", "--num-steps-per-env", "8")
    options.flags = " ".join((*flags, "--max-iterations", "3", "--eval-interval", "1"))
    options.flags += " --eval-episodes 2"
    (short, _) = suite.trainings_of("cartpole-balance", options, 1e-6)
    assert short.result() is None
    assert short.start().wait() == 0
    result = short.result()
    assert result is not None
    assert result.end.iteration == 1


class Sleeper:
    """A training that is a process which sleeps, and ends well when it is interrupted."""

    def __init__(self, seconds: float, code: int = 0) -> None:
        self.words = (
            "import signal, sys, time\n"
            f"signal.signal(signal.SIGINT, lambda *_: sys.exit(130))\n"
            f"time.sleep({seconds}); sys.exit({code})"
        )
        self.interval: list[float] = []
        self.process: subprocess.Popen[bytes] | None = None

    def result(self) -> SeedResult | None:
        if self.process is None or self.process.poll() != 0:
            return None
        self.interval[1:] = [time.monotonic()]
        return results(a=[1.0]).tasks["toy-a"][0]

    def start(self) -> subprocess.Popen[bytes]:
        self.interval = [time.monotonic()]
        words = [sys.executable, "-c", self.words]
        self.process = subprocess.Popen(words, start_new_session=True)
        return self.process


def test_so_many_trainings_run_side_by_side():
    sleepers = [Sleeper(0.5) for _ in range(4)]
    assert suite.train_all(sleepers, 2) == 0
    ends = [sleeper.interval for sleeper in sleepers]
    for begin, _ in ends:
        assert sum(other[0] <= begin < other[1] for other in ends) <= 2
    assert ends[1][0] < ends[0][1]
    assert suite.train_all(sleepers, 2) == 0  # all are done
    assert [sleeper.interval[0] for sleeper in sleepers] == [begin for begin, _ in ends]


def test_after_a_failure_the_others_are_trained():
    sleepers = [Sleeper(0.0, code=3), Sleeper(0.0)]
    assert suite.train_all(sleepers, 1) == 3
    assert sleepers[1].result() is not None


def test_a_signal_ends_all_trainings_and_begins_no_other():
    sleepers = [Sleeper(60.0), Sleeper(60.0)]
    interrupt = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    assert suite.train_all(sleepers, 1) == 130
    assert sleepers[0].process is not None
    assert sleepers[0].process.returncode == 130
    assert sleepers[1].process is None
