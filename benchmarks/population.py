"""What a population brings: N members that exchange against N trainings that do not.

  uv run python benchmarks/population.py cartpole-swingup --members 4 --repeats 5 --output OUT \
      -- --max-iterations 240 --ppo.desired-kl 0.3 --ppo.entropy-coef 0.05

What follows the two dashes goes to every `train`. Both sides train equally many environment steps,
with the same seeds and, but for what exchanges do, the same settings; both are evaluated every
`--interval` iterations on undisturbed episodes. Runs that are in the folder already are not made
again, so that a comparison can be stopped and gone on with.

Prints a JSON line a repeat: the best member's last evaluation and its best one, and the same of the
best training of the other side; leaves the curves of both in population.png.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from matplotlib.figure import Figure

from simtrain.run.population_plot import read_lineage

Curve = dict[int, float]
"""Iteration -> mean return of an evaluation."""


@dataclass
class Options:
    """Compare a population with independent trainings."""

    task: Annotated[str, tyro.conf.Positional]
    output: Path
    """Folder for the runs and the picture."""
    members: int = 4
    repeats: int = 5
    interval: int = 20
    """Iterations between two exchanges, and between two evaluations of the other side."""
    drawn: bool = False
    """Let the other side begin with hyper-parameters drawn as the population's members have them,
    instead of those that are configured."""
    episodes: int = 32
    """Episodes of an evaluation."""


def main() -> None:
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    options, rest = tyro.cli(Options, args=words[:split]), words[split + 1 :]
    figure = Figure(figsize=(4.0 * options.repeats, 4.0), layout="constrained")
    axes = figure.subplots(1, options.repeats, sharey=True, squeeze=False)[0]
    for repeat, ax in enumerate(axes):
        seed = 100 * repeat
        population = train_population(options, f"population_{seed}", seed, rest, [])
        if options.drawn:
            # Nobody is selected, and nobody mutated.
            still = ["--population-warm-up", "1000000000"]
            others = train_population(options, f"drawn_{seed}", seed, rest, still)
        else:
            seeds = range(seed, seed + options.members)
            others = [train_alone(options, f"seed_{one}", one, rest) for one in seeds]
        found = {"repeat": repeat, "population": figures(population), "others": figures(others)}
        print(json.dumps(found), flush=True)
        for curves, color, label in ((others, "C1", "independent"), (population, "C0", "members")):
            for i, curve in enumerate(curves):
                ax.plot(
                    *zip(*curve.items(), strict=True), color=color, label=label if not i else ""
                )
        ax.set_title(f"repeat {repeat}")
        ax.set_xlabel("iterations of each")
        ax.legend()
        figure.savefig(options.output / "population.png", dpi=80)


def figures(curves: list[Curve]) -> dict[str, object]:
    """The last evaluations of all, the best of these, and the best evaluation there was."""
    last = [round(list(curve.values())[-1], 2) for curve in curves]
    best = round(max(max(curve.values()) for curve in curves), 2)
    return {"last": max(last), "best": best, "all": last}


def train_population(
    options: Options, name: str, seed: int, rest: list[str], more: list[str]
) -> list[Curve]:
    """A curve for each member."""
    flags = ["--population", str(options.members), "--population-interval", str(options.interval)]
    run = train(options, name, seed, [*rest, *flags, *more])
    lines = read_lineage(run)
    return [
        {line["iteration"]: line["members"][i]["value"] for line in lines}
        for i in range(options.members)
    ]


def train_alone(options: Options, name: str, seed: int, rest: list[str]) -> Curve:
    run = train(options, name, seed, [*rest, "--eval-interval", str(options.interval)])
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {ln["iteration"]: ln[tag] for ln in lines if (tag := "Eval/mean_return") in ln}


def train(options: Options, name: str, seed: int, flags: list[str]) -> Path:
    """The folder of a finished run of that name, which is trained, or gone on with, if need be."""
    command = ["train", options.task, "--seed", str(seed), *flags]
    command += ["--log-root", str(options.output), "--run-name", name]
    command += ["--eval-episodes", str(options.episodes), "--logger", "none"]
    found = sorted((options.output / options.task).glob(f"*_{name}"))
    if found and (found[0] / "resume.pt").exists():
        command = ["train", options.task, "--resume", str(found[0])]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted((options.output / options.task).glob(f"*_{name}"))[0]


if __name__ == "__main__":
    main()
