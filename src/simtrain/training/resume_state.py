"""All that training depends on, of every rank, gathered for ``resume.pt`` and put back.

Parameters, optimizer and counters are the same on all ranks and saved once. Environments and random
generators are each rank's own; ranks send theirs to rank 0, which alone reads and writes files.
"""

from __future__ import annotations

from typing import Any

from simtrain.env.randomness import random_state, set_random_state
from simtrain.errors import ConfigError
from simtrain.launch.rank import Rank
from simtrain.run.resume import read_resume_state
from simtrain.run.tensor_file import copied_to_cpu, packed
from simtrain.training.loop import Trainer
from simtrain.training.resume_plan import Resumption


def gather_state(trainer: Trainer, rank: Rank) -> dict[str, Any] | None:
    """Copies of the whole training state on rank 0, None on others; all ranks call it together.

    Each rank's own part is packed, for it travels faster so. Waits for the device.
    """
    mine = {
        "env": trainer.env.state(),
        "random": random_state(rank.device),
        "warned": sorted(trainer.warned),
    }
    ranks = rank.gather_objects(packed(mine))
    if ranks is None:
        return None
    return {
        "iteration": trainer.iteration,
        "env_steps": trainer.env_steps,
        "trainer": trainer.state(),
        "learner": copied_to_cpu(trainer.ppo.state()),
        "ranks": ranks,
    }


def restore_state(trainer: Trainer, rank: Rank, resumption: Resumption) -> dict[str, Any] | None:
    """Put a saved training state back, in place; all ranks call it together.

    Ranks that the saved run did not have start new episodes.

    Returns:
        What was saved on rank 0, None on others.

    Raises:
        ConfigError: the state does not fit.
    """
    content, parts = None, None
    if rank.is_main:
        content = read_resume_state(resumption.file)
        shared = {name: content[name] for name in ("trainer", "learner")}
        steps = content["ranks"][0]["env"]["steps"]
        own = content["ranks"] if resumption.same_environments else []
        parts = [(shared, steps, own[i] if i < len(own) else None) for i in range(rank.world_size)]
    shared, steps, mine = rank.scatter_objects(parts)
    try:
        trainer.set_state(shared["trainer"])
        trainer.ppo.set_state(
            shared["learner"],
            optimizer="--ppo.optimizer" not in resumption.changed,
            learning_rate="--ppo.learning-rate" not in resumption.changed,
        )
        if mine is None:
            # Curricula go by how far training is.
            trainer.env.steps.fill_(steps)
        else:
            trainer.env.set_state(mine["env"])
            trainer.env_is_fresh = False
            trainer.warned = set(mine["warned"])
            set_random_state(mine["random"], rank.device)
    except (KeyError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{resumption.file} cannot be resumed: {error}") from error
    return content
