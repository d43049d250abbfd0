"""``uv run evaluate RUN_OR_CHECKPOINT... [flags]``: how good policies are, side by side."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simtrain.cli.exits import DONE, interruptible, run_command
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.config import as_plain, check_finite
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError
from simtrain.launch.spinning import limit_spinning

if TYPE_CHECKING:
    from simtrain.sim import EngineName
    from simtrain.training.evaluator import Evaluation, Evaluator
    from simtrain.training.saved_policy import SavedPolicy

USAGE = "usage: evaluate RUN_OR_CHECKPOINT... [flags]"
_MAX_ENVS = 1024


@dataclass
class EvaluateFlags:
    """Run policies without exploration, noise and pushes, and show how good they are.

    A run stands for its newest checkpoint; several are compared in one table.
    """

    episodes: int = 100
    """Episodes of each policy."""
    num_envs: int | None = None
    """Environments at a time; None for one for each episode, up to 1024."""
    seed: int = 0
    """Seed of starts and commands, the same for all policies."""
    device: str = "auto"
    """cpu or cuda:N; auto is the first GPU if there is one."""
    engine: Literal["auto", "mujoco", "warp"] = "auto"
    """Physics engine; auto takes warp on GPUs and mujoco on the CPU."""
    json: str | None = None
    """File for the results as JSON; without a name, or as -, standard output has them alone."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot be."""
        if self.episodes < 1:
            raise ConfigError(f"--episodes is {self.episodes}; it must be 1 or more")
        if self.num_envs is not None and self.num_envs < 1:
            raise ConfigError(f"--num-envs is {self.num_envs}; it must be 1 or more")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"--seed is {self.seed}, not in [0, 2^32)")
        if not re.fullmatch(r"auto|cpu|cuda:\d+", self.device):
            raise ConfigError(
                f"--device is {self.device!r}; it must be auto, cpu, or cuda:0, cuda:1, ..."
            )
        if self.json not in (None, "-"):
            _check_writable(Path(self.json))


@dataclass
class _Flags(EvaluateFlags):
    """The same with the task, whose names are known once a run is named."""

    env: TaskCfg = field(default_factory=lambda: TaskCfg(Path(), 0.0, 0, 0.0))


@dataclass(frozen=True)
class _Result:
    """A policy and what it did."""

    saved: SavedPolicy
    flags: _Flags
    device: str
    engine: EngineName
    evaluation: Evaluation


def main() -> None:
    """Entry point of the ``evaluate`` command."""
    limit_spinning()
    run_command(lambda: evaluate(sys.argv[1:]))


def evaluate(arguments: Sequence[str]) -> int:
    """Evaluate the policies that a command line names, and print a table or JSON; the exit code."""
    paths, flags = split_paths(arguments)
    flags = _with_json_file(flags)
    if not paths:
        return _without_paths(flags)

    # Only now, so that help does not wait for torch and MuJoCo.
    from simtrain.env.model import check_task, evaluation_task
    from simtrain.training.saved_policy import open_policy

    wanted: list[tuple[SavedPolicy, _Flags]] = []
    for path in paths:
        with _stdout_for_results():
            saved = open_policy(path)
        default = _Flags(env=evaluation_task(saved.config.env))
        parsed = parse_flags(f"evaluate {path}", default, flags)
        parsed.check()
        check_finite(parsed)
        wanted.append((saved, parsed))
    with _stdout_for_results():
        for _, parsed in wanted:
            check_task(parsed.env)
        with interruptible():
            results = _evaluate_all(wanted)
    destination = wanted[0][1].json
    if destination != "-":
        _print_table(results)
    if destination is not None:
        with interruptible():
            _write_json(results, destination)
    return DONE


def _stdout_for_results() -> AbstractContextManager[object]:
    """Send what a task or a library prints to standard error: a program may read the results."""
    return redirect_stdout(sys.stderr)


def _with_json_file(flags: list[str]) -> list[str]:
    """The flags with ``--json -`` where ``--json`` has no value."""
    result: list[str] = []
    for i, flag in enumerate(flags):
        result.append(flag)
        if flag == "--json" and (i + 1 == len(flags) or flags[i + 1].startswith("--")):
            result.append("-")
    return result


def _without_paths(flags: list[str]) -> int:
    if flags and flags[0] in ("-h", "--help"):
        print(
            f"{USAGE}\n\nAfter a run, `--env.*` are flags too, and change the task it is evaluated "
            "in:\n`evaluate RUN --help` lists them.\n"
        )
        parse_flags("evaluate RUN_OR_CHECKPOINT...", EvaluateFlags(), ["--help"])
    if flags:
        raise ConfigError(f"the run comes first: `uv run evaluate <run> {' '.join(flags)}`")
    raise ConfigError("name a run or a checkpoint: `uv run evaluate <run>...`")


def _evaluate_all(wanted: list[tuple[SavedPolicy, _Flags]]) -> list[_Result]:
    from rich.console import Console

    status = Console(stderr=True)
    devices = [_choose_device(flags) for _, flags in wanted]
    results: list[_Result] = []
    evaluator: Evaluator | None = None
    for number, ((saved, flags), (device, engine)) in enumerate(zip(wanted, devices, strict=True)):
        with status.status(f"evaluating {saved.checkpoint} ({number + 1} of {len(wanted)})"):
            if evaluator is None or not _are_alike(wanted[number - 1], wanted[number]):
                evaluator = _make_evaluator(saved, flags, device, engine)
            evaluation = evaluator(saved.content["actor_state_dict"])
        assert evaluation is not None  # it is given up only when asked to
        for text in evaluation.warnings.values():
            print(f"warning: {text}", file=sys.stderr)
        results.append(_Result(saved, flags, device, engine, evaluation))
    return results


def _are_alike(one: tuple[SavedPolicy, _Flags], other: tuple[SavedPolicy, _Flags]) -> bool:
    """Whether two policies can be evaluated in the same environments."""

    def plain(wanted: tuple[SavedPolicy, _Flags]) -> object:
        # Task files are imported anew for every run: their functions are alike, but not the same.
        return as_plain(wanted[1]), as_plain(wanted[0].config.ppo.actor)

    return plain(one) == plain(other)


def _make_evaluator(
    saved: SavedPolicy, flags: _Flags, device: str, engine: EngineName
) -> Evaluator:
    from simtrain.sim import EngineCfg
    from simtrain.training.evaluator import Evaluator

    def make() -> Evaluator:
        return Evaluator(
            flags.env,
            saved.config.ppo.actor,
            flags.episodes,
            engine=EngineCfg(engine, device, len(os.sched_getaffinity(0))),
            max_envs=flags.num_envs or _MAX_ENVS,
            seed=flags.seed,
        )

    if engine == "mujoco":
        return make()

    from simtrain.sim.warp_compile import compilation_announced

    with compilation_announced(print):
        return make()


def _choose_device(flags: EvaluateFlags) -> tuple[str, EngineName]:
    """Where environments and policy live, and the engine; ConfigError if there is no such GPU."""
    import torch

    count = 0 if flags.device == "cpu" else torch.cuda.device_count()
    if flags.device == "cpu" or (flags.device == "auto" and count == 0):
        return "cpu", "mujoco" if flags.engine == "auto" else flags.engine
    index = 0 if flags.device == "auto" else int(flags.device.removeprefix("cuda:"))
    if index >= count:
        there = f"the visible GPUs are 0 to {count - 1}" if count else "no GPU is visible"
        raise ConfigError(f"--device {flags.device}: {there}; --device cpu uses the CPU")
    if flags.engine == "mujoco":
        if flags.device != "auto":
            raise ConfigError(
                f"--device {flags.device} simulates on the GPU, which --engine mujoco cannot; "
                "leave one of them out"
            )
        return "cpu", "mujoco"
    torch.cuda.set_device(index)
    return f"cuda:{index}", "warp"


def _print_table(results: list[_Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    from simtrain.training.evaluator import heading, with_margin

    first = results[0]
    tasks = {result.saved.config.task: None for result in results}
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # a program reads it: one policy a line
    console.print(
        f"{', '.join(tasks)}: {first.flags.episodes} episodes, seed {first.flags.seed}, "
        f"{first.engine} on {first.device}; means with 95 % intervals",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("checkpoint", overflow="fold")
    table.add_column("iteration", justify="right")
    names = list(dict.fromkeys(name for r in results for name in r.evaluation.estimates))
    for name in names:
        table.add_column(heading(name), justify="right")
    for result in results:
        estimates = result.evaluation.estimates
        table.add_row(
            "/".join(result.saved.checkpoint.absolute().parts[-2:]),
            f"{result.saved.iteration:,}",
            *(with_margin(n, estimates[n]) if n in estimates else "-" for n in names),
        )
    console.print(table)
    rewards = [as_plain(result.flags.env.rewards) for result in results]
    if any(other != rewards[0] for other in rewards):
        console.print("The runs differ in their rewards: returns cannot be compared.")


def _write_json(results: list[_Result], destination: str) -> None:
    from simtrain.run.directory import written_whole

    text = json.dumps([_as_json(result) for result in results], indent=2) + "\n"
    if destination == "-":
        print(text, end="")
        return
    try:
        with written_whole(Path(destination)) as file:
            file.write(text.encode())
    except OSError as error:  # a full disk, a read-only one
        raise ConfigError(f"--json {destination} cannot be written: {error.strerror}") from error


def _as_json(result: _Result) -> dict[str, Any]:
    evaluation = result.evaluation
    return {
        "checkpoint": str(result.saved.checkpoint),
        "task": result.saved.config.task,
        "iteration": result.saved.iteration,
        "episodes": result.flags.episodes,
        "seed": result.flags.seed,
        "engine": result.engine,
        "device": result.device,
        "estimates": {
            name: {
                "value": _finite(estimate.value),
                "low": _finite(estimate.low),
                "high": _finite(estimate.high),
            }
            for name, estimate in evaluation.estimates.items()
        },
        "per_episode": {
            "return": [_finite(value) for value in evaluation.returns],
            "length": evaluation.lengths,
            "failed": evaluation.failed,
            **{name: [_finite(v) for v in vs] for name, vs in evaluation.metrics.items()},
        },
    }


def _finite(value: float) -> float | None:
    """JSON knows no NaN and no infinity."""
    return value if math.isfinite(value) else None


def _check_writable(path: Path) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(f"--json {path} cannot be written: {folder} is not a folder")
    if path.is_dir():
        raise ConfigError(f"--json {path} cannot be written: it is a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--json {path} cannot be written: no permission for {folder}")


if __name__ == "__main__":
    main()
