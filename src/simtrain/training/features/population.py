"""A population: members train in parallel, and better members replace worse ones.

A member is an ordinary training; this feature, on each of its ranks, connects it with the others.
Members meet at exchanges and at saves, so that there are always saved states of all members after
the same meeting. In an exchange, all members are evaluated with the same seeds and compute the
same decisions (`evolution`): which member copies which, and how it is mutated. A copy includes
networks, normalizers, optimizer, hyper-parameters and curricula; environments do not change. The
first ranks of the members, their leaders, communicate with each other.

Rank 0 of all ranks writes to the directory of the run:

population.jsonl    one line per exchange: fitness, parent, mutation and numbers of every member
metrics.jsonl       one line per exchange: best and mean fitness, number of replaced members
best.pt             the fittest policy so far, with its configuration, ``best.yaml``
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from simtrain.algorithms import network_morphism as morphism
from simtrain.config.train import TrainConfig
from simtrain.env.randomness import forked_randomness
from simtrain.errors import ConfigError, DivergenceError
from simtrain.files import as_json, written_whole
from simtrain.run.checkpoint import copied_to_host, packed, unpacked
from simtrain.run.directory import LINEAGE
from simtrain.run.logged import read_lineage
from simtrain.training.evaluator import with_margin
from simtrain.training.features import Feature, Iteration
from simtrain.training.features.checkpoint import PolicySnapshot, save_best
from simtrain.training.features.conditions import StopCondition, stop_condition
from simtrain.training.features.evolution import (
    Candidate,
    Decision,
    Mutation,
    Settings,
    evolve,
    fitness_of,
    hyper_parameters,
    term_parameter,
    values_of,
)
from simtrain.training.features.recorder import RunRecords

if TYPE_CHECKING:
    from simtrain.algorithms.distillation import Algorithm
    from simtrain.training.context import RunContext
    from simtrain.training.features.evaluation import PeriodicEvaluation
    from simtrain.training.features.recorder import Recorder
    from simtrain.training.loop import Trainer


class Population(Feature):
    """A member's part in a population, on each of its ranks."""

    phase = "evaluation"

    def __init__(
        self,
        context: RunContext,
        trainer: Trainer,
        recorder: Recorder,
        evaluation: PeriodicEvaluation,
        make_algorithm: Callable[[TrainConfig], Algorithm],
    ) -> None:
        """Give the member its own hyper-parameters, in place.

        `make_algorithm` makes the algorithm of a member whose networks have other sizes.
        """
        assert context.member is not None
        self._context, self._trainer, self._recorder = context, trainer, recorder
        self._evaluation = evaluation
        self._make_algorithm = make_algorithm
        self._config, self._member = context.config, context.member.number
        self._leaders = context.member.leaders
        self._hyper_parameters = hyper_parameters(self._config)
        self._condition = stop_condition(self._config) or StopCondition(())  # that never holds
        values = values_of(self._config, self._hyper_parameters)
        if self._member > 0:
            rng = np.random.default_rng([self._config.seed, self._member])
            values = {parameter.flag: parameter.draw(rng) for parameter in self._hyper_parameters}
        ppo = self._config.ppo
        dims = {name: tuple(getattr(ppo, name).hidden_dims) for name in trainer.ppo.networks}
        self._apply(Settings(values, dims))
        self._met = 0  # the iteration of the last meeting of all members
        self._exchange_before = 0  # the iteration of the last exchange
        self._replaced = 0  # the iteration at which this member was last replaced
        self._best = -math.inf  # the best fitness of any member so far, the larger the better
        self._ends = False  # whether the population is to end at the next meeting
        self._waited = 0.0
        self._records: ExchangeRecords | None = None
        self._saved: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Open the run's own files on the first of all ranks.

        Raises:
            ConfigError: another process writes to the run, or its folder cannot be written to.
        """
        context, trainer = self._context, self._trainer
        self._iterations = context.iterations(trainer.iteration, trainer.env_steps)
        if self._leaders is not None and self._leaders.is_main:
            self._records = ExchangeRecords(context, self._saved, self._exchange_before)
        self._last_meeting = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._records is not None:
            self._records.files.close(failed=kind is not None)

    def after_iteration(self, iteration: Iteration) -> None:
        """Meet the other members if this is due, and exchange; training ends for all together.

        Raises:
            DivergenceError: no member can learn any more.
        """
        number, config = iteration.number, self._config
        with self._context.rank.progress:
            pass  # members train by themselves: no rank waits for this one
        values = self._settings.values
        iteration.metrics |= {f"Population/{name}": value for name, value in values.items()}
        is_at_end = number >= self._iterations
        is_stopped = iteration.is_stopped and not is_at_end
        self._ends |= iteration.is_last and not is_stopped
        is_meeting = is_at_end or config.next_meeting(number) == number
        iteration.is_last = False
        if not (is_meeting or is_stopped):
            return
        is_stopped, ends = self._meet(stopped=is_stopped)
        if not is_stopped:
            self._met = number
            if ends or number % config.population_interval == 0:
                ends = self._exchange(iteration, ends=ends)
        elif is_meeting:
            # Those that stopped before come here when the run goes on.
            self._trainer.unfinished = iteration
        iteration.is_last = is_stopped or ends

    def state(self) -> dict[str, Any]:
        """See `Feature.state`."""
        return {
            **asdict(self._settings),
            "met": self._met,
            "exchange": self._exchange_before,
            "replaced": self._replaced,
            "best": self._best,
            "ends": self._ends,
            **({} if self._records is None else self._records.files.state()),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Feature.set_state`."""
        self._apply(Settings(state["values"], state["hidden_dims"]))
        self._met = state["met"]
        self._exchange_before, self._replaced = state["exchange"], state["replaced"]
        self._best, self._ends = float(state["best"]), bool(state["ends"])
        self._saved = state

    def _meet(self, *, stopped: bool) -> tuple[bool, bool]:
        """Wait for all members; whether one was stopped, and whether one meets its condition."""
        flags = None
        if self._leaders is not None:
            began = time.perf_counter()
            flags = self._leaders.any(stopped, self._ends)
            now = time.perf_counter()
            self._waited = (now - began) / max(now - self._last_meeting, 1e-9)
            self._last_meeting = now
        is_stopped, ends = self._context.rank.broadcast_object(flags)
        return is_stopped, ends

    def _exchange(self, iteration: Iteration, *, ends: bool) -> bool:
        """Evaluate, select and mutate, in place; whether training ends.

        All ranks of all members call it together.
        """
        number, rank, leaders = iteration.number, self._context.rank, self._leaders
        outcome: tuple[Decision, bytes | None, bool] | None = None
        if leaders is not None:
            candidates = leaders.all_gather_object(self._candidate(iteration))
            winner = max(range(len(candidates)), key=lambda i: candidates[i].score)
            ends = ends or candidates[winner].ends
            decisions = self._decide(number, candidates, ends=ends)
            self._keep_best(iteration, winner, candidates[winner])
            if self._records is not None:
                self._records.write(iteration, self._recorder.wall_s, candidates, decisions)
                if ends:
                    values = candidates[winner].settings.values.items()
                    flags = " ".join(f"--{name} {value:.6g}" for name, value in values)
                    self._context.console.say(f"the winner is member {winner}: {flags}")
            outcome = decisions[leaders.rank], self._send_to_copies(decisions), ends
        decision, learned, ends = rank.broadcast_object(outcome)
        self._exchange_before = number
        if learned is not None:
            self._replaced = number
        if learned is not None or decision.mutation != "none":
            self._apply(decision.settings, learned)
            seed = [self._config.seed, number, self._member]
            self._mutate(decision.mutation, np.random.default_rng(seed))
        return bool(ends)

    def _candidate(self, iteration: Iteration) -> Candidate:
        """This member's evaluation; its metrics are added to those of the iteration."""
        losses = [value for tag, value in iteration.metrics.items() if tag.startswith("Loss/")]
        evaluation = self._evaluation.evaluation_of(iteration.number)
        assert evaluation is not None
        tags = evaluation.tags(iteration.number)
        iteration.metrics |= {**tags, "Population/waiting": self._waited}
        name, sign = fitness_of(self._config)
        estimate = evaluation.estimates[name]
        return Candidate(
            self._settings,
            estimate,
            fitness=sign * estimate.value,
            low=estimate.low if sign > 0.0 else -estimate.high,
            age=iteration.number - self._replaced,
            learns=all(map(math.isfinite, losses)),
            ends=self._condition.holds(iteration.metrics),
        )

    def _decide(
        self, number: int, candidates: Sequence[Candidate], *, ends: bool
    ) -> list[Decision]:
        """The decisions about all members, the same on each."""
        if not any(candidate.is_sound for candidate in candidates):
            raise DivergenceError(
                f"at iteration {number} no member of the population has a finite fitness and "
                "finite losses; a smaller --ppo.learning-rate or narrower bounds may help"
            )
        if number < self._config.population_warm_up or ends:
            return [Decision(i, "none", member.settings) for i, member in enumerate(candidates)]
        rng = np.random.default_rng([self._config.seed, number])
        return evolve(self._config, candidates, self._hyper_parameters, rng)

    def _keep_best(self, iteration: Iteration, winner: int, member: Candidate) -> None:
        """Write the fittest policy on rank 0 if it is the best so far; leaders call it."""
        leaders, run = self._leaders, self._context.shared.run
        assert leaders is not None
        if member.score <= self._best:
            return
        self._best = member.score
        own = None
        if winner == leaders.rank:
            own = packed(copied_to_host(self._trainer.ppo.save()))
        networks = leaders.gather_object(own)
        if networks is not None:
            config, state = member.settings.config(self._config), unpacked(networks[winner])
            policy = PolicySnapshot(iteration.number, iteration.env_steps, config, state)
            infos = {"member": winner, self._config.population_fitness: self._best}
            save_best(self._context, run, policy, **infos)

    def _send_to_copies(self, decisions: Sequence[Decision]) -> bytes | None:
        """Send this member's state to those that copy it; the state that it copies, if any."""
        assert self._leaders is not None
        own = received = None
        for i, decision in enumerate(decisions):
            if decision.parent == i:
                continue
            if decision.parent == self._leaders.rank:
                learner = copied_to_host(self._trainer.ppo.state())
                own = own or packed({"learner": learner, "env": self._trainer.env.variables()})
                self._leaders.send_object(own, to=i)
            elif i == self._leaders.rank:
                received = self._leaders.recv_object(decision.parent)
        return received

    def _apply(self, settings: Settings, learned: bytes | None = None) -> None:
        """Set settings and, if given, the state of another member, in place."""
        trainer, config, algorithm = self._trainer, settings.config(self._config), self._trainer.ppo
        before = trainer.config.ppo
        if (config.ppo.actor, config.ppo.critic) != (before.actor, before.critic):
            with forked_randomness(0, trainer.rank.device):
                algorithm = self._make_algorithm(config)
            algorithm.inherit(trainer.ppo)
        if learned is not None:
            state = unpacked(learned)
            algorithm.set_state(state["learner"])
            trainer.env.set_variables(state["env"])
            for tensor in algorithm.hidden_states():  # they are those of another network
                tensor.zero_()
        for name, value in settings.values.items():
            if name.startswith("env."):
                trainer.env.set_parameter(*term_parameter(self._config, name), value)
            else:
                algorithm.set_hyper_parameter(name.split(".")[1].replace("-", "_"), value)
        self._settings = settings
        trainer.set_ppo(algorithm, config)  # also ends graphs, which hold the numbers of before

    def _mutate(self, mutation: Mutation, rng: np.random.Generator) -> None:
        """Mutate the networks, in place, if the mutation is one of networks."""
        before = self._trainer.ppo
        if mutation == "parameters":
            morphism.add_noise(before.actor.mlp, rng)
        if mutation != "architecture":
            return
        # Larger networks that compute the same; the optimizer starts anew.
        layers = {
            name: morphism.grown(network.mlp, getattr(self._config.ppo, name).activation, rng)
            for name, network in before.networks.items()
        }
        dims = {name: morphism.hidden_sizes(grown) for name, grown in layers.items()}
        self._apply(replace(self._settings, hidden_dims=dims))
        for name, network in self._trainer.ppo.networks.items():
            state = before.networks[name].state_dict()
            rest = {key: value for key, value in state.items() if not key.startswith("mlp.")}
            network.load_state_dict(rest, strict=False)
            morphism.set_layers(network.mlp, layers[name])


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
        iteration: Iteration,
        wall_s: float,
        candidates: Sequence[Candidate],
        decisions: Sequence[Decision],
    ) -> None:
        """Write and show an exchange, `wall_s` seconds after the start."""
        scores = [member.score for member in candidates if member.is_sound]
        metrics = {
            "Population/best_score": max(scores),
            "Population/mean_score": fmean(scores),
            "Population/replaced": float(sum(d.parent != i for i, d in enumerate(decisions))),
        }
        number, env_steps = iteration.number, iteration.env_steps * len(candidates)
        self.files.write(number, env_steps, wall_s, metrics)
        members = [
            {
                "member": i,
                **asdict(member.estimate),
                "score": member.score,
                "learns": member.learns,
                "values": member.settings.values,
                "parent": decision.parent,
                "mutation": decision.mutation,
                "becomes": decision.settings.values,
            }
            for i, (member, decision) in enumerate(zip(candidates, decisions, strict=True))
        ]
        line = {"iteration": number, "env_steps": env_steps, "wall_s": round(wall_s, 3)}
        self._lineage.append({**line, "members": members})
        if error := self._write_lineage():  # the next exchange writes all lines
            self._say(f"warning: {LINEAGE} cannot be written: {error}")
        self.files.metrics.sync()
        table = exchange_table(candidates, decisions, self._fitness)
        self._say(f"exchange after iteration {number}:\n{table}")

    def _write_lineage(self) -> str | None:
        """Write all exchanges; why that failed, if so."""
        lines = "".join(as_json(line) + "\n" for line in self._lineage)
        try:
            with written_whole(self._run / LINEAGE) as file:
                file.write(lines.encode())
        except OSError as error:
            return error.strerror
        return None


def exchange_table(
    candidates: Sequence[Candidate], decisions: Sequence[Decision], fitness: str
) -> str:
    """The members of an exchange as a table, best first, with the members that they copy."""
    names = [name.rsplit(".", 1)[-1] for name in candidates[0].settings.values]
    rows = [["member", fitness, "parent", "mutation", *names]]
    for i in sorted(range(len(candidates)), key=lambda i: -candidates[i].score):
        member, decision = candidates[i], decisions[i]
        parent = "" if decision.parent == i else str(decision.parent)
        mutation = "" if decision.mutation == "none" else decision.mutation.replace("_", "-")
        numbers = [f"{value:.4g}" for value in member.settings.values.values()]
        rows.append([str(i), with_margin(fitness, member.estimate), parent, mutation, *numbers])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
