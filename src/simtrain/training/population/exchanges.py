"""The exchanges of a population: reports of members, their files and their table.

population.jsonl    one line per exchange: fitness, parent, mutation and numbers of every member
metrics.jsonl       one line per exchange: best and mean fitness, number of replaced members
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from simtrain.config.train import TrainConfig
from simtrain.config.tree import with_overrides
from simtrain.errors import ConfigError
from simtrain.files import as_json, written_whole
from simtrain.run.directory import LINEAGE
from simtrain.run.logged import read_lineage
from simtrain.training.context import RunContext
from simtrain.training.evaluator import Estimate, with_margin
from simtrain.training.features.recorder import RunRecords
from simtrain.training.population.evolution import Candidate, Decision, Values, fitness_of


@dataclass(frozen=True)
class Settings:
    """The part of the configuration that differs between members."""

    values: Values
    hidden_dims: dict[str, tuple[int, ...]]
    """Sizes of the networks, by their names in the configuration of PPO."""

    def config(self, config: TrainConfig) -> TrainConfig:
        """The run's configuration with these settings."""
        sizes = {f"ppo.{name}.hidden-dims": dims for name, dims in self.hidden_dims.items()}
        return with_overrides(config, self.values | sizes)


@dataclass(frozen=True)
class Report:
    """The data that a member sends to the others in an exchange."""

    settings: Settings
    candidate: Candidate
    fitness: Estimate
    """The value of the evaluation, also if smaller is better."""
    ends: bool
    """Whether its evaluation meets ``--until``."""


class ExchangeRecords:
    """Writes the exchanges of a population to the files of the run, and shows them."""

    def __init__(self, context: RunContext, saved: dict[str, Any], after: int) -> None:
        """Open the files; a resumed run continues `after` the exchange of that iteration.

        `saved` is `RunRecords.state` at that time, or empty.

        Raises:
            ConfigError: another process writes to the run, or its folder cannot be written to.
        """
        self._run, self._say = context.shared.run, context.console.say
        self._fitness = fitness_of(context.config)[0]
        self.files = RunRecords(context, self._run, context.config, saved, after)
        lineage = read_lineage(self._run) if after > 0 else []
        self._lineage = [row for row in lineage if row["iteration"] <= after]
        if error := self._write_lineage():
            raise ConfigError(f"{self._run / LINEAGE} cannot be written: {error}")

    def write(
        self,
        counts: tuple[int, int, float],
        reports: Sequence[Report],
        decisions: Sequence[Decision],
    ) -> None:
        """Write and show an exchange; `counts` are iteration, environment steps and seconds."""
        scores = [r.candidate.score for r in reports if r.candidate.is_sound]
        metrics = {
            "Population/best_score": max(scores),
            "Population/mean_score": fmean(scores),
            "Population/replaced": float(sum(d.parent != i for i, d in enumerate(decisions))),
        }
        self.files.write(*counts, metrics)
        iteration, env_steps, wall_s = counts
        line = {"iteration": iteration, "env_steps": env_steps, "wall_s": round(wall_s, 3)}
        members = map(_described, range(len(reports)), reports, decisions)
        self._lineage.append({**line, "members": list(members)})
        if error := self._write_lineage():  # the next exchange writes all lines
            self._say(f"warning: {LINEAGE} cannot be written: {error}")
        self.files.metrics.sync()
        self._say(f"exchange after iteration {iteration}:")
        self._say(exchange_table(reports, decisions, self._fitness))

    def show_winner(self, member: int, report: Report) -> None:
        """Show the flags that repeat the winner's last settings."""
        flags = (f"--{name} {value:.6g}" for name, value in report.settings.values.items())
        self._say(f"the winner is member {member}: {' '.join(flags)}")

    def _write_lineage(self) -> str | None:
        """Write all exchanges; why that failed, if so."""
        lines = "".join(as_json(line) + "\n" for line in self._lineage)
        try:
            with written_whole(self._run / LINEAGE) as file:
                file.write(lines.encode())
        except OSError as error:
            return error.strerror
        return None


def _described(member: int, report: Report, decision: Decision) -> dict[str, Any]:
    """A member in an exchange as plain data: `values` are those before it, `becomes` after it."""
    return {
        "member": member,
        **asdict(report.fitness),
        "score": report.candidate.score,
        "learns": report.candidate.learns,
        "values": report.settings.values,
        "parent": decision.parent,
        "mutation": decision.mutation,
        "becomes": decision.values,
    }


def exchange_table(reports: Sequence[Report], decisions: Sequence[Decision], fitness: str) -> str:
    """The members of an exchange as a table, best first, with the members that they copy."""
    names = [name.rsplit(".", 1)[-1] for name in reports[0].settings.values]
    rows = [["member", fitness, "parent", "mutation", *names]]
    for i in sorted(range(len(reports)), key=lambda i: -reports[i].candidate.score):
        decision = decisions[i]
        parent = "" if decision.parent == i else str(decision.parent)
        mutation = "" if decision.mutation == "none" else decision.mutation.replace("_", "-")
        numbers = [f"{value:.4g}" for value in reports[i].settings.values.values()]
        rows.append([str(i), with_margin(fitness, reports[i].fitness), parent, mutation, *numbers])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
