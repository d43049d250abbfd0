"""``uv run evaluate RUN... [flags]``: how good policies are, side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simtrain.api import EvaluationCfg, PolicyEvaluator, choose_device, open_policy
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.terminal import DONE, interruptible, print_table, table_console, write_file
from simtrain.config.tree import as_plain
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError
from simtrain.run.directory import check_file
from simtrain.sim import EngineCfg

if TYPE_CHECKING:
    from simtrain.training.evaluator import Evaluation
    from simtrain.training.saved_policy import SavedPolicy

_HELP = """\
Run policies without exploration, noise and pushes, and show how good they are. RUN is a run, which
stands for its newest checkpoint, a checkpoint, or a task with which a trained policy ships. After
it, --env.* are flags too, and change the task it is evaluated in: `evaluate RUN --help` names them.
"""


@dataclass
class EvaluateFlags(EvaluationCfg):
    """Run policies without exploration, noise and pushes, and show how good they are.

    A run stands for its newest checkpoint; several are compared in one table.
    """

    json: str | None = None
    """File for the results as JSON; without a name, or as -, standard output has them alone."""


@dataclass
class _Flags(EvaluateFlags):
    """Run the policy without exploration, noise and pushes, and show how good it is; --env.* change
    the task it is evaluated in."""

    env: TaskCfg = field(default_factory=lambda: TaskCfg(Path(), 0.0, 0, 0.0))


class _Result(NamedTuple):
    saved: SavedPolicy
    flags: _Flags
    engine: EngineCfg
    evaluation: Evaluation


def evaluate(arguments: Sequence[str]) -> int:
    """Evaluate the policies that a command line names, and print a table or JSON; the exit code."""
    paths, words = split_paths(arguments)
    flags: list[str] = []
    for flag, following in zip(words, [*words[1:], "--"], strict=False):
        # --json without a value is --json -.
        flags += [flag, "-"] if flag == "--json" and following.startswith("--") else [flag]
    if not paths:
        if flags and flags[0] in ("-h", "--help"):
            parse_flags("evaluate RUN...", EvaluateFlags(), flags, _HELP)
        if flags:
            raise ConfigError(f"the run comes first: `uv run evaluate <run> {' '.join(flags)}`")
        raise ConfigError("name a run, a checkpoint or a task: `uv run evaluate <run>...`")

    # Only now, so that help does not wait for torch and MuJoCo.
    from simtrain.env.model import check_task, evaluation_task

    # A program may read the results from standard output: tasks and libraries print elsewhere.
    policies: list[tuple[SavedPolicy, _Flags]] = []
    for path in paths:
        with redirect_stdout(sys.stderr):
            saved = open_policy(path)
        default = _Flags(env=evaluation_task(saved.config.env))
        parsed = parse_flags(f"evaluate {path}", default, flags)
        if parsed.json not in (None, "-"):
            check_file(Path(parsed.json), "--json")
        policies.append((saved, parsed))
    with redirect_stdout(sys.stderr), interruptible():
        for _, parsed in policies:
            check_task(parsed.env)
        results = _evaluate_all(policies)
    destination = policies[0][1].json
    if destination == "-":
        print(_as_json(results), end="")
        return DONE
    _print_table(results)
    if destination is not None:
        with interruptible():
            write_file(Path(destination), _as_json(results).encode(), "--json")
    return DONE


def _evaluate_all(policies: list[tuple[SavedPolicy, _Flags]]) -> list[_Result]:
    from rich.console import Console

    status = Console(stderr=True)
    for _, flags in policies:
        choose_device(flags.device, flags.engine)  # before any is evaluated
    results: list[_Result] = []
    evaluator = PolicyEvaluator()
    for number, (saved, flags) in enumerate(policies):
        with status.status(f"evaluating {saved.checkpoint} ({number + 1} of {len(policies)})"):
            engine, evaluation = evaluator(saved, flags, flags.env)
        for text in evaluation.warnings.values():
            print(f"warning: {text}", file=sys.stderr)
        results.append(_Result(saved, flags, engine, evaluation))
    return results


def _print_table(results: list[_Result]) -> None:
    from simtrain.run.console import fitted
    from simtrain.training.evaluator import heading, with_margin

    _, flags, engine, _ = results[0]
    tasks = ", ".join({result.saved.config.task: None for result in results})
    how = f"seed {flags.seed}, {engine.name} on {engine.device}; means with 95 % intervals"
    console = table_console()
    text = f"{tasks}: {flags.episodes} episodes, {how}"
    console.print(fitted(text, console), soft_wrap=True)
    names = list(dict.fromkeys(name for r in results for name in r.evaluation.estimates))
    titles = ["checkpoint", "iteration", *map(heading, names)]
    rows = []
    for result in results:
        checkpoint = "/".join(result.saved.checkpoint.absolute().parts[-2:])
        parts = {checkpoint: result.evaluation}
        parts |= {f"  {kind}": part for kind, part in result.evaluation.parts().items()}
        for title, evaluation in parts.items():
            estimates = evaluation.estimates
            iteration = f"{result.saved.iteration:,}" if title == checkpoint else ""
            values = (with_margin(n, estimates[n]) if n in estimates else "-" for n in names)
            rows.append([title, iteration, *values])
    print_table(console, titles, rows)
    rewards = [as_plain(result.flags.env.rewards) for result in results]
    if any(other != rewards[0] for other in rewards):
        console.print("The runs differ in their rewards: returns cannot be compared.")


def _estimates(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    return {name: asdict(value) for name, value in evaluation.estimates.items()}


def _as_json(results: list[_Result]) -> str:
    objects = [
        {
            "checkpoint": str(saved.checkpoint),
            "task": saved.config.task,
            "iteration": saved.iteration,
            "episodes": flags.episodes,
            "seed": flags.seed,
            "engine": engine.name,
            "device": str(engine.device),
            "estimates": _estimates(it),
            "kinds": {kind: _estimates(part) for kind, part in it.parts().items()},
            "per_episode": {"return": it.returns, "length": it.lengths, "failed": it.failed}
            | it.metrics
            | it.kinds,
        }
        for saved, flags, engine, it in results
    ]
    # JSON knows no NaN and no infinity.
    content = json.loads(json.dumps(objects), parse_constant=lambda constant: None)
    return json.dumps(content, indent=2) + "\n"
