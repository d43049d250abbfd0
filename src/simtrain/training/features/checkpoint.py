"""Checkpoints: the policy in ``model_<iteration>.pt``, the whole training state in ``resume.pt``.

A save copies every tensor to the host once, in the training thread; a thread packs and writes the
copies. ``resume.pt`` holds what is the same on all ranks once, rank 0's environments and random
generators, and those of other ranks as bytes that they packed themselves. A resumed run continues
bit for bit on the CPU.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import mujoco
import torch
from torch import Tensor

from simtrain.config import TrainConfig
from simtrain.config_tree import (
    check_types,
    checkpoint_infos,
    continued,
    differences,
    new_settings,
    resolved,
)
from simtrain.env.model import model_digest
from simtrain.errors import ConfigError, RankError
from simtrain.files import damage_as_config_error
from simtrain.launch.plan import Job
from simtrain.launch.rank import Rank, share_of_cores
from simtrain.registry import default_config
from simtrain.run.checkpoint import (
    check_kinds,
    copied_to_host,
    model_path,
    model_paths,
    packed,
    read_tensors,
    save_model,
    unpacked,
    write_tensors,
)
from simtrain.run.directory import remove_leftovers, versions
from simtrain.sim import choose_engine
from simtrain.training.background import NewestItemWorker
from simtrain.training.context import Resumption, RunContext
from simtrain.training.features import Feature, Iteration

if TYPE_CHECKING:
    from simtrain.training.features.recorder import Recorder
    from simtrain.training.loop import Trainer

NEWEST, PREVIOUS = "resume.pt", "resume.previous.pt"
FORMAT = 2
"""Changes when a later simtrain could not continue what an earlier one saved."""
RETRY_SECONDS = 10.0
"""Pause after a save that failed, before it is tried again."""
_KINDS: dict[str, Any] = dict.fromkeys(("iteration", "env_steps", "steps", "threads"), int)
_KINDS |= dict.fromkeys(("task", "model"), str) | {"ranks": list, "versions": dict[str, str]}
_KINDS |= dict.fromkeys(("config", "default", "trainer", "learner", "features"), dict)
_ENVIRONMENT_FLAGS = ("--env", "--num-envs", "--engine", "--seed")


class Checkpoint(Feature):
    """Saves every ``--save-interval`` iterations and at the end; rank 0 writes for all."""

    def __init__(
        self, context: RunContext, trainer: Trainer, recorder: Recorder, features: Sequence[Feature]
    ) -> None:
        """Prepare; `features` are all that go along, and may be completed later."""
        self._context = context
        self._trainer = trainer
        self._features = features
        self._recorder = recorder
        self._writer: NewestItemWorker[dict[str, Any]] | None = None
        self._messages: deque[str] = deque()
        self._warned: set[str] = set()
        self._recorded: Path | None = None
        self.saved: Path | None = None
        """The last checkpoint that was written."""
        self.error: str | None = None
        """Why the last save could not be written, or None if it was."""

    def restore(self) -> None:
        """Put a saved state back, in place, before features are entered; all ranks call it.

        Ranks that the saved run did not have start new episodes.

        Raises:
            ConfigError: the state does not fit.
        """
        resumption, rank = self._context.shared.resumption, self._context.rank
        if resumption is None:
            return
        content = read_resume_state(resumption.file) if rank.is_main else None
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
        if iteration.number % context.config.save_interval == 0 or iteration.is_last:
            trainer.timer.begin("saving")
            check_same_tensors(trainer.ppo.tensors(), context.rank, iteration.number)
            content = self._gather()
            if self._writer is not None and content is not None:
                dropped = self._writer.submit(content)
                if dropped is not None and self.error is None:
                    name = model_path(context.run, dropped["iteration"]).name
                    self._messages.append(
                        f"warning: {name} is left out, for the disk is slower than "
                        "--save-interval asks for"
                    )
        self._report()

    def _gather(self) -> dict[str, Any] | None:
        """Copies of the whole training state on rank 0, None on others. Waits for the device."""
        trainer, rank = self._trainer, self._context.rank
        for change in trainer.env.undeclared_changes():
            if rank.is_main and change not in self._warned:
                self._warned.add(change)
                self._messages.append(f"warning: a resumed run would not be exact: {change}")
        return training_state(trainer, rank, self._features)

    def _write(self, content: dict[str, Any]) -> bool:
        """Write checkpoint and state, in the thread; whether that succeeded."""
        run, config = self._context.run, self._context.config
        path = model_path(run, content["iteration"])
        learner = content["learner"]
        networks = {key: learner[key] for key in learner if key.endswith("_state_dict")}
        infos = checkpoint_infos(config, content["env_steps"])
        error = None
        try:
            self._recorder.sync()
            save_model(path, content["iteration"], networks, infos)
            write_resume_state(run, {**self._constant, **content})
            keep = config.keep_checkpoints
            for old in model_paths(run)[:-keep] if keep else []:
                old.unlink(missing_ok=True)
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
        """Show what the thread has to say, and hand new checkpoints to the recorder."""
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
    ranks = rank.gather_objects(None if rank.is_main else packed(own))
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
        parts = [(shared, own[i] if i < len(own) else None) for i in range(rank.world_size)]
    shared, mine = rank.scatter_objects(parts)
    changed, rates = (
        set(resumption.changed),
        {"--ppo.learning-rate", "--distillation.learning-rate"},
    )
    with damage_as_config_error(f"{resumption.file} cannot be resumed"):
        trainer.set_state(shared["trainer"])
        trainer.ppo.set_state(
            shared["learner"],
            optimizer="--ppo.optimizer" not in changed,
            learning_rate=changed.isdisjoint(rates),
        )
        for feature in features:
            if feature.name in shared["features"]:
                feature.set_state(shared["features"][feature.name])
        if mine is None:
            # Curricula go by how far training is.
            trainer.env.steps.fill_(shared["steps"])
            return
        if isinstance(mine, Tensor):
            mine = unpacked(mine.numpy().tobytes())
        trainer.set_rank_state(mine)


def constant_content(context: RunContext, trainer: Trainer) -> dict[str, Any]:
    """What every saved state of a run has in common: what it was trained with."""
    config, rank = context.config, context.rank
    engine = choose_engine(config.engine, rank.device).name
    return {
        "format": FORMAT,
        "task": config.task,
        "config": {**resolved(config), "engine": engine},
        "default": resolved(default_config(config.task)),
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
    mine = checksum(tensors)
    sums = [tuple(row) for row in rank.all_gather([mine >> 32, mine & 0xFFFFFFFF]).tolist()]
    usual = Counter(sums).most_common(1)[0][0]
    others = [str(i) for i, each in enumerate(sums) if each != usual]
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


@dataclass(frozen=True)
class SavedRun:
    """A run that can be resumed."""

    path: Path
    """The run directory."""
    file: Path
    """Its newest state that is whole."""
    content: dict[str, Any]
    """The state."""
    warnings: tuple[str, ...] = ()
    """Newer states that are damaged, and newer runs that were passed over."""

    @property
    def iteration(self) -> int:
        """Iterations that were trained."""
        return int(self.content["iteration"])

    def configuration(self, default: TrainConfig) -> TrainConfig:
        """The run's configuration where no flags are given; `default` is that of its task now."""
        with damage_as_config_error(f"{self.file} does not fit the task as it is now"):
            config = continued(default, self.content["default"], self.content["config"])
            check_types(config)
        return config


def write_resume_state(run: Path, content: dict[str, Any]) -> None:
    """Write `content` as the newest state, whole or not at all; keeps the one before."""
    write_tensors(run / NEWEST, content, previous=run / PREVIOUS)


def read_resume_state(path: Path) -> dict[str, Any]:
    """Read what `write_resume_state` wrote; ConfigError if it is damaged or of another version."""
    content = read_tensors(path, "training state")
    if type(found := content.get("format")) is not int or found != FORMAT:
        raise ConfigError(f"{path} was saved by another version of simtrain")
    check_kinds(path, content, _KINDS)
    check_kinds(path, content["trainer"], dict.fromkeys(("iteration", "env_steps"), int))
    if not content["ranks"]:
        raise ConfigError(f"{path} is damaged: it has no ranks")
    return content


def can_resume(run: Path) -> bool:
    """Whether a run has a training state, whole or not."""
    return _saved_at(run) > 0.0


def _saved_at(run: Path) -> float:
    """When a run's newest state was saved, in seconds since 1970; 0 if it has none."""
    files = (run / name for name in (NEWEST, PREVIOUS))
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def open_run(run: Path) -> SavedRun:
    """The newest whole state of a run; ConfigError if there is none, which says what is there."""
    warnings: list[str] = []
    for file in (run / NEWEST, run / PREVIOUS):
        if file.exists():
            try:
                return SavedRun(run, file, read_resume_state(file), tuple(warnings))
            except ConfigError as error:
                warnings.append(str(error))
    if warnings:
        raise ConfigError(f"the run {run} cannot be resumed: {'; '.join(warnings)}")
    if not run.is_dir():
        raise ConfigError(f"there is no run {run} (--resume)")
    raise ConfigError(
        f"{run} cannot be resumed: it has no {NEWEST}, which is written with the first checkpoint"
    )


def find_run(name: str, log_root: Path, task: str) -> SavedRun:
    """The run that ``--resume`` names: a folder, or ``latest`` for the one that was saved last.

    Raises:
        ConfigError: there is no such run, it is of another task, or has no whole state.
    """
    if name != "latest":
        found = open_run(Path(name))
    else:
        runs = [path for path in (log_root / task).glob("*") if path.is_dir()]
        if not runs:
            raise ConfigError(f"there is no run of {task} below --log-root {log_root}")
        able = [run for run in runs if can_resume(run)]
        if not able:
            raise ConfigError(
                f"no run of {task} below --log-root {log_root} can be resumed: none has a {NEWEST}"
            )
        found = open_run(max(able, key=lambda run: (_saved_at(run), run)))
        newer = (run for run in runs if run.stat().st_mtime > _saved_at(found.path))
        told = (f"{run}, a newer run, has no {NEWEST} yet" for run in newer if not can_resume(run))
        found = replace(found, warnings=(*told, *found.warnings))
    its_task = found.content["task"]
    if its_task != task:
        raise ConfigError(f"{found.path} is a run of {its_task}: `uv run train {its_task} ...`")
    return found


def plan_resumption(
    saved: SavedRun, config: TrainConfig, job: Job, model: mujoco.MjModel
) -> tuple[Resumption, list[str]]:
    """How to resume a run with the configuration, ranks and model of now, and lines for people.

    Raises:
        ConfigError: the configuration has changed, without ``--resume-with-changes``.
    """
    engine = choose_engine(config.engine, job.devices[0].kind).name
    config_of_run = saved.content["config"]
    new = list(new_settings(config, config_of_run))
    changed = differences(config_of_run, resolved(replace(config, engine=engine)), new)
    if saved.content["model"] != model_digest(model):
        changed["--env.model"] = "the model, or MuJoCo's version, is not the run's"
    if changed and not config.resume_with_changes:
        lines = [f"  {flag}: {what:.200}" for flag, what in changed.items()]
        lines[10:] = [f"  and {len(lines) - 10} more"] * (len(lines) > 10)
        advice = "leave out these flags, or go on with --resume-with-changes True"
        title = f"the configuration is not that of {saved.path}:"
        raise ConfigError("\n".join([title, *lines, advice]))
    same_environments = not any(flag.startswith(_ENVIRONMENT_FLAGS) for flag in changed)
    lines = [f"warning: {warning}" for warning in saved.warnings]
    lines.append(f"going on with {saved.path} after iteration {saved.iteration}")
    inexact = [*changed, *_differing_circumstances(saved, job)]
    if inexact:
        consequence = "" if same_environments else "; environments start new episodes"
        lines.append(f"the continuation is not exact: {', '.join(inexact)}{consequence}")
    return Resumption(saved.file.absolute(), same_environments, tuple(changed)), lines


def _differing_circumstances(saved: SavedRun, job: Job) -> list[str]:
    """Ranks, threads and versions that differ from the run's."""
    before, now = len(saved.content["ranks"]), job.world_size
    threads = job.threads or share_of_cores(job.devices[0].ranks)
    its_versions, mine = saved.content["versions"], versions()
    differing = []
    if before != now:
        differing.append(f"{now} rank{'s' if now > 1 else ''} instead of {before}")
    if saved.content["threads"] != threads:
        differing.append(f"{threads} threads a rank instead of {saved.content['threads']}")
    return differing + [
        f"{name} {mine.get(name)} instead of {its_versions.get(name)}"
        for name in {**its_versions, **mine}
        if its_versions.get(name) != mine.get(name)
    ]
