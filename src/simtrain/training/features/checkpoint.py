"""Checkpoints: the policy in ``model_<iteration>.pt``, the whole training state in ``resume.pt``.

A save copies every tensor to the host once, in the training thread; a thread packs and writes the
copies. ``resume.pt`` holds what is the same on all ranks once, rank 0's environments and random
generators, and those of other ranks as bytes that they packed themselves. A resumed run continues
bit for bit on the CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.config.tree import checkpoint_infos, resolved
from simtrain.env.model import model_digest
from simtrain.errors import RankError
from simtrain.files import damage_as_config_error, remove_leftovers
from simtrain.launch.rank import Rank
from simtrain.run.checkpoint import (
    BEST,
    copied_to_host,
    model_path,
    model_paths,
    packed,
    save_model,
    unpacked,
)
from simtrain.run.directory import versions, write_config
from simtrain.sim import choose_engine
from simtrain.training.context import Resumption, RunContext
from simtrain.training.features import Feature, Iteration
from simtrain.training.features.background import NewestItemWorker
from simtrain.training.resumption import (
    FORMAT,
    NEWEST,
    PREVIOUS,
    read_resume_state,
    write_resume_state,
)

if TYPE_CHECKING:
    from simtrain.training.features.recorder import Recorder
    from simtrain.training.loop import Trainer

RETRY_SECONDS = 10.0
"""Pause after a save that failed, before it is tried again."""
Save = tuple[TrainConfig, dict[str, Any]]
"""The configuration that was trained with, and the state."""
LAST_SECONDS = 300.0
"""How long the end of a population waits for a member to write the state before."""


@dataclass(frozen=True)
class PolicySnapshot:
    """A policy at an iteration of its training."""

    iteration: int
    env_steps: int
    config: TrainConfig
    """The configuration that it was trained with; a population's members change theirs."""
    networks: dict[str, Any]
    """``save()`` of its algorithm, or a copy of it."""


class Checkpoint(Feature):
    """Saves every ``--save-interval`` iterations and at the end; rank 0 writes for all."""

    def __init__(
        self, context: RunContext, trainer: Trainer, recorder: Recorder, features: Sequence[Feature]
    ) -> None:
        """Prepare; `features` are those whose states are saved."""
        self._context = context
        self._trainer = trainer
        self._features = features
        self._recorder = recorder
        self._writer: NewestItemWorker[Save] | None = None
        self._warned: set[str] = set()
        self.saved: Path | None = None
        """The last checkpoint that was written."""
        self.error: str | None = None
        """Why the last save could not be written, or None if it was."""

    def __enter__(self) -> Self:
        context, config = self._context, self._context.config
        if context.rank.is_main:
            engine = choose_engine(config.engine, context.rank.device).name
            self._constant = {
                "format": FORMAT,
                "task": config.task,
                "config": {**resolved(config), "engine": engine},
                "default": resolved(default_config(config.task, quiet=True)),
                "model": model_digest(self._trainer.env.model),
                "threads": context.rank.threads,
                "versions": versions(),
            }
            remove_leftovers(context.run)
            self._writer = NewestItemWorker(self._write, "saver")
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._trainer.timer.begin("saving")
        if self._writer is not None:
            self._writer.close()

    def after_iteration(self, iteration: Iteration) -> None:
        """See `Feature.after_iteration`.

        Raises:
            RankError: ranks no longer have the same parameters.
        """
        context, trainer = self._context, self._trainer
        due = iteration.number % context.config.save_interval == 0 or iteration.is_last
        if due and self._is_ready(iteration):
            trainer.timer.begin("saving")
            check_same_tensors(trainer.ppo.tensors(), context.rank, iteration.number)
            content = self._state()
            if self._writer is not None and content is not None:
                dropped = self._writer.submit((trainer.config, content))
                if dropped is not None and self.error is None:
                    reason = "the disk is slower than --save-interval asks for"
                    self._say_left_out(dropped[1]["iteration"], reason)

    def _is_ready(self, iteration: Iteration) -> bool:
        """Whether all members of a population have written their states before.

        Then there is always a state that all of them have. All ranks of all members call it
        together; a training by itself is always ready.
        """
        member, is_ready = self._context.member, True
        if member is None:
            return True
        if member.leaders is not None and self._writer is not None:
            seconds = LAST_SECONDS if iteration.is_last else 0.0
            is_written = self._writer.wait(lambda: self.error is not None, seconds)
            is_ready = not member.leaders.any(not is_written)[0]
            if not is_ready:
                reason = "not all members have written the one before"
                self._say_left_out(iteration.number, reason)
        return bool(self._context.rank.broadcast_object(is_ready))

    def _say_left_out(self, iteration: int, reason: str) -> None:
        name = model_path(self._context.run, iteration).name
        self._context.console.say(f"warning: {name} is left out, for {reason}")

    def _state(self) -> dict[str, Any] | None:
        """Copies of the whole training state on rank 0, None on others. Waits for the device."""
        trainer, rank = self._trainer, self._context.rank
        for change in trainer.env.undeclared_changes():
            if rank.is_main and change not in self._warned:
                self._warned.add(change)
                text = f"warning: a resumed run would not be exact: {change}"
                self._context.console.say(text)
        own = trainer.rank_state()
        ranks = rank.gather_object(None if rank.is_main else packed(own))
        if ranks is None:
            return None
        others = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in ranks[1:]]
        return {
            "iteration": trainer.iteration,
            "env_steps": trainer.env_steps,
            "steps": int(trainer.env.steps),
            "trainer": trainer.state(),
            "learner": copied_to_host(trainer.ppo.state()),
            "features": {type(feature).__name__: feature.state() for feature in self._features},
            "ranks": [own, *others],
        }

    def restore(self) -> None:
        """Continue from a saved state, in place, before features are entered; all ranks call it.

        Ranks that the saved run did not have start new episodes.

        Raises:
            ConfigError: the state does not fit.
        """
        resumption, rank = self._context.resumption, self._context.rank
        if resumption is None:
            return
        parts = None
        if rank.is_main:
            content = read_resume_state(resumption.file)
            if self._context.member is not None and resumption.file.name == PREVIOUS:
                # Or the next save would drop the state that all members have.
                resumption.file.replace(resumption.file.with_name(NEWEST))
            own = content["ranks"] if resumption.same_environments else []
            shared = {name: content[name] for name in ("trainer", "learner", "features", "steps")}
            if not own:  # means are over the new episodes alone
                shared["trainer"] = {**shared["trainer"], "episodes": []}
            parts = [(shared, own[i] if i < len(own) else None) for i in range(rank.world_size)]
        shared, rank_state = rank.scatter_object(parts)
        with damage_as_config_error(f"{resumption.file} cannot be resumed"):
            self._set_state(shared, rank_state, resumption)

    def _set_state(self, shared: dict[str, Any], rank_state: Any, resumption: Resumption) -> None:
        """Continue from what all ranks share, and from this rank's own state if it has one."""
        trainer, changed = self._trainer, set(resumption.changed)
        for feature in self._features:  # a member's networks get their sizes, first
            if (state := shared["features"].get(type(feature).__name__)) is not None:
                feature.set_state(state)
        trainer.set_state(shared["trainer"])
        trainer.ppo.set_state(
            shared["learner"],
            optimizer="--ppo.optimizer" not in changed,
            learning_rate=changed.isdisjoint(
                ("--ppo.learning-rate", "--distillation.learning-rate")
            ),
        )
        if rank_state is None:
            trainer.env.steps.fill_(shared["steps"])  # curricula go by how far training is
            return
        if isinstance(rank_state, Tensor):
            rank_state = unpacked(rank_state.numpy().tobytes())
        trainer.set_rank_state(rank_state)

    def _write(self, saves: NewestItemWorker[Save]) -> None:
        """Write checkpoints and states, in the thread; where that fails, again after a pause."""
        for config, content in saves:
            while not self._is_written(config, content) and saves.pause(RETRY_SECONDS):
                pass

    def _is_written(self, config: TrainConfig, content: dict[str, Any]) -> bool:
        """Write a checkpoint and a state; whether that succeeded."""
        context, learner = self._context, content["learner"]
        networks = {key: learner[key] for key in learner if key.endswith("_state_dict")}
        policy = PolicySnapshot(content["iteration"], content["env_steps"], config, networks)
        path, keep = model_path(context.run, policy.iteration), context.config.keep_checkpoints
        try:
            self._recorder.records.metrics.sync()
            save_policy(context, path, policy)
            write_resume_state(context.run, {**self._constant, **content})
            for old in model_paths(context.run)[:-keep] if keep else []:
                old.unlink(missing_ok=True)
                old.with_suffix(".yaml").unlink(missing_ok=True)
        except OSError as error:
            if self.error is None:
                context.console.say(
                    f"warning: {path.name} cannot be saved, trying again: {error.strerror} "
                    f"({context.run})"
                )
            self.error = error.strerror
            return False
        if self.error is not None:
            context.console.say(f"{path.name} is saved, the disk can be written again")
        self.saved, self.error = path, None
        self._recorder.records.save_checkpoint(path)
        return True


def save_policy(context: RunContext, path: Path, policy: PolicySnapshot, **infos: Any) -> None:
    """Write a checkpoint with `infos` and those that all have; OSError if that is impossible.

    That of a member of a population, whose configuration changes, gets it in a file beside it.
    """
    config = policy.config
    if context.member is not None:
        devices = list(context.shared.devices)
        write_config(path.with_suffix(".yaml"), resolved(config), devices)
    infos = checkpoint_infos(config, policy.env_steps) | infos
    save_model(path, policy.iteration, policy.networks, infos)


def save_best(context: RunContext, run: Path, policy: PolicySnapshot, **infos: Any) -> bool:
    """Write ``best.pt`` into `run`, see `save_policy`; whether that succeeded, else with a warning.

    A full disk is no reason for a training to end.
    """
    try:
        save_policy(context, run / BEST, policy, **infos)
    except OSError as error:
        context.console.say(f"warning: {BEST} cannot be written: {error.strerror}")
        return False
    return True


def check_same_tensors(tensors: Iterable[Tensor], rank: Rank, iteration: int) -> None:
    """Compare a checksum of `tensors` over all ranks; all ranks call it together.

    It is a sum of 32-bit words with odd weights modulo 2^64, so that any changed bit changes it.

    Raises:
        RankError: they differ; names the ranks that are not as most others.
    """
    if rank.world_size == 1:
        return
    words = torch.cat([t.detach().contiguous().flatten().view(torch.int32) for t in tensors])
    weights = 2 * torch.arange(len(words), device=words.device) + 1
    own = int((words.long() * weights).sum()) & 0xFFFFFFFFFFFFFFFF
    sums = [tuple(row) for row in rank.all_gather([own >> 32, own & 0xFFFFFFFF]).tolist()]
    usual = Counter(sums).most_common(1)[0][0]
    others = [str(i) for i, checksum in enumerate(sums) if checksum != usual]
    if others:
        raise RankError(
            f"after iteration {iteration} the parameters of rank {' and '.join(others)} are not "
            f"those of rank {sums.index(usual)}; ranks must stay equal, bit for bit. Something "
            "changed them on one rank alone: a faulty device or interconnect, or a task that "
            "writes to the networks"
        )
