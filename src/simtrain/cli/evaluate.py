"""``uv run simtrain evaluate RUN... [flags]``: measure policies, and compare them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.api import EvaluationCfg, choose_device, make_evaluator, open_policy
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.terminal import DONE, interruptible, print_table, table_console, write_file
from simtrain.config.tree import as_plain
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError
from simtrain.files import as_json
from simtrain.run.directory import check_file

if TYPE_CHECKING:
    from simtrain.sim import EngineCfg
    from simtrain.training.evaluator import Evaluation
    from simtrain.training.saved_policy import SavedPolicy

    _Result = tuple[SavedPolicy, TaskCfg, Evaluation]


@dataclass
class EvaluateFlags(EvaluationCfg):
    """Run policies without exploration, noise and pushes, and show how good they are. RUN is a run
    (its newest checkpoint is used), a checkpoint, or a task with a shipped policy. Flags --env.*
    change the task in which policies are evaluated: `simtrain evaluate RUN --help` lists them."""

    json: str | None = None
    """File for the results as JSON; without a name, or with -, only JSON is written to standard
    output."""
    env: TaskCfg | None = None


def evaluate(arguments: Sequence[str]) -> int:
    """Evaluate the policies that a command line names, and print a table or JSON; the exit code."""
    paths, words = split_paths(arguments)
    flags: list[str] = []
    for flag, following in zip(words, [*words[1:], "--"], strict=False):
        # --json without a value is --json -.
        flags += [flag, "-"] if flag == "--json" and following.startswith("--") else [flag]
    if not paths:
        if flags and flags[0] in ("-h", "--help"):
            parse_flags("simtrain evaluate RUN...", EvaluateFlags(), flags)
        if flags:
            raise ConfigError(
                f"the run comes first: `uv run simtrain evaluate <run> {' '.join(flags)}`"
            )
        raise ConfigError("name a run, a checkpoint or a task: `uv run simtrain evaluate <run>...`")

    # Only now, so that help does not wait for torch and MuJoCo.
    from simtrain.env.model import check_task, evaluation_task

    # A program may read the results from standard output: tasks and libraries print elsewhere.
    policies: list[tuple[SavedPolicy, TaskCfg]] = []
    for path in paths:
        with redirect_stdout(sys.stderr):
            saved = open_policy(path)
        default = EvaluateFlags(env=evaluation_task(saved.config.env))
        cfg = parse_flags(f"simtrain evaluate {path}", default, flags)
        if cfg.json not in (None, "-"):
            check_file(Path(cfg.json), "--json")
        assert cfg.env is not None
        policies.append((saved, cfg.env))
    with redirect_stdout(sys.stderr), interruptible():
        for _, task in policies:
            check_task(task)
        engine = choose_device(cfg.device, cfg.engine)
        results = _evaluate_all(policies, cfg)
    if cfg.json == "-":
        print(_as_json(results, cfg, engine), end="")
        return DONE
    _print_table(results, cfg, engine)
    if cfg.json is not None:
        with interruptible():
            write_file(Path(cfg.json), _as_json(results, cfg, engine).encode(), "--json")
    return DONE


def _evaluate_all(policies: list[tuple[SavedPolicy, TaskCfg]], cfg: EvaluateFlags) -> list[_Result]:
    """Evaluate policies one after another, those of like tasks in the same environments."""
    from rich.console import Console

    status = Console(stderr=True)
    results: list[_Result] = []
    evaluated_in = None
    for number, (saved, task) in enumerate(policies, start=1):
        with status.status(f"evaluating {saved.checkpoint} ({number} of {len(policies)})"):
            # Task files are imported anew for every run: their functions are alike, not the same.
            if (settings := as_plain(task)) != evaluated_in:
                evaluator, evaluated_in = make_evaluator(cfg, task), settings
            evaluation = evaluator(saved.config.ppo.actor, saved.content["actor_state_dict"])
        assert evaluation is not None  # only where it may be stopped
        for text in evaluation.warnings.values():
            print(f"warning: {text}", file=sys.stderr)
        results.append((saved, task, evaluation))
    return results


def _print_table(results: list[_Result], cfg: EvaluateFlags, engine: EngineCfg) -> None:
    from simtrain.run.console import fitted
    from simtrain.training.evaluator import heading, with_margin

    tasks = ", ".join({saved.config.task: None for saved, *_ in results})
    how = f"seed {cfg.seed}, {engine.name} on {engine.device}; means with 95 % intervals"
    console = table_console()
    console.print(fitted(f"{tasks}: {cfg.episodes} episodes, {how}", console), soft_wrap=True)
    names = list(
        dict.fromkeys(name for _, _, evaluation in results for name in evaluation.estimates)
    )
    rows = []
    for saved, _, evaluation in results:
        checkpoint = "/".join(saved.checkpoint.absolute().parts[-2:])
        parts = {f"  {kind}": part for kind, part in evaluation.parts().items()}
        for title, part in {checkpoint: evaluation, **parts}.items():
            estimates = part.estimates
            iteration = f"{saved.iteration:,}" if part is evaluation else ""
            values = (with_margin(n, estimates[n]) if n in estimates else "-" for n in names)
            rows.append([title, iteration, *values])
    print_table(console, ["checkpoint", "iteration", *map(heading, names)], rows)
    first, *others = [as_plain(task) for _, task, _ in results]
    kinds = ("commands", "rewards")
    if differ := [kind for kind in kinds if any(other[kind] != first[kind] for other in others)]:
        figures = "returns" if differ == ["rewards"] else "figures"
        text = f"The runs differ in their {' and '.join(differ)}: {figures} cannot be compared."
        console.print(text, soft_wrap=True)


def _estimates(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    return {name: asdict(value) for name, value in evaluation.estimates.items()}


def _as_json(results: list[_Result], cfg: EvaluateFlags, engine: EngineCfg) -> str:
    objects = [
        {
            "checkpoint": str(saved.checkpoint),
            "task": saved.config.task,
            "iteration": saved.iteration,
            "episodes": cfg.episodes,
            "seed": cfg.seed,
            "engine": engine.name,
            "device": str(engine.device),
            "estimates": _estimates(it),
            "kinds": {kind: _estimates(part) for kind, part in it.parts().items()},
            "per_episode": {"return": it.returns, "length": it.lengths, "failed": it.failed}
            | it.metrics
            | it.kinds,
        }
        for saved, _, it in results
    ]
    return as_json(objects, indent=2) + "\n"
