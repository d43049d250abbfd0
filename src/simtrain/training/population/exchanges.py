"""The exchanges of a population: what members tell each other, and the files and the table of it.

population.jsonl    a line an exchange: every member's fitness, parent, mutation and numbers
metrics.jsonl       a line an exchange: best and mean fitness, and how many were replaced
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from simtrain.config.train import TrainConfig
from simtrain.config.tree import resolved
from simtrain.errors import ConfigError
from simtrain.files import written_whole
from simtrain.run.checkpoint import BEST
from simtrain.run.directory import LINEAGE, write_config
from simtrain.run.metrics import MetricsWriter
from simtrain.training.context import RunContext
from simtrain.training.evaluator import Estimate
from simtrain.training.population.evolution import Candidate, Decision, Values
from simtrain.training.population.hyper_parameters import fitness_of, with_values

if TYPE_CHECKING:
    from simtrain.run.wandb_writer import WandbWriter


@dataclass(frozen=True)
class Settings:
    """The part of the configuration in which members differ."""

    values: Values
    hidden_dims: dict[str, tuple[int, ...]]
    """Sizes of the networks, by their names in the configuration of PPO."""

    def config(self, config: TrainConfig) -> TrainConfig:
        """The run's configuration with these settings."""
        config = with_values(config, self.values)
        networks = {
            name: replace(getattr(config.ppo, name), hidden_dims=dims)
            for name, dims in self.hidden_dims.items()
        }
        return replace(config, ppo=replace(config.ppo, **networks))


@dataclass(frozen=True)
class Report:
    """A member in an exchange, as it describes itself to the others."""

    settings: Settings
    candidate: Candidate
    fitness: Estimate
    """As the evaluation gives it, whether more or less of it is better."""
    ends: bool
    """Whether its evaluation fulfils ``--until``."""


class ExchangeRecords:
    """Writes the exchanges of a population to the run's own files, and shows them."""

    def __init__(
        self,
        context: RunContext,
        after: int,
        wandb_id: str | None,
        event_sizes: dict[str, int] | None,
    ) -> None:
        """Open the files; a resumed run goes on `after` the exchange of that iteration.

        `event_sizes` are those of TensorBoard's files then.

        Raises:
            ConfigError: another process writes to the run, or its folder cannot be written to.
        """
        config = context.config
        self._run, self._say = context.shared.run, context.console.say
        self._fitness = fitness_of(config)[0]
        self._metrics = MetricsWriter(
            self._run,
            tensorboard=config.logger == "tensorboard",
            after=after,
            event_sizes=event_sizes,
        )
        lineage, self._lineage = self._run / LINEAGE, []
        if after > 0:
            from simtrain.run.logged import read_lineage

            self._lineage = [row for row in read_lineage(self._run) if row["iteration"] <= after]
        try:
            write_config(self._run / "config.yaml", resolved(config), list(context.shared.devices))
            self._write_lineage()
        except OSError as error:
            raise ConfigError(f"{lineage} cannot be written: {error.strerror}") from error
        self._wandb: WandbWriter | None = None
        self.wandb_id: str | None = None
        """The W&B run of the population itself."""
        if config.logger == "wandb":
            from simtrain.run.wandb_writer import WandbWriter

            group = self._run.name
            self._wandb = WandbWriter(self._run, config, self._say, run_id=wandb_id, group=group)
            self.wandb_id = self._wandb.run_id

    def write(
        self,
        counts: tuple[int, int, float],
        reports: Sequence[Report],
        decisions: Sequence[Decision],
    ) -> None:
        """Write and show an exchange; `counts` are iteration, environment steps and seconds."""
        # JSON knows no NaN and no infinity: they become null.
        members = [
            {key: _finite(value) for key, value in _described(i, report, decision).items()}
            for i, (report, decision) in enumerate(zip(reports, decisions, strict=True))
        ]
        scores = [r.candidate.score for r in reports if r.candidate.is_sound]
        metrics = {
            "Population/best_score": max(scores),
            "Population/mean_score": fmean(scores),
            "Population/replaced": float(sum(d.parent != i for i, d in enumerate(decisions))),
        }
        self._metrics.write(*counts, metrics)
        if self._wandb is not None:
            self._wandb.write(*counts, metrics)
        iteration, env_steps, wall_s = counts
        line = {"iteration": iteration, "env_steps": env_steps, "wall_s": round(wall_s, 3)}
        self._lineage.append({**line, "members": members})
        try:
            self._write_lineage()
            self._metrics.sync()
        except OSError as error:  # the next exchange writes all lines
            self._say(f"warning: {LINEAGE} cannot be written: {error.strerror}")
        self._say(f"exchange after iteration {iteration}:")
        self._say(exchange_table(reports, decisions, self._fitness))

    def event_sizes(self) -> dict[str, int]:
        """The present size of each of TensorBoard's files, by name."""
        return self._metrics.event_sizes()

    def show_winner(self, member: int, report: Report) -> None:
        """Show the flags that repeat the winner's last settings."""
        flags = (f"--{name} {value:.6g}" for name, value in report.settings.values.items())
        self._say(f"the winner is member {member}: {' '.join(flags)}")

    def close(self, *, failed: bool) -> None:
        """Close the files, and draw the picture of the population unless training `failed`."""
        self._metrics.close()
        if self._wandb is not None:
            if (self._run / BEST).exists():
                self._wandb.save(self._run / BEST)
            self._wandb.close(failed=failed)
        if self._lineage and not failed:
            from simtrain.plot.report import draw_finished

            draw_finished(self._run, self._say)

    def _write_lineage(self) -> None:
        with written_whole(self._run / LINEAGE) as file:
            file.write("".join(json.dumps(line) + "\n" for line in self._lineage).encode())


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


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def exchange_table(reports: Sequence[Report], decisions: Sequence[Decision], fitness: str) -> str:
    """The members of an exchange for people, best first, and whom they copy."""
    names = [name.rsplit(".", 1)[-1] for name in reports[0].settings.values]
    rows = [["member", fitness, "parent", "mutation", *names]]
    for i in sorted(range(len(reports)), key=lambda i: -reports[i].candidate.score):
        estimate, decision = reports[i].fitness, decisions[i]
        margin = (estimate.high - estimate.low) / 2.0
        interval = f" ± {margin:.3g}" if math.isfinite(margin) else ""
        parent = "" if decision.parent == i else str(decision.parent)
        mutation = "" if decision.mutation == "none" else decision.mutation.replace("_", "-")
        numbers = [f"{value:.4g}" for value in reports[i].settings.values.values()]
        rows.append([str(i), f"{estimate.value:.4g}{interval}", parent, mutation, *numbers])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
