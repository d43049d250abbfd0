"""``--teacher``: the policy of a run as the teacher of a student, see `algorithms.distillation`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.algorithms.distillation import Distillation
from simtrain.algorithms.networks import make_actor
from simtrain.errors import ConfigError
from simtrain.ppo_cfg import SymmetryCfg
from simtrain.training.init_from import read_networks
from simtrain.training.saved_policy import open_policy

if TYPE_CHECKING:
    from simtrain.config import TrainConfig
    from simtrain.env.env import Env
    from simtrain.launch.rank import Rank
    from simtrain.phase_timer import PhaseTimer
    from simtrain.training.context import RunContext
    from simtrain.training.loop import Trainer


def with_teacher(config: TrainConfig) -> TrainConfig:
    """The configuration with the network of its teacher, as its run has it.

    Without the mirror images of the task's PPO: a student learns from its teacher alone.

    ConfigError if there is no such policy, or the task has not the groups that it sees.
    """
    assert config.teacher is not None
    network = open_policy(Path(config.teacher)).config.ppo.actor
    there = config.env.observation_groups()
    for group in network.obs_groups:
        if group not in there:
            text = f"--teacher {config.teacher} is of another task: it sees the group {group!r}"
            raise ConfigError(f"{text}; here are {', '.join(there)}")
    ppo = replace(config.ppo, symmetry=SymmetryCfg())
    return replace(config, ppo=ppo, distillation=replace(config.distillation, teacher=network))


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
    if path is None or context.shared.resumption is not None:
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
