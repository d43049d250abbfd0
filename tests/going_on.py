"""Whether an environment goes on from a saved state as if nothing had happened."""

from __future__ import annotations

import io
from typing import Any

import torch

from simtrain.env.env import Env


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """What comes back from a file that is read without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def trajectory(env: Env, steps: int) -> list[torch.Tensor]:
    """Everything that a policy and a trainer see in some steps of random actions."""
    seen = []
    for _ in range(steps):
        actions = torch.rand(env.num_envs, env.num_actions, device=env.device) * 2.0 - 1.0
        obs, rewards, dones, extras = env.step(actions)
        seen += [value.clone() for value in (*obs.values(), rewards, dones, extras["time_outs"])]
        seen += [value.clone() for value in extras["log"].values()]
    return [*seen, env.episodes.take()]


def assert_goes_on_the_same(
    first: Env, make: Any, *, before: int, after: int
) -> list[torch.Tensor]:
    """What is seen of `first` after the state that another one from `make` goes on from."""
    trajectory(first, before)
    saved = stored({"env": first.state(), "random": torch.get_rng_state()})
    expected = trajectory(first, after)
    second = make()
    trajectory(second, 2)
    second.set_state(saved["env"])
    torch.set_rng_state(saved["random"])
    for step, (value, other) in enumerate(zip(expected, trajectory(second, after), strict=True)):
        assert torch.equal(value, other), step
    return expected
