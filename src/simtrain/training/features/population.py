"""A population: members train side by side, and now and then the better replace the worse.

Between two exchanges a member is a training of its own, which waits for nobody. In an exchange all
are evaluated on the same seeds, decide together, as each computes the same, who is replaced by whom
and how it is mutated (`evolution`), and send each other networks, normalizers, optimizer,
hyper-parameters and curricula; environments go on as they are. The first rank of each member
speaks for it; rank 0 of the run writes all files. The whole population is saved at once, so that it
goes on exactly, whenever it was killed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from simtrain.config.metric_tags import SPEED
from simtrain.config.train import TrainConfig
from simtrain.config.tree import checkpoint_infos
from simtrain.env.model import evaluation_task
from simtrain.errors import DivergenceError
from simtrain.run.checkpoint import copied_to_host, packed, unpacked
from simtrain.run.console import Status
from simtrain.sim import choose_engine
from simtrain.training.evaluator import Evaluator
from simtrain.training.features import Feature, Iteration
from simtrain.training.features.background import NewestItemWorker
from simtrain.training.features.checkpoint import (
    RETRY_SECONDS,
    constant_content,
    put_back,
    training_state,
)
from simtrain.training.features.conditions import stop_condition
from simtrain.training.population.evolution import Candidate, Decision, evolve
from simtrain.training.population.hyper_parameters import (
    fitness_of,
    hyper_parameters,
    mutations_of,
    selection_of,
    values_of,
)
from simtrain.training.population.member import Member, MemberTraining
from simtrain.training.population.records import PopulationRecords, Row, Standing, describe, table
from simtrain.training.resumption import read_resume_state, write_resume_state

if TYPE_CHECKING:
    from simtrain.algorithms.ppo import PPO
    from simtrain.training.context import RunContext
    from simtrain.training.loop import Trainer


class Population(Feature):
    """One member of a population, on each of its ranks."""

    phase = "evaluation"

    def __init__(
        self, context: RunContext, trainer: Trainer, make_ppo: Callable[[TrainConfig], PPO]
    ) -> None:
        """Prepare; `make_ppo` makes the algorithm of a member whose networks have other sizes."""
        assert context.population is not None
        self._context, self._trainer = context, trainer
        self._config, self._place = context.config, context.population
        self._firsts = context.population.firsts
        self._hyper_parameters = hyper_parameters(self._config)
        self._condition = stop_condition(self._config)
        values = values_of(self._config, self._hyper_parameters)
        if self._place.member > 0:
            rng = np.random.default_rng([self._config.seed, self._place.member])
            values = {each.flag: each.draw(rng) for each in self._hyper_parameters}
        facts = Member(
            values,
            actor_dims=tuple(self._config.ppo.actor.hidden_dims),
            critic_dims=tuple(self._config.ppo.critic.hidden_dims),
        )
        self._member = MemberTraining(trainer, self._config, make_ppo, facts)
        self._rows: list[Row] = []
        self._warnings: list[str] = []
        self._learns = True
        self._waited = 0.0
        self._evaluator: Evaluator | None = None
        self._records: PopulationRecords | None = None
        self._saved_records: dict[str, Any] = {}
        self._writer: NewestItemWorker[dict[str, Any]] | None = None
        self._shown_error: str | None = None
        self.error: str | None = None
        """Why the last state could not be written, or None if it was."""

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes the files of the run."""
        return self._firsts is not None and self._firsts.is_main

    @property
    def _mine(self) -> Member:
        return self._member.facts

    def restore(self) -> None:
        """Begin with the member's own hyper-parameters, or put a saved state back, in place.

        Raises:
            ConfigError: the state does not fit.
        """
        resumption, rank = self._context.shared.resumption, self._context.rank
        if resumption is None:
            self._member.become(self._mine)
            return
        content = None
        if self._firsts is not None:
            parts = None
            if self._firsts.is_main:
                whole = read_resume_state(resumption.file)["features"][self.name]
                parts = [member.numpy().tobytes() for member in whole["members"]]
                self._saved_records = whole["records"]
            content = unpacked(self._firsts.scatter_object(parts))
        saved = rank.broadcast_object(None if content is None else content.pop("member"))
        sizes = {name: tuple(saved[name]) for name in ("actor_dims", "critic_dims")}
        self._member.become(Member(**{**saved, **sizes}))
        self._rows = [tuple(row) for row in self._mine.held]
        put_back(content, self._trainer, rank, (), resumption)

    def __enter__(self) -> Self:
        context, trainer = self._context, self._trainer
        # The last one; the exchange in which the condition of --until holds makes it the last.
        self._iterations = context.iterations(trainer.iteration, trainer.env_steps)
        self._start = time.perf_counter() - self._mine.wall_s
        self._first = trainer.iteration
        if self._firsts is not None:
            engine = choose_engine(self._config.engine, context.rank.device, context.rank.threads)
            task, episodes = evaluation_task(self._config.env), self._config.eval_episodes
            actor = self._member.config().ppo.actor
            self._evaluator = Evaluator(task, actor, episodes, engine=engine)
            members = self._firsts.gather_object(self._mine)
            if members is not None:
                configs = [self._member.config(member) for member in members]
                devices, before = list(context.shared.devices), self._saved_records
                say = context.console.say
                self._records = PopulationRecords(context.run, configs, devices, before, say)
                self._constant = constant_content(context, trainer)
                self._writer = NewestItemWorker(self._write, "saver", retry_seconds=RETRY_SECONDS)
        self._last_meeting = time.perf_counter()
        if self._mine.is_due:
            self._meet(trainer.iteration, stopped=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._trainer.timer.begin("saving")
        if self._writer is not None:
            self._writer.close()
        if self._records is not None:
            self._records.close(failed=kind is not None)
            if kind is None:
                self._records.draw()

    def after_iteration(self, iteration: Iteration) -> None:
        """Record the iteration; exchange and save where that is due, together with all members.

        Raises:
            DivergenceError: no member can learn any more.
        """
        number, config = iteration.number, self._config
        with self._context.rank.progress:
            pass  # members go on by themselves: nobody keeps the others waiting who does
        losses = [value for tag, value in iteration.metrics.items() if tag.startswith("Loss/")]
        self._learns = all(map(math.isfinite, losses))
        self._mine.wall_s = time.perf_counter() - self._start
        values = {f"Population/{name}": value for name, value in self._mine.values.items()}
        metrics = {**iteration.metrics, **values}
        self._rows.append((number, iteration.env_steps, self._mine.wall_s, metrics))
        self._warnings += iteration.warnings
        if self._records is not None:
            self._show(iteration)
        intervals = (config.population_interval, config.save_interval)
        if iteration.is_last or any(number % interval == 0 for interval in intervals):
            stopped = iteration.is_last and number < self._iterations
            iteration.is_last |= self._meet(number, stopped=stopped)

    def _meet(self, number: int, *, stopped: bool) -> bool:
        """Exchange and save as is due after iteration `number`; whether training ends.

        Members that were told to stop may be at different iterations; all of them then save.
        """
        rank, config = self._context.rank, self._config
        if self._firsts is not None:
            began = time.perf_counter()
            stopped = bool(self._firsts.all_gather([float(stopped)]).any())
            now = time.perf_counter()
            self._waited = (now - began) / max(now - self._last_meeting, 1e-9)
            self._last_meeting = now
        stopped = bool(rank.broadcast_object(stopped))
        due = number % config.population_interval == 0 or number >= self._iterations
        self._mine.is_due, self._mine.held = due and stopped, []
        if due and not stopped:
            self._exchange(number)
        elif due:
            self._mine.held = [list(row) for row in self._rows[-1:]]
            del self._rows[-1:]
        is_end = number >= self._iterations
        self._trainer.timer.begin("saving")
        self._hand_in()
        if stopped or is_end or number % config.save_interval == 0:
            self._save()
        return stopped or is_end

    def _exchange(self, number: int) -> None:
        """Evaluate, select and mutate, in place; all ranks of all members call it together."""
        rank, firsts = self._context.rank, self._firsts
        outcome: tuple[Decision, Member, bytes | None, int] | None = None
        if firsts is not None:
            standings = firsts.all_gather_object(self._evaluate(number))
            winner = max(range(len(standings)), key=lambda i: standings[i].candidate.score)
            if standings[winner].is_done:
                self._iterations = number
            decisions = self._decide(number, standings)
            self._keep_best(number, winner, standings[winner].candidate.score)
            if self._records is not None:
                self._record(number, winner, standings, decisions)
            mine = decisions[firsts.rank]
            state = self._hand_over(decisions)
            outcome = mine, standings[mine.parent].facts, state, self._iterations
        decision, parent, state, self._iterations = rank.broadcast_object(outcome)
        if state is None and decision.mutation == "none":
            return
        changes: dict[str, Any] = {"values": decision.values}
        if state is not None:
            dims = {"actor_dims": parent.actor_dims, "critic_dims": parent.critic_dims}
            changes |= {**dims, "replaced": number}
        self._member.become(replace(self._mine, **changes), state)
        seed = [self._config.seed, number, self._place.member]
        self._member.mutate(decision.mutation, np.random.default_rng(seed))

    def _evaluate(self, number: int) -> Standing:
        """This member as selection sees it."""
        assert self._evaluator is not None
        name, sign = fitness_of(self._config)
        self._evaluator.actor = self._member.config().ppo.actor
        evaluation = self._evaluator(self._trainer.ppo.actor.state_dict())
        assert evaluation is not None
        tags = evaluation.tags(number)
        if self._rows:
            self._rows[-1][3].update({**tags, "Population/waiting": self._waited})
        fitness = evaluation.estimates[name]
        low = fitness.low if sign > 0.0 else -fitness.high
        age = number - self._mine.replaced
        candidate = Candidate(sign * fitness.value, low, age, learns=self._learns)
        metrics = {**(self._rows[-1][3] if self._rows else {}), **tags}
        is_done = self._condition is not None and self._condition.holds(metrics)
        return Standing(candidate, fitness, self._mine, is_done)

    def _decide(self, number: int, standings: list[Standing]) -> list[Decision]:
        """The decisions about all members, the same on each."""
        candidates = [standing.candidate for standing in standings]
        if not any(candidate.is_sound for candidate in candidates):
            raise DivergenceError(
                f"at iteration {number} no member of the population has a finite fitness and "
                "finite losses; a smaller --ppo.learning-rate or narrower bounds may help"
            )
        values = [standing.facts.values for standing in standings]
        if number < self._config.population_warm_up or number >= self._iterations:
            return [Decision(i, "none", mine) for i, mine in enumerate(values)]
        return evolve(
            candidates,
            values,
            self._hyper_parameters,
            selection_of(self._config),
            mutations_of(self._config),
            np.random.default_rng([self._config.seed, number]),
        )

    def _hand_over(self, decisions: list[Decision]) -> bytes | None:
        """Send this member to those that copy it; the state of the one that it copies, if any."""
        firsts = self._firsts
        assert firsts is not None
        own, received = None, None
        for i, decision in enumerate(decisions):
            if decision.parent == i:
                continue
            if decision.parent == firsts.rank:
                own = own or self._member.handed_over()
                firsts.send_object(own, to=i)
            elif i == firsts.rank:
                received = firsts.recv_object(decision.parent)
        return received

    def _keep_best(self, number: int, winner: int, score: float) -> None:
        """Let rank 0 write the fittest policy, if none was as fit before."""
        firsts = self._firsts
        assert firsts is not None
        if score <= self._mine.best:
            return
        self._mine.best = score
        networks = packed(copied_to_host(self._trainer.ppo.save()))
        mine = networks, self._mine, self._trainer.env_steps
        found = firsts.gather_object(mine if winner == firsts.rank else None)
        if self._records is not None and found is not None:
            networks, member, env_steps = found[winner]
            config = self._member.config(member)
            infos = {**checkpoint_infos(config, env_steps), "member": winner}
            infos[self._config.population_fitness] = self._mine.best
            try:
                self._records.save_best(config, number, unpacked(networks), infos)
            except OSError as error:  # a full disk is no reason for a training to end
                self._context.console.say(f"warning: best.pt cannot be written: {error.strerror}")

    def _record(
        self, number: int, winner: int, standings: list[Standing], decisions: list[Decision]
    ) -> None:
        """Write and show an exchange, on rank 0."""
        assert self._records is not None
        lines = describe(standings, decisions)
        scores = [s.candidate.score for s in standings if s.candidate.is_sound]
        replaced = sum(decision.parent != i for i, decision in enumerate(decisions))
        metrics = {
            "Population/best_score": max(scores),
            "Population/mean_score": fmean(scores),
            "Population/replaced": float(replaced),
        }
        steps = self._trainer.env_steps * len(standings)
        self._records.write_exchange((number, steps, self._mine.wall_s, metrics), lines)
        say = self._context.console.say
        say(f"exchange after iteration {number}:")
        say(table(lines, fitness_of(self._config)[0]))
        if number >= self._iterations:
            flags = (f"--{name} {value:.6g}" for name, value in lines[winner]["values"].items())
            say(f"the winner is member {winner}: {' '.join(flags)}")

    def _hand_in(self) -> None:
        """Give rank 0 the metrics and warnings since the last time."""
        if self._firsts is None:
            return
        everyone = self._firsts.gather_object((self._rows, self._warnings))
        self._rows, self._warnings = [], []
        if self._records is not None and everyone is not None:
            self._records.write([rows for rows, _ in everyone])
            for i, (_, warnings) in enumerate(everyone):
                for warning in warnings:
                    self._context.console.say(f"warning: member {i}: {warning}")

    def _save(self) -> None:
        """Have the state of all members written; all ranks of all members call it together."""
        trainer, rank, firsts = self._trainer, self._context.rank, self._firsts
        content = training_state(trainer, rank, ())
        if firsts is None:
            return
        assert content is not None
        content["member"] = asdict(self._mine)
        written = trainer.iteration - len(self._mine.held)
        mine = packed(content), trainer.iteration, trainer.env_steps, written
        everyone = firsts.gather_object(mine)
        if self._records is None or self._writer is None or everyone is None:
            return
        contents, iterations, steps, written_of_all = zip(*everyone, strict=True)
        members = [torch.frombuffer(bytearray(c), dtype=torch.uint8) for c in contents]
        counts = {"iteration": min(iterations), "env_steps": sum(steps)}
        records = {**self._records.state(), "iterations": list(written_of_all)}
        self._writer.submit(
            {
                **self._constant,
                **counts,
                "steps": content["steps"],
                "trainer": counts,
                "learner": {},
                "features": {self.name: {"members": members, "records": records}},
                "ranks": [None] * len(self._context.shared.devices),
            }
        )

    def _write(self, content: dict[str, Any]) -> bool:
        """Write the state, in the thread; whether that succeeded."""
        assert self._records is not None
        try:
            self._records.sync()
            write_resume_state(self._context.run, content)
        except (OSError, RuntimeError) as failure:
            self.error = getattr(failure, "strerror", None) or str(failure).splitlines()[0]
        else:
            self.error = None
        return self.error is None

    def _show(self, iteration: Iteration) -> None:
        """Show the progress of the first member, and what cannot be written."""
        metrics, number = iteration.metrics, iteration.number
        seconds = time.perf_counter() - self._start
        left = seconds / (number - self._first) * (self._iterations - number)
        console, count = self._context.console, self._place.count
        console.show(
            Status(
                iteration=number,
                iterations=self._iterations,
                env_steps=iteration.env_steps * count,
                metrics={**metrics, SPEED: metrics[SPEED] * count},
                max_episode_length=self._trainer.env.max_episode_length,
                seconds_left=0.0 if iteration.is_last else left,
            )
        )
        assert self._records is not None
        error = self.error or self._records.error
        if error != self._shown_error:
            self._shown_error = error
            text = "the population is written again, without a gap"
            if error is not None:
                text = f"warning: the population cannot be written, trying again: {error}"
            console.say(text)
