"""The manual's page of results, `docs/results.md`, from what `benchmark --until` measured.

  uv run simtrain benchmark go1-velocity-flat --until "lin_vel_error<0.1 and fell<0.02" \\
      --json go1.json
  uv run python benchmarks/results.py go1.json          # some tasks, or one that was trained again
  uv run python benchmarks/results.py                   # the page alone, from docs/results/*.json

Each file, of one task, is copied to `docs/results/<task>.json` with what an evaluation of its runs'
newest checkpoints finds, on other starts and commands than those that ended training. Then the page
and its pictures, `docs/images/results-<task>.png`, are made from all files there are.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from simtrain.benchmark.pictures import draw_until
from simtrain.benchmark.until import COSTS, UntilResults, read_until, shown
from simtrain.cli.evaluate import evaluate
from simtrain.config.tasks import Task, discover
from simtrain.plot.panels import as_file
from simtrain.training.evaluator import Estimate, heading, with_margin

DOCS = Path(__file__).resolve().parents[1] / "docs"
HEAD = """\
# Results

This page shows how fast the shipped tasks are learned, and how good the policies are.
`benchmarks/results.py` writes this page from the results of
[`benchmark --until`](performance.md#until-a-task-is-learned). The figures are in
`docs/results/<task>.json`.

- **A training counts** until the first evaluation that meets the condition. Evaluations have no
  noise and no pushes. The training time does not include evaluations and the start of the command.
- **A seed that did not meet the condition** counts as infinitely long in the median.
- **The last policy** of each seed is evaluated again, with other starts and commands: means with
  95 % intervals. Usually it is the policy that met the condition; its iteration is in the table.
- **The named commit** is the one that was trained.
"""


@dataclass
class Options:
    """Write the manual's page of results."""

    results: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Files of `benchmark --until`, each of one task; the runs they name must be there."""
    episodes: int = 200
    """Episodes of the last evaluation."""
    seed: int = 1000
    """Its seed, which that of evaluations in training, 0, must not be."""


def main() -> None:
    options = tyro.cli(Options)
    for path in options.results:
        add(read_until(path, "results"), options)
    tasks = discover().tasks
    files = {path.stem: path for path in (DOCS / "results").glob("*.json")}
    sections = [
        section(task, read_until(files[name], "results"))
        for name, task in tasks.items()
        if name in files
    ]
    (DOCS / "results.md").write_text("\n".join([HEAD, *sections]))
    print(f"page: {DOCS / 'results.md'}, of {', '.join(files) or 'no task'}")


def add(results: UntilResults, options: Options) -> None:
    """Evaluate the last policy of every seed, and put figures and curves into the manual."""
    # In a population's run that is best.pt.
    runs = [seed.run for seed in results.seeds]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "evaluation.json"
        flags = ["--episodes", str(options.episodes), "--seed", str(options.seed)]
        assert evaluate([*runs, *flags, "--json", str(file)]) == 0
        last = json.loads(file.read_text())
    for one in last:
        del one["per_episode"]
    results = replace(results, about={**results.about, "last_policies": last})
    (DOCS / "results").mkdir(exist_ok=True)
    root = Path(runs[0]).parents[1]  # a reader's is `logs`
    text = results.as_json().replace(f" --log-root {root}", "").replace(f'"{root}/', '"logs/')
    (DOCS / "results" / f"{results.task}.json").write_text(text)


def section(task: Task, results: UntilResults) -> str:
    """The part of the page about a task; draws its picture."""
    picture = DOCS / "images" / f"results-{task.name}.png"
    picture.write_bytes(as_file(draw_until(results)))
    about = results.about
    machine = ", ".join([*about["machine"].values(), about["ranks"]])
    commits = ", ".join(dict.fromkeys(f"`{s.commit}`" for s in results.seeds if s.commit))
    kind = f"populations of {results.members}" if results.members > 1 else "trainings"
    reached = f"{results.reached} of {len(results.seeds)} {kind}"
    median = ", ".join(f"{shown(w, results.median(w))} {name}" for w, name in COSTS.items())
    return f"""\
## {task.name}

{task.description}

![Curves of {task.name}](images/results-{task.name}.png)

Condition: `{results.condition}`, checked over {about["eval_episodes"]} episodes every
{about["eval_interval"]} iterations. Met by **{reached}**; median {median}.

{table_of_seeds(results)}

The last policies, over {about["last_policies"][0]["episodes"]} episodes each:

{table_of_policies(results, about["last_policies"])}

```bash
uv run simtrain {about["command"]}
```

{machine}; {about["date"][:10]}{f"; commit {commits}" if commits else ""}.
"""


def table_of_seeds(results: UntilResults) -> str:
    """What each seed took."""
    names = list(results.seeds[0].end.values)
    rows = [["seed", "reached", "iterations", *COSTS.values(), *names]]
    for seed in results.seeds:
        costs = [shown(what, getattr(seed.end, what)) for what in COSTS]
        values = [f"{value:.3g}" for value in seed.end.values.values()]
        rows.append([str(seed.seed), "yes" if seed.reached else "no", f"{seed.end.iteration:,}"])
        rows[-1] += costs + values
    for name, of in (("lowest", min), ("highest", max)):
        costs = [shown(what, of(results.costs(what))) for what in COSTS]
        rows.append([name, "", "", *costs, *[""] * len(names)])
    return markdown(rows)


def table_of_policies(results: UntilResults, last: list[dict[str, Any]]) -> str:
    """How good each seed's last policy is."""
    names = list(last[0]["estimates"])
    rows = [["seed", "iteration", *map(heading, names)]]
    for seed, one in zip(results.seeds, last, strict=True):
        estimates = {name: Estimate(**value) for name, value in one["estimates"].items()}
        figures = [with_margin(name, estimate) for name, estimate in estimates.items()]
        rows.append([str(seed.seed), f"{one['iteration']:,}", *figures])
    return markdown(rows)


def markdown(rows: list[list[str]]) -> str:
    """A table whose first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(re.sub(r" +", " ", line) for line in lines)


if __name__ == "__main__":
    main()
