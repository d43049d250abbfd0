"""How well all tasks of a suite are learned, over several seeds.

  uv run python benchmarks/suite.py dmc --seeds 3 --json dmc.json
  uv run python benchmarks/suite.py dmc --seeds 3 --json now.json --compare dmc.json \\
      --flags="--ppo.gamma 0.995"

Trains every task whose name begins with the suite's and a hyphen, by processes of `train` with one
thread each, as many at once as there are cores. A stopped benchmark goes on with the same command.
The last evaluation of each training counts. `published.json` beside the tasks has the returns of
others, by source and task; with `--stop-above 1.05`, a training ends once it is 5 % above them.
Beside the results are the table in Markdown and a picture of all curves.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from signal import SIGKILL
from typing import Annotated, Any

import torch
import tyro
from matplotlib.figure import Figure
from rich.table import Table
from scipy.stats import ttest_ind

from simtrain.benchmark.figures import about_machine, differences, new_table, read_content
from simtrain.benchmark.ranks import device_name
from simtrain.benchmark.until import SeedResult, find_run, read_seed, read_seeds
from simtrain.cli.terminal import run_command, table_console, write_file
from simtrain.cli.train import prepare_training
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.errors import ConfigError
from simtrain.files import damage_as_config_error
from simtrain.launch.processes import StopSignals, exit_code
from simtrain.launch.rank import share_of_cores
from simtrain.limits import Limits, Positive, check
from simtrain.plot.curves import color
from simtrain.plot.panels import FAINT, as_file, counts_on_x, numbers_on, sheet
from simtrain.run.directory import check_file
from simtrain.training.features.conditions import Comparison, StopCondition, stop_condition
from simtrain.training.resumption import can_resume

METRIC = "mean_return"
EVALUATIONS = 20
_FORMAT = "simtrain-suite-1"
# Names the metric to read from runs that no condition ends.
_NEVER = StopCondition(((Comparison(f"Eval/{METRIC}", ">", math.inf),),))
_GRACE_SECONDS = 60.0
_OWN = {
    *("--seed", "--run-name", "--log-root", "--resume", "--until"),
    *("--cpu-threads", "--gpu-ids", "--engine", "--logger"),
}
"""Flags of `train` that the benchmark chooses."""


@dataclass
class Options:
    """Train all tasks of a suite, and show their returns."""

    suite: Annotated[str, tyro.conf.Positional]
    """What the names of its tasks begin with, before a hyphen, such as dmc or dmc-walker."""
    seeds: Annotated[int, Limits(1, 1000)] = 3
    """Trainings of each task, from seed 0 on."""
    json: Path = Path("suite.json")
    """File for the results; a picture of the curves goes beside it, as .png."""
    compare: Path | None = None
    """Results of an earlier benchmark to compare with."""
    log_root: Path = Path("logs")
    """Where the runs are written; their names begin with that of --json."""
    at_once: Annotated[int, Limits(1, 4096)] | None = None
    """Trainings side by side; None for one on each core."""
    stop_above: Positive | None = None
    """End a training at its first evaluation above so many times the best published return."""
    flags: str = ""
    """More flags of `train`, as one argument in quotes: --flags="--ppo.gamma 0.995"."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot be."""
        check(self)
        if self.json.suffix in (beside := (".png", ".md")):
            raise ConfigError(
                f"--json {self.json} would be overwritten by the picture or the table"
            )
        for path in (self.json, *map(self.json.with_suffix, beside)):
            check_file(path, "--json")
        if own := sorted({word.partition("=")[0] for word in self.words()} & _OWN):
            raise ConfigError(f"--flags must not have {', '.join(own)}: the benchmark sets it")

    def words(self) -> list[str]:
        """`flags`, divided as by a shell; ConfigError if that is not possible."""
        try:
            return shlex.split(self.flags)
        except ValueError as error:
            raise ConfigError(f"--flags {self.flags} are no words: {error}") from error


@dataclass(frozen=True)
class Training:
    """One seed of a task."""

    config: TrainConfig
    iterations: int
    flags: tuple[str, ...]
    """Those of `train` that give this configuration."""

    def __str__(self) -> str:
        return f"{self.config.task}, seed {self.config.seed}"

    def result(self) -> SeedResult | None:
        """What its run has logged; None unless it is over."""
        run, condition = find_run(self.config), stop_condition(self.config) or _NEVER
        if run is None:
            return None
        result, is_over = read_seed(run, condition, self.iterations)
        return result if is_over else None

    def start(self) -> subprocess.Popen[bytes]:
        """Train it in another process, or go on with it; mistakes are on standard error."""
        run = find_run(self.config)
        more = () if run is None or not can_resume(run) else ("--resume", str(run))
        words = [sys.executable, "-m", "simtrain.cli.start", "train", self.config.task]
        # In a session of its own, Ctrl-C does not reach it a second time.
        return subprocess.Popen(
            [*words, *self.flags, *more], stdout=subprocess.DEVNULL, start_new_session=True
        )


@dataclass(frozen=True)
class SuiteResults:
    """All seeds of all tasks, and the machine, versions and settings, as plain data."""

    suite: str
    tasks: dict[str, tuple[SeedResult, ...]]
    published: dict[str, dict[str, float]]  # by source, then task
    about: dict[str, Any]

    def returns(self, task: str) -> list[float]:
        """The last return of each seed; empty for a task that is not here."""
        return [seed.end.values.get(METRIC, math.nan) for seed in self.tasks.get(task, ())]

    @property
    def above_published(self) -> int:
        """How many tasks' medians are above the best return that is published for them."""
        medians = {task: statistics.median(self.returns(task)) for task in self.tasks}
        return sum(median > best(self.published, task) for task, median in medians.items())

    def as_json(self) -> str:
        """The text of a file that `read_suite` reads."""
        content = {"format": _FORMAT, **self.about, **asdict(self)}
        del content["about"]
        return json.dumps(content, indent=2) + "\n"

    def change(self, before: SuiteResults, task: str) -> tuple[float, float, float]:
        """How much the mean return grew, and the ends of its 95 % interval by Welch's t-test; NaN
        for what too few seeds do not tell."""
        now, then = self.returns(task), before.returns(task)
        if not then:
            return math.nan, math.nan, math.nan
        grown = statistics.fmean(now) - statistics.fmean(then)
        if min(len(now), len(then)) < 2:
            return grown, math.nan, math.nan
        if len({*now}) == len({*then}) == 1:  # the test divides by the variance
            return grown, grown, grown
        interval = ttest_ind(now, then, equal_var=False).confidence_interval()
        return grown, float(interval.low), float(interval.high)

    @property
    def commits(self) -> set[str]:
        """The commits at which the tasks were trained."""
        return {seed.commit for seeds in self.tasks.values() for seed in seeds if seed.commit}

    def as_markdown(self) -> str:
        """The table for a page: published returns, and ours of all seeds."""
        columns = ["task", *self.published, "seeds", "median", "env steps", "time"]
        lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for task, seeds in self.tasks.items():
            returns, ends = self.returns(task), [seed.end for seed in seeds]
            cells = [
                f"`{task}`",
                *(_number(of.get(task, math.nan)) for of in self.published.values()),
            ]
            cells += [", ".join(map(_number, returns)), _number(statistics.median(returns))]
            cells.append(f"{statistics.median(end.env_steps for end in ends) / 1e6:.1f} million")
            seconds = statistics.median(end.seconds for end in ends)
            cells.append(str(timedelta(seconds=round(seconds)))[2:])
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def table(self, before: SuiteResults | None) -> Table:
        """A row for each task: published returns, ours over seeds, and the change since before."""
        columns = ["task", *self.published, "median", "lowest", "highest", "env steps", "time"]
        columns += [] if before is None else ["change", "95 %", ""]
        above = f"{self.above_published} of {len(self.tasks)} above the best published"
        table = new_table(f"{self.suite}: {above if self.published else 'returns'}", columns)
        for task, seeds in self.tasks.items():
            returns, ends = self.returns(task), [seed.end for seed in seeds]
            theirs = [of.get(task, math.nan) for of in self.published.values()]
            ours = statistics.median(returns), min(returns), max(returns)
            cells = [task, *map(_number, (*theirs, *ours))]
            cells.append(f"{statistics.median(end.env_steps for end in ends):,.0f}")
            seconds = statistics.median(end.seconds for end in ends)
            cells.append(str(timedelta(seconds=round(seconds))))
            if before is not None:
                grown, low, high = self.change(before, task)
                cells += [_number(grown, "+"), f"{_number(low, '+')} to {_number(high, '+')}"]
                cells.append("better" if low > 0.0 else "worse" if high < 0.0 else "")
            table.add_row(*cells)
        return table


def main() -> int:
    """Train, print, write and compare; the exit code."""
    options = tyro.cli(Options)
    options.check()
    before = None if options.compare is None else read_suite(options.compare)
    if options.compare is not None and options.json.resolve() == options.compare.resolve():
        raise ConfigError(f"--compare {options.compare} would be overwritten; give another --json")
    registry = discover()
    tasks = [name for name in registry.tasks if name.startswith(f"{options.suite}-")]
    if not tasks:
        own = options.suite or "-"
        lacking = [text for name, text in registry.missing.items() if name.startswith(own)]
        text = f"they need {lacking[0]}" if lacking else "`uv run simtrain list-tasks` lists all"
        raise ConfigError(f"there are no tasks {options.suite}-…; {text}")
    published = read_published(Path(registry.find(tasks[0]).source).with_name("published.json"))
    trainings = [
        one for task in tasks for one in trainings_of(task, options, best(published, task))
    ]
    # The other seeds follow when each task has one.
    trainings.sort(key=lambda training: training.config.seed)
    if code := train_all(trainings, options.at_once or share_of_cores(1)):
        return code
    seeds: dict[str, list[SeedResult]] = {task: [] for task in tasks}
    for training in trainings:
        result = training.result()
        assert result is not None
        seeds[training.config.task].append(result)
    about = {
        "flags": options.flags,
        "stop_above": options.stop_above,
        **about_machine(device_name(torch.device("cpu")), 1),
        "eval_episodes": trainings[0].config.eval_episodes,
    }
    of_tasks = {task: tuple(results) for task, results in seeds.items()}
    show(SuiteResults(options.suite, of_tasks, published, about), before, options)
    return 0


def trainings_of(task: str, options: Options, to_beat: float) -> list[Training]:
    """All seeds of a task, with evaluations between; NaN if there is no return `to_beat`."""
    words = ["--log-root", str(options.log_root), "--cpu-threads", "1", "--gpu-ids", "None"]
    words += ["--logger", "none", *options.words()]
    config, job, _, _ = prepare_training(discover(quiet=True).find(task), words)
    iterations = config.iterations(job.world_size // job.members)
    config.eval_interval = config.eval_interval or max(1, iterations // EVALUATIONS)
    words += ["--eval-interval", str(config.eval_interval)]
    if options.stop_above is not None and not math.isnan(to_beat):
        config.until = f"{METRIC}>{options.stop_above * to_beat:g}"
        words += ["--until", config.until]
    trainings = []
    for seed in range(options.seeds):
        name = f"{options.json.stem}_seed-{seed}"
        own = (*words, "--seed", str(seed), "--run-name", name)
        trainings.append(Training(replace(config, seed=seed, run_name=name), iterations, own))
    return trainings


def train_all(trainings: Sequence[Training], at_once: int) -> int:
    """Train what is not trained yet; the exit code of the first that failed, or of a signal.

    After a failure, the others are trained all the same. A signal ends all, after they have saved.
    """
    waiting = [training for training in trainings if training.result() is None]
    say(f"{len(trainings) - len(waiting)} of {len(trainings)} trainings were done before")
    running: dict[subprocess.Popen[bytes], Training] = {}
    code = 0

    def send(number: int) -> None:
        for process in list(running):
            process.send_signal(number)

    def kill(_: int = 0) -> None:
        send(SIGKILL)

    with StopSignals(
        _GRACE_SECONDS, on_signal=send, on_expiry=kill, on_second_interrupt=kill
    ) as stop:
        while running or (waiting and not stop()):
            while waiting and not stop() and len(running) < at_once:
                training = waiting.pop(0)
                say(f"{training}: training, {len(waiting)} after it")
                running[training.start()] = training
            time.sleep(0.2)
            for process in [process for process in running if process.poll() is not None]:
                training = running.pop(process)
                if not stop():
                    failed = _ended(training, process.returncode)
                    code = code or failed
    if stop.received is not None:
        say("stopped; the same command goes on")
        return exit_code(stop.received) or 1
    return code


def _ended(training: Training, code: int) -> int:
    """Say how a training ended; an exit code, 0 if its return is known."""
    result = training.result()
    if code or result is None:
        say(f"{training}: ended early, with exit code {code}; the same command goes on")
        return abs(code) or 1
    end = result.end
    say(f"{training}: return {end.values.get(METRIC, math.nan):.1f} after {end.env_steps:,} steps")
    return 0


def show(results: SuiteResults, before: SuiteResults | None, options: Options) -> None:
    """Print the table, and write the file and its picture."""
    table_console().print(results.table(before))
    picture = options.json.with_suffix(".png")
    write_file(options.json, results.as_json().encode())
    write_file(picture, as_file(draw(results)))
    page = options.json.with_suffix(".md")
    write_file(page, results.as_markdown().encode())
    print(f"results: {options.json}\npicture: {picture}\ntable:   {page}")
    if len(results.commits) > 1:
        say(f"warning: trained at several commits: {', '.join(sorted(results.commits))}")
    if before is not None:
        settings = ("machine", "eval_episodes", "stop_above")
        for line in differences(before.about, results.about, settings):
            say(f"warning: {options.compare} {line}")


def draw(results: SuiteResults) -> Figure:
    """A panel for each task: the return of every seed over env steps, and those published."""
    columns = min(5, len(results.tasks))
    rows = math.ceil(len(results.tasks) / columns)
    machine = ", ".join(map(str, results.about.get("machine", {}).values()))
    title = f"{results.suite}: return over environment steps\n{machine}"
    with sheet(title, columns, [3.0] * rows) as picture:
        for place, (task, seeds) in enumerate(results.tasks.items()):
            ax = picture.add_subplot(rows, columns, place + 1)
            for i, seed in enumerate(seeds):
                points = [(e.env_steps, e.values.get(METRIC, math.nan)) for e in seed.evaluations]
                steps, returns = zip(*points, strict=True)
                ax.plot(steps, returns, ".-", color=color(i), label=f"seed {seed.seed}")
            for style, (source, of) in zip(cycle(":-"), results.published.items(), strict=False):
                if task in of:
                    ax.axhline(of[task], color=FAINT, linewidth=1, linestyle=style, label=source)
            ax.set_title(task)
            ax.set_ylim(bottom=0.0)
            counts_on_x(ax, "environment steps")
            numbers_on(ax, "y")
            if place == 0:
                ax.legend()
    return picture


def read_suite(path: Path) -> SuiteResults:
    """What `SuiteResults.as_json` gave; ConfigError if it cannot be read, or is of another kind."""
    content = read_content(path, _FORMAT, "`benchmarks/suite.py`")
    with damage_as_config_error(f"--compare {path} is damaged"):
        tasks = {task: read_seeds(rows) for task, rows in content.pop("tasks").items()}
        assert all(tasks.values())
        return SuiteResults(content.pop("suite"), tasks, content.pop("published"), content)


def best(published: dict[str, dict[str, float]], task: str) -> float:
    """The best return that is published for a task; NaN if none is."""
    return max((of[task] for of in published.values() if task in of), default=math.nan)


def read_published(path: Path) -> dict[str, dict[str, float]]:
    """Published returns, by source and task; none if there is no such file."""
    if not path.exists():
        return {}
    with damage_as_config_error(f"{path} is damaged"):
        return {source: dict(of) for source, of in json.loads(path.read_text()).items()}


def say(message: str) -> None:
    """To standard error: standard output has the results alone."""
    print(message, file=sys.stderr, flush=True)


def _number(value: float, sign: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:{sign}.0f}"


if __name__ == "__main__":
    run_command(main)
