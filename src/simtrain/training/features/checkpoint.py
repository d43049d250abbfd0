"""Checkpoints: the policy in ``model_<iteration>.pt``, the whole training state in ``resume.pt``.

A save copies every tensor to the host once, in the training thread; a thread packs and writes the
copies. ``resume.pt`` holds what is the same on all ranks once, rank 0's environments and random
generators, and those of other ranks as bytes that they packed themselves. A resumed run continues
bit for bit on the CPU.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
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
LAST_SECONDS = 300.0
"""How long the end of a population waits for a member to write the state before."""


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
        self._writer: NewestItemWorker[tuple[TrainConfig, dict[str, Any]]] | None = None
        self._messages: deque[str] = deque()
        self._warned: set[str] = set()
        self._recorded: Path | None = None
        self.saved: Path | None = None
        """The last checkpoint that was written."""
        self.error: str | None = None
        """Why the last save could not be written, or None if it was."""

    def restore(self) -> None:
        """Restore a saved state, in place, before features are entered; all ranks call it.

        Ranks that the saved run did not have start new episodes.

        Raises:
            ConfigError: the state does not fit.
        """
        resumption, rank = self._context.resumption, self._context.rank
        if resumption is None:
            return
        content = None
        if rank.is_main:
            content = read_resume_state(resumption.file)
            if self._context.member is not None and resumption.file.name == PREVIOUS:
                # Or the next save would drop the state that all members have.
                resumption.file.replace(resumption.file.with_name(NEWEST))
        put_back(content, self._trainer, rank, self._features, resumption)

    def __enter__(self) -> Self:
        if self._context.rank.is_main:
            self._constant = constant_content(self._context, self._trainer)
            remove_leftovers(self._context.run)
            self._writer = NewestItemWorker(self._write, "saver", retry_seconds=RETRY_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._trainer.timer.begin("saving")
        if self._writer is not None:
            self._writer.close()
            self._report()

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
            content = self._gather()
            if self._writer is not None and content is not None:
                dropped = self._writer.submit((trainer.config, content))
                if dropped is not None and self.error is None:
                    name = model_path(context.run, dropped[1]["iteration"]).name
                    self._messages.append(
                        f"warning: {name} is left out, for the disk is slower than "
                        "--save-interval asks for"
                    )
        self._report()

    def _is_ready(self, iteration: Iteration) -> bool:
        """Whether all members of a population have written their states before.

        Then there is always a state that all of them have. All ranks of all members call it
        together; a training by itself is always ready.
        """
        context, is_ready = self._context, True
        if context.member is not None:
            if self._writer is not None and context.member.leaders is not None:
                seconds = LAST_SECONDS if iteration.is_last else 0.0
                is_written = self._writer.wait(lambda: self.error is not None, seconds)
                is_ready = not context.member.leaders.any(not is_written)[0]
            is_ready = context.rank.broadcast_object(is_ready)
            if not is_ready and context.rank.is_main:
                name = model_path(context.run, iteration.number).name
                self._messages.append(
                    f"warning: {name} is left out, for not all members have written the one before"
                )
        return is_ready

    def _gather(self) -> dict[str, Any] | None:
        """Copies of the whole training state on rank 0, None on others. Waits for the device."""
        trainer, rank = self._trainer, self._context.rank
        for change in trainer.env.undeclared_changes():
            if rank.is_main and change not in self._warned:
                self._warned.add(change)
                self._messages.append(f"warning: a resumed run would not be exact: {change}")
        return training_state(trainer, rank, self._features)

    def _write(self, saved: tuple[TrainConfig, dict[str, Any]]) -> bool:
        """Write checkpoint and state, in the thread; whether that succeeded."""
        trained, content = saved
        run, config = self._context.run, self._context.config
        path = model_path(run, content["iteration"])
        learner = content["learner"]
        networks = {key: learner[key] for key in learner if key.endswith("_state_dict")}
        infos = checkpoint_infos(trained, content["env_steps"])
        error = None
        try:
            self._recorder.sync()
            save_policy(self._context, path, trained, content["iteration"], networks, infos)
            write_resume_state(run, {**self._constant, **content})
            keep = config.keep_checkpoints
            for old in model_paths(run)[:-keep] if keep else []:
                old.unlink(missing_ok=True)
                old.with_suffix(".yaml").unlink(missing_ok=True)
        except (OSError, RuntimeError) as failure:
            error = getattr(failure, "strerror", None) or str(failure).splitlines()[0]
            if self.error is None:
                self._messages.append(
                    f"warning: {path.name} cannot be saved, trying again: {error} ({run})"
                )
        else:
            self.saved = path
            if self.error is not None:
                self._messages.append(f"{path.name} is saved, the disk can be written again")
        self.error = error
        return error is None

    def _report(self) -> None:
        """Show the messages of the thread, and give new checkpoints to the recorder."""
        while self._messages:
            self._context.console.say(self._messages.popleft())
        saved = self.saved
        if saved is not None and saved != self._recorded:
            self._recorded = saved
            self._recorder.save_checkpoint(saved)


def training_state(
    trainer: Trainer, rank: Rank, features: Sequence[Feature]
) -> dict[str, Any] | None:
    """Copies of the whole training state on rank 0, None on others. Waits for the device."""
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
        "features": {feature.name: feature.state() for feature in features},
        "ranks": [own, *others],
    }


def put_back(
    content: dict[str, Any] | None,
    trainer: Trainer,
    rank: Rank,
    features: Sequence[Feature],
    resumption: Resumption,
) -> None:
    """Continue from a `training_state`, which rank 0 gives, in place; all ranks call it together.

    Raises:
        ConfigError: the state does not fit.
    """
    parts = None
    if content is not None:
        own = content["ranks"] if resumption.same_environments else []
        shared = {name: content[name] for name in ("trainer", "learner", "features", "steps")}
        if not own:  # means are over the new episodes alone
            shared["trainer"] = {**shared["trainer"], "episodes": []}
        parts = [(shared, own[i] if i < len(own) else None) for i in range(rank.world_size)]
    shared, rank_state = rank.scatter_object(parts)
    changed = set(resumption.changed)
    rates = {"--ppo.learning-rate", "--distillation.learning-rate"}
    with damage_as_config_error(f"{resumption.file} cannot be resumed"):
        for feature in features:  # a member's networks get their sizes, first
            if feature.name in shared["features"]:
                feature.set_state(shared["features"][feature.name])
        trainer.set_state(shared["trainer"])
        trainer.ppo.set_state(
            shared["learner"],
            optimizer="--ppo.optimizer" not in changed,
            learning_rate=changed.isdisjoint(rates),
        )
        if rank_state is None:
            # Curricula go by how far training is.
            trainer.env.steps.fill_(shared["steps"])
            return
        if isinstance(rank_state, Tensor):
            rank_state = unpacked(rank_state.numpy().tobytes())
        trainer.set_rank_state(rank_state)


def save_policy(
    context: RunContext,
    path: Path,
    config: TrainConfig,
    iteration: int,
    networks: dict[str, Any],
    infos: dict[str, Any],
) -> None:
    """Write a checkpoint; OSError if that is impossible.

    That of a member of a population, whose `config` changes, gets it in a file beside it.
    """
    if context.member is not None:
        devices = list(context.shared.devices)
        write_config(path.with_suffix(".yaml"), resolved(config), devices)
    save_model(path, iteration, networks, infos)


def constant_content(context: RunContext, trainer: Trainer) -> dict[str, Any]:
    """What every saved state of a run has in common: what it was trained with."""
    config, rank = context.config, context.rank
    engine = choose_engine(config.engine, rank.device).name
    return {
        "format": FORMAT,
        "task": config.task,
        "config": {**resolved(config), "engine": engine},
        "default": resolved(default_config(config.task, quiet=True)),
        "model": model_digest(trainer.env.model),
        "threads": rank.threads,
        "versions": versions(),
    }


def check_same_tensors(tensors: Iterable[Tensor], rank: Rank, iteration: int) -> None:
    """Compare a checksum of `tensors` over all ranks; all ranks call it together.

    Raises:
        RankError: they differ; names the ranks that are not as most others.
    """
    if rank.world_size == 1:
        return
    own = checksum(tensors)
    sums = [tuple(row) for row in rank.all_gather([own >> 32, own & 0xFFFFFFFF]).tolist()]
    usual = Counter(sums).most_common(1)[0][0]
    others = [str(i) for i, checksums in enumerate(sums) if checksums != usual]
    if others:
        raise RankError(
            f"after iteration {iteration} the parameters of rank {' and '.join(others)} are not "
            f"those of rank {sums.index(usual)}; ranks must stay equal, bit for bit. Something "
            "changed them on one rank alone: a faulty device or interconnect, or a task that "
            "writes to the networks"
        )


def checksum(tensors: Iterable[Tensor]) -> int:
    """A number of 64 bits that any changed bit of any tensor changes.

    A sum of 32-bit words with odd weights, modulo 2^64, computed on the tensors' device.
    """
    words = torch.cat([t.detach().contiguous().flatten().view(torch.int32) for t in tensors])
    weights = 2 * torch.arange(len(words), device=words.device) + 1
    return int((words.long() * weights).sum()) & 0xFFFFFFFFFFFFFFFF
