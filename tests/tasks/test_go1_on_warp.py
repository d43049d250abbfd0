"""The quadruped's task on both engines, with the same random numbers.

MuJoCo Warp counts in float32, which leaves them about a millionth apart.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.sim import EngineCfg


def run(engine: str, actions: list[Tensor]) -> list[Tensor]:
    """Observations, rewards and dones of every step."""
    torch.manual_seed(0)
    cfg = discover().find("go1-velocity-flat").make()
    cfg.episode_length_s = 0.4  # so that episodes end and resets happen
    for event in cfg.events.values():
        event.after_steps = 0
    env = Env(cfg, 4, EngineCfg(engine, threads=1))
    seen = []
    for action in actions:
        env.sim.finish_const()  # what resets leave for the end of a rollout on Warp
        observations, rewards, dones, _ = env.step(action)
        groups = [observations[name].clone() for name in ("actor", "critic")]
        seen += [*groups, rewards.clone(), dones.float()]
    assert engine == "mujoco" or env.sim.overflow().messages == {}
    return seen


@pytest.mark.usefixtures("fast_compilation")
def test_the_task_is_the_same_on_both_engines() -> None:
    """Randomized masses, friction and gains, pushes, resets, observations and rewards."""
    actions = [0.5 * torch.randn(4, 12) for _ in range(45)]
    exact, single = run("mujoco", actions), run("warp", actions)
    assert sum(dones.sum() for dones in exact[3::4]) >= 8
    for i, (one, other) in enumerate(zip(exact, single, strict=True)):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3, msg=lambda m, i=i: f"{i}: {m}")
