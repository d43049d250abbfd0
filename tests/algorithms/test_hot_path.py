"""What a step and an update allocate on the CPU in the steady state: next to nothing."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import simtrain
from simtrain.algorithms.ppo import PPO
from simtrain.algorithms.rollout import Transition
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.launch.rank import Rank
from simtrain.sim import EngineCfg
from simtrain.training.graphs import collect_transition

SOURCE = Path(simtrain.__file__).parent
STEPS, ENVS = 12, 64

OF_A_STEP = {
    # One number for each column: what was not finite, and a normalizer's denominator.
    "env/terms.py compute sum",
    "env/observations.py compute sum",
    "algorithms/learners/buffered_mlp.py normalized_input add",
    # Which commands and interval events are due, and when they are next.
    "env/commands.py compute le",
    "env/terms.py step le",
    # And which events have begun.
    "env/terms.py _begun ge",
    "env/terms.py _begun __and__",
    "env/randomness.py draw_where empty_like",
    "env/randomness.py draw_where where",
    # Numbers that terms draw.
    "env/randomness.py draw rand",
}
"""What may make a new tensor in a step: file, function and operation. Terms are the task's own."""
OF_DELAYS = ("env/control/delay.py ", "env/observations.py _stacked ")
"""Where a task's delays and histories make some: lags that are drawn, and what is seen late."""


class NewTensors(TorchDispatchMode):
    """Notes the operations that make new storage, outside of terms, and the numbers in it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage_of(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and storage_of(tensor) not in given:
                where = place()
                if where is not None:
                    name = f"{where} {func.overloadpacket.__name__}"
                    self.made[name] = max(self.made.get(name, 0), tensor.numel())
        return result


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def place() -> str | None:
    """The file and function of the package that the present operation is called from."""
    frame = sys._getframe(2)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if "tasks" in file.parts or (SOURCE / "mdp") in file.parents:
            return None
        if SOURCE in file.parents:
            return f"{file.relative_to(SOURCE)} {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def collect(env: Env, ppo: PPO, transitions: Sequence[Transition]) -> None:
    """As training does."""
    for transition in transitions:
        collect_transition(env, ppo, transition)


def env_and_ppo(task: str) -> tuple[Env, PPO]:
    cfg = discover().find(task).make()
    env = Env(cfg, ENVS, EngineCfg(threads=1))
    rank = Rank(0, 0, 1, env.device, seed=0, threads=1)
    return env, PPO(cfg.ppo, env.get_observations(), env.num_actions, STEPS, rank)


@pytest.mark.parametrize("task", ["cartpole-balance", "go1-velocity-flat"])
def test_a_step_makes_no_tensors_but_those_of_terms_and_the_named(task: str) -> None:
    env, ppo = env_and_ppo(task)
    with torch.inference_mode():
        ppo.begin_rollout()
        collect(env, ppo, ppo.storage.transitions[:2])
        with NewTensors() as new:
            collect(env, ppo, ppo.storage.transitions[2:5])
    assert not env.terminations.dones.any()
    assert new.made
    assert {name for name in new.made if not name.startswith(OF_DELAYS)} <= OF_A_STEP


def test_an_update_makes_nothing_as_large_as_a_hidden_layer() -> None:
    env, ppo = env_and_ppo("go1-velocity-flat")
    ppo.train_mode()
    with torch.inference_mode():
        ppo.begin_rollout()
        collect(env, ppo, ppo.storage.transitions)
        ppo.compute_returns(env.get_observations())
    ppo.update()
    with NewTensors() as new:
        ppo.learn_mini_batch(0)
    mini_batch = len(ppo.learner.mini_batches[0].actions)  # type: ignore[attr-defined]
    assert max(new.made.values()) <= mini_batch * env.num_actions
    assert env.num_actions < min(ppo.actor.mlp[0].out_features, ppo.critic.mlp[0].out_features)
