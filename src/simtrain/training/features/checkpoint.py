"""Checkpoints: the policy in ``model_<iteration>.pt``, the whole training state in ``resume.pt``.

A save copies every tensor to the host once, in the training thread; another thread writes the
copies. ``resume.pt`` contains the state that is the same on all ranks, and the environments and
random generators of rank 0. Other ranks write theirs to files such as ``resume.rank1.pt``. No rank
saves again before all have written their parts, and each keeps its previous part, so a complete
state always exists. A resumed run continues bit for bit on the CPU.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
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
from simtrain.run.checkpoint import BEST, copied_to_host, model_path, model_paths, save_model
from simtrain.run.directory import versions, write_config
from simtrain.training.context import RunContext
from simtrain.training.features import Feature, Iteration
from simtrain.training.resumption import (
    NEWEST,
    find_part,
    part_of,
    read_resume_state,
    write_resume_state,
)

if TYPE_CHECKING:
    from simtrain.training.features.recorder import Recorder
    from simtrain.training.loop import Trainer

RETRY_SECONDS = 10.0
"""Pause before a failed save is repeated."""
SECONDS_APART = {"cpu": 0.0, "cuda": 30.0}
"""Minimum time between saves without ``--save-interval``, by device: GPUs have short iterations."""
LAST_SECONDS = 300.0
"""Time that the end of training waits for other ranks to write the previous state."""
_LEARNING_RATES = {"--ppo.learning-rate", "--distillation.learning-rate"}
"""Flags that replace the saved learning rate if they change."""


@dataclass(frozen=True)
class PolicySnapshot:
    """A policy at an iteration of its training."""

    iteration: int
    env_steps: int
    config: TrainConfig
    """The configuration of the training; members of a population change theirs."""
    networks: dict[str, Any]
    """``save()`` of its algorithm, or a copy of it."""


class Checkpoint(Feature):
    """Saves every ``--save-interval`` iterations and at the end; each rank writes its own part."""

    def __init__(
        self, context: RunContext, trainer: Trainer, recorder: Recorder, features: Sequence[Feature]
    ) -> None:
        """Prepare; `features` are those whose states are saved."""
        self._context = context
        self._trainer = trainer
        self._features = features
        self._recorder = recorder
        self._constant: dict[str, Any] = {}
        self._warned: set[str] = set()
        self._submitted = -math.inf  # when a save was last begun, in seconds
        self._newest = 0  # the iteration of the newest save
        self._saving: Future[None] | None = None  # what writes it
        self._is_closing = False
        self.saved: Path | None = None
        """The last checkpoint that was written."""
        self.error: str | None = None
        """Why the last save could not be written, or None if it was."""

    def __enter__(self) -> Self:
        context, config = self._context, self._context.config
        if context.rank.is_main:
            self._constant = {
                "task": config.task,
                "config": resolved(config),
                "default": resolved(default_config(config.task, quiet=True)),
                "model": model_digest(self._trainer.env.model),
                "threads": context.rank.threads,
                "versions": versions(),
            }
            remove_leftovers(context.run)
        self._saver = ThreadPoolExecutor(1, "saver")
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._trainer.timer.begin("saving")
        self._is_closing = True
        self._saver.shutdown()
        if self._saving is not None:
            self._saving.result()

    def after_iteration(self, iteration: Iteration) -> None:
        """See `Feature.after_iteration`.

        Raises:
            RankError: ranks no longer have the same parameters.
        """
        context, trainer = self._context, self._trainer
        due = context.config.saves_at(iteration.number) or iteration.is_last
        if due and self._is_ready(iteration):
            trainer.timer.begin("saving")
            self._submitted = time.monotonic()
            checksum = check_same_tensors(trainer.ppo.tensors(), context.rank, iteration.number)
            content = self._state([trainer.iteration, checksum])
            before, self._newest = self._newest, trainer.iteration
            if self._saving is not None:
                if self._saving.done():
                    self._saving.result()
                elif self._saving.cancel() and self.error is None:  # it waited for one before it
                    reason = "the disk is slower than --save-interval asks for"
                    self._say_left_out(before, reason)
            self._saving = self._saver.submit(self._write, trainer.config, content)

    def _is_ready(self, iteration: Iteration) -> bool:
        """Whether a save is due and all ranks of all members have written the previous one.

        So a state that all of them have always exists. They call it together.
        """
        rank, apart = self._context.rank, 0.0
        everyone = rank.of_job or rank
        if self._context.config.save_interval is None and not iteration.is_last:
            apart = SECONDS_APART[rank.device.type]
        is_early = time.monotonic() < self._submitted + apart
        if everyone.world_size == 1:
            return not is_early
        seconds = LAST_SECONDS if iteration.is_last else 0.0
        is_early, is_late = everyone.any(is_early, not self.has_written(seconds))
        if is_late and not is_early and rank.is_main:
            self._say_left_out(iteration.number, "not all ranks have written the one before")
        return not (is_early or is_late)

    def has_written(self, seconds: float) -> bool:
        """Whether all saves are written within `seconds`, and none has to be repeated."""
        deadline = time.monotonic() + seconds
        while self._saving is not None and not self._saving.done():
            if self.error is not None or time.monotonic() >= deadline:
                return False
            wait([self._saving], 0.2)
        return True

    def _say_left_out(self, iteration: int, reason: str) -> None:
        name = model_path(self._context.run, iteration).name
        self._context.console.say(f"warning: {name} is left out: {reason}")

    def _state(self, save: list[int]) -> dict[str, Any]:
        """Copies of the training state, of which ranks other than 0 copy only their own part.

        `save` marks it and is the same on all ranks. Waits for the device.
        """
        trainer, rank = self._trainer, self._context.rank
        own = trainer.rank_state()
        if not rank.is_main:
            return {"save": save, "state": own}
        for change in trainer.env.undeclared_changes():
            if change not in self._warned:
                self._warned.add(change)
                text = f"warning: a resumed run would not be exact: {change}"
                self._context.console.say(text)
        return {
            "save": save,
            "iteration": trainer.iteration,
            "env_steps": trainer.env_steps,
            "steps": int(trainer.env.steps),
            "trainer": trainer.state(),
            "learner": copied_to_host(trainer.ppo.state()),
            "features": {type(feature).__name__: feature.state() for feature in self._features},
            "world_size": rank.world_size,
            "ranks": [own],
        }

    def restore(self) -> None:
        """Continue from a saved state, in place, before features are entered; all ranks call it.

        Its files are renamed to the newest ones, or the next save would replace them. Ranks that
        the saved run did not have start new episodes.

        Raises:
            ConfigError: the state does not fit.
        """
        resumption, rank = self._context.resumption, self._context.rank
        if resumption is None:
            return
        shared, own = {}, None
        if rank.is_main:
            shared = read_resume_state(resumption.file)
            resumption.file.replace(resumption.file.with_name(NEWEST))
            (own,) = shared.pop("ranks")
            if not resumption.same_environments:  # means are over the new episodes alone
                shared["trainer"] = {**shared["trainer"], "episodes": []}
        shared = rank.broadcast_object(shared)
        if 0 < rank.rank < shared["world_size"]:
            run = resumption.file.parent
            file, own = find_part(run, rank.rank, shared["save"])
            file.replace(part_of(run / NEWEST, rank.rank))
        trainer = self._trainer
        with damage_as_config_error(f"{resumption.file} cannot be resumed"):
            for feature in self._features:  # a member's networks get their sizes, first
                if (state := shared["features"].get(type(feature).__name__)) is not None:
                    feature.set_state(state)
            trainer.set_state(shared["trainer"])
            trainer.ppo.set_state(
                shared["learner"],
                optimizer="--ppo.optimizer" not in resumption.changed,
                learning_rate=_LEARNING_RATES.isdisjoint(resumption.changed),
            )
            if own is not None and resumption.same_environments:
                trainer.set_rank_state(own)
            else:
                trainer.env.steps.fill_(shared["steps"])  # curricula go by how far training is

    def _write(self, config: TrainConfig, content: dict[str, Any]) -> None:
        """Write a save, in the thread; after a failure again, unless a newer save waits."""
        while not self._is_written(config, content) and not self._is_closing:
            end = time.monotonic() + RETRY_SECONDS
            while time.monotonic() < end and not self._is_closing:
                if self._newest != content["save"][0]:
                    return
                time.sleep(0.01)

    def _is_written(self, config: TrainConfig, content: dict[str, Any]) -> bool:
        """Write this rank's files of a save; whether this succeeded."""
        run, rank, say = self._context.run, self._context.rank, self._context.console.say
        path = part_of(run / NEWEST, rank.rank)
        try:
            if rank.is_main:
                path, learner = model_path(run, content["iteration"]), content["learner"]
                networks = {key: learner[key] for key in learner if key.endswith("_state_dict")}
                counts = content["iteration"], content["env_steps"]
                self._recorder.records.metrics.sync()
                save_policy(self._context, path, PolicySnapshot(*counts, config, networks))
            write_resume_state(run, {**self._constant, **content}, rank.rank)
        except OSError as error:
            if self.error is None:
                text = f"{path.name} cannot be saved, trying again: {error.strerror}"
                say(f"warning: {text} ({run})")
            self.error = error.strerror
            return False
        if self.error is not None:
            say(f"{path.name} is saved, the disk can be written again")
        if rank.is_main:
            with suppress(OSError):  # a second write would drop the state before
                self._remove_old()
            self._recorder.records.save_checkpoint(path)
        self.saved, self.error = path, None
        return True

    def _remove_old(self) -> None:
        """Remove old checkpoints (``--keep-checkpoints``) and parts of absent ranks."""
        run, keep = self._context.run, self._context.config.keep_checkpoints
        for old in model_paths(run)[:-keep] if keep else []:
            old.unlink(missing_ok=True)
            old.with_suffix(".yaml").unlink(missing_ok=True)
        # Both states that are there now are of this process, and of its number of ranks.
        for part in run.glob("resume*.rank*.pt") if self.saved is not None else ():
            if int(part.stem.rpartition(".rank")[2]) >= self._context.rank.world_size:
                part.unlink(missing_ok=True)


def save_policy(context: RunContext, path: Path, policy: PolicySnapshot, **infos: Any) -> None:
    """Write a checkpoint with `infos` and the infos of all checkpoints; OSError if this fails.

    The configuration of a member of a population changes, so it is written to a file next to it.
    """
    config = policy.config
    if context.member is not None:
        devices = list(context.shared.devices)
        write_config(path.with_suffix(".yaml"), resolved(config), devices)
    infos = checkpoint_infos(config, policy.env_steps) | infos
    save_model(path, policy.iteration, policy.networks, infos)


def save_best(context: RunContext, run: Path, policy: PolicySnapshot, **infos: Any) -> bool:
    """Write ``best.pt`` into `run`, see `save_policy`; whether this succeeded.

    A full disk does not end a training: a failure is a warning.
    """
    try:
        save_policy(context, run / BEST, policy, **infos)
    except OSError as error:
        context.console.say(f"warning: {BEST} cannot be written: {error.strerror}")
        return False
    return True


def check_same_tensors(tensors: Iterable[Tensor], rank: Rank, iteration: int) -> int:
    """Compare a checksum of `tensors` over all ranks; all ranks call it together.

    Returns the checksum, 0 for one rank. It is a sum of 32-bit words with odd weights modulo 2^64,
    so that any changed bit changes it.

    Raises:
        RankError: the checksums differ; names the ranks that differ from the majority.
    """
    if rank.world_size == 1:
        return 0
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
    return own
