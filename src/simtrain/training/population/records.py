"""The files of a population, which the run's rank 0 writes, and its table on the console.

population.jsonl        a line an exchange: every member's fitness, parent, mutation and numbers
metrics.jsonl           a line an exchange: best and mean fitness, and how many were replaced
members/<i>/            metrics.jsonl and TensorBoard's events of each member, a line an iteration
best.pt, best.yaml      the fittest policy of all exchanges, and the configuration that it had
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.config.train import TrainConfig
from simtrain.config.tree import resolved
from simtrain.errors import ConfigError
from simtrain.files import written_whole
from simtrain.plot.report import draw_finished
from simtrain.run.checkpoint import BEST, BEST_CONFIG, save_model
from simtrain.run.directory import LINEAGE, MEMBERS, write_config
from simtrain.run.metrics import MetricsWriter
from simtrain.training.evaluator import Estimate
from simtrain.training.population.evolution import Candidate, Decision
from simtrain.training.population.member import Member

if TYPE_CHECKING:
    from simtrain.run.wandb_writer import WandbWriter

Row = tuple[int, int, float, dict[str, float]]
"""Iteration, environment steps, seconds and metrics, as `MetricsWriter.write` takes them."""


@dataclass(frozen=True)
class Standing:
    """A member in an exchange."""

    candidate: Candidate
    fitness: Estimate
    """As the evaluation gives it, whatever of it is better."""
    facts: Member
    is_done: bool
    """Whether its evaluation fulfils ``--until``."""


def describe(standings: Sequence[Standing], decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """An exchange as plain data, by member: `values` are those before it, `becomes` after it."""
    return [
        {
            "member": i,
            **asdict(standing.fitness),
            "score": standing.candidate.score,
            "learns": standing.candidate.learns,
            "values": standing.facts.values,
            "parent": decision.parent,
            "mutation": decision.mutation,
            "becomes": decision.values,
        }
        for i, (standing, decision) in enumerate(zip(standings, decisions, strict=True))
    ]


class PopulationRecords:
    """Writes the files of a population, and goes on with them where a resumed run left off."""

    def __init__(
        self,
        run: Path,
        configs: Sequence[TrainConfig],
        devices: list[str],
        state: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """Open the files; `configs` are those of the members, `state` is `state()` of before.

        Raises:
            ConfigError: another process writes to the run, or its folder cannot be written to.
        """
        self._run, self._devices, self._say = run, devices, say
        self._lineage: list[dict[str, Any]] = json.loads(state.get("lineage", "[]"))
        self.best = float(state.get("best", -math.inf))
        """The best fitness so far, the larger the better."""
        after = self._lineage[-1]["iteration"] if self._lineage else 0
        events = configs[0].logger == "tensorboard"
        self._own = MetricsWriter(run, tensorboard=events, after=after)
        iterations: list[int] = state.get("iterations", [0] * len(configs))
        try:
            for i, config in enumerate(configs):
                folder = run / MEMBERS / str(i)
                folder.mkdir(parents=True, exist_ok=True)
                write_config(folder / "config.yaml", resolved(config), devices)
            write_config(run / "config.yaml", resolved(configs[0]), devices)
            self._write_lineage()
        except OSError as error:
            raise ConfigError(f"{run} cannot be written: {error.strerror}") from error
        self._members = [
            MetricsWriter(run / MEMBERS / str(i), tensorboard=events, after=iteration)
            for i, iteration in enumerate(iterations)
        ]
        # The run's own, and those of the members.
        self._wandb: list[WandbWriter] = []
        if configs[0].logger == "wandb":
            from simtrain.run.wandb_writer import WandbWriter

            folders = [run, *(run / MEMBERS / str(i) for i in range(len(configs)))]
            ids = state.get("wandb") or [None] * len(folders)
            settings = [configs[0], *configs]
            self._wandb = [
                WandbWriter(folder, config, say, run_id=run_id, group=run.name)
                for folder, config, run_id in zip(folders, settings, ids, strict=True)
            ]

    @property
    def error(self) -> str | None:
        """Why metrics wait to be written, or None if none do."""
        return next((w.error for w in (self._own, *self._members) if w.error is not None), None)

    def state(self) -> dict[str, Any]:
        """What the next exchanges depend on."""
        ids = [writer.run_id for writer in self._wandb]
        return {"lineage": json.dumps(self._lineage), "best": self.best, "wandb": ids}

    def write(self, rows: Sequence[Sequence[Row]]) -> None:
        """Write the iterations of each member since the last call."""
        for i, its_rows in enumerate(rows):
            for row in its_rows:
                self._write(i + 1, row)

    def write_exchange(self, row: Row, members: list[dict[str, Any]]) -> None:
        """Write an exchange: the run's own metrics, and what became of each member."""
        self._write(0, row)
        iteration, env_steps, wall_s, _ = row
        line = {"iteration": iteration, "env_steps": env_steps, "wall_s": round(wall_s, 3)}
        # JSON knows no NaN and no infinity: they become null.
        plain = [{k: _finite(v) for k, v in member.items()} for member in members]
        self._lineage.append({**line, "members": plain})
        self._write_lineage()

    def save_best(
        self, config: TrainConfig, iteration: int, networks: dict[str, Any], infos: dict[str, Any]
    ) -> None:
        """Keep the best policy so far; OSError if it cannot be written."""
        write_config(self._run / BEST_CONFIG, resolved(config), self._devices)
        save_model(self._run / BEST, iteration, networks, infos)

    def draw(self) -> None:
        """Leave the picture of the population in the run; if that fails, only say so."""
        if not self._lineage:
            return
        draw_finished(self._run, self._say)

    def sync(self) -> None:
        """Wait until the metrics are on the disk; for another thread."""
        for writer in (self._own, *self._members):
            writer.sync()

    def close(self, *, failed: bool) -> None:
        """Write what waits, and close the files; W&B is told whether training `failed`."""
        for writer in (self._own, *self._members):
            writer.close()
        if self._wandb and (self._run / BEST).exists():
            self._wandb[0].save(self._run / BEST)
        for run in self._wandb:
            run.close(failed=failed)

    def _write(self, place: int, row: Row) -> None:
        """Write a row of the run's own, at place 0, or of the member before this place."""
        (self._own, *self._members)[place].write(*row)
        if self._wandb:
            self._wandb[place].write(*row)

    def _write_lineage(self) -> None:
        with written_whole(self._run / LINEAGE) as file:
            file.write("".join(json.dumps(line) + "\n" for line in self._lineage).encode())


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(members: Sequence[Mapping[str, Any]], fitness: str) -> str:
    """What became of the members in an exchange, for people, best first."""
    names = [name.rsplit(".", 1)[-1] for name in members[0]["values"]]
    rows = [["member", fitness, "parent", "mutation", *names]]
    for one in sorted(members, key=lambda each: -each["score"]):
        margin = (one["high"] - one["low"]) / 2.0
        interval = f" ± {margin:.3g}" if math.isfinite(margin) else ""
        was = "" if one["parent"] == one["member"] else str(one["parent"])
        kind = "" if one["mutation"] == "none" else one["mutation"].replace("_", "-")
        numbers = [f"{value:.4g}" for value in one["values"].values()]
        rows.append([str(one["member"]), f"{one['value']:.4g}{interval}", was, kind, *numbers])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(lines)
