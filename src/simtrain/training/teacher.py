"""``--teacher``: the policy of a run as the teacher of a student, see `algorithms.distillation`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.algorithms.cfg import SymmetryCfg
from simtrain.algorithms.distillation import Distillation
from simtrain.algorithms.networks import make_actor
from simtrain.errors import ConfigError
from simtrain.training.init_from import read_networks
from simtrain.training.saved_policy import open_policy

if TYPE_CHECKING:
    from simtrain.config.train import TrainConfig
    from simtrain.env.env import Env
    from simtrain.launch.phase_timer import PhaseTimer
    from simtrain.launch.rank import Rank
    from simtrain.training.context import RunContext
    from simtrain.training.loop import Trainer

# What decides the meaning of a policy's inputs and outputs; noise, delays and limits do not.
_SEEN = ("func", "params", "clip", "scale", "history_length")
_DONE = ("joints", "tendons", "sites", "actuators", "scale", "offset", "reference")


def with_teacher(config: TrainConfig) -> TrainConfig:
    """The configuration with the network of its teacher, as its run has it.

    Without the mirror images of the task's PPO: a student learns from its teacher alone.

    ConfigError if there is no such policy, or what it sees and does is not the same in the task.
    """
    assert config.teacher is not None
    learned = open_policy(Path(config.teacher)).config
    network, here, there = learned.ppo.actor, *map(_interface, (config, learned))
    for part in ("actions", *network.obs_groups):
        mine, its = here.get(part, {}), there[part]
        if [*mine.items()] != [*its.items()]:
            different = [name for name in {**its, **mine} if mine.get(name) != its.get(name)]
            what = f"{part}.{different[0]}" if different else f"the order of {part}"
            text = f"--teacher {config.teacher} is of another task, {learned.task}"
            raise ConfigError(f"{text}: {what} is not the same in {config.task}")
    ppo = replace(config.ppo, symmetry=SymmetryCfg())
    return replace(config, ppo=ppo, distillation=replace(config.distillation, teacher=network))


def _interface(config: TrainConfig) -> dict[str, dict[str, str]]:
    """What each action and each term of an observation group is to a policy, in words."""

    def told(term: Any, what: Sequence[str]) -> str:
        values = [getattr(term, name, None) for name in what]
        return json.dumps([type(term).__name__, *values], default=_name_of)

    groups = config.env.observation_groups().items()
    seen = {g: {n: told(term, _SEEN) for n, term in terms.items()} for g, terms in groups}
    return seen | {"actions": {n: told(term, _DONE) for n, term in config.env.actions.items()}}


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", str(function))


def make_distillation(env: Env, rank: Rank, config: TrainConfig, timer: PhaseTimer) -> Distillation:
    """The algorithm, with a teacher that knows nothing yet."""
    obs, cfg = env.get_observations().to(rank.device), config.distillation
    models = [make_actor(each, obs, env.num_actions) for each in (config.ppo.actor, cfg.teacher)]
    student, teacher = models
    return Distillation(cfg, (student, teacher), obs, config.num_steps_per_env, rank, timer)


def load_teacher(context: RunContext, trainer: Trainer) -> None:
    """Take over the teacher's parameters, in place; all ranks call it together.

    Does nothing without a teacher, and for a resumed run, whose state has it. ConfigError if the
    teacher does not fit the task.
    """
    algorithm, rank, path = trainer.ppo, context.rank, context.config.teacher
    if path is None or context.resumption is not None:
        return
    assert isinstance(algorithm, Distillation)
    teacher = algorithm.teacher
    if rank.is_main:
        state = read_networks(path, "actor")[1]["actor"]
        here, there = (
            {n: tuple(t.shape) for n, t in s.items()} for s in (teacher.state_dict(), state)
        )
        if here != there:
            name = next(n for n in {**here, **there} if here.get(n) != there.get(n))
            shapes = [each.get(name, "missing") for each in (there, here)]
            obs = trainer.env.get_observations()
            groups = (f"{group} {tuple(obs[group].shape[1:])}" for group in teacher.obs_groups)
            raise ConfigError(
                f"--teacher {path} is of another task: its {name} is {shapes[0]}, and would be "
                f"{shapes[1]} here, for {trainer.env.num_actions} actions and the groups "
                f"{', '.join(groups)}"
            )
        teacher.load_state_dict(state)
    for tensor in teacher.state_dict().values():
        rank.broadcast(tensor)
