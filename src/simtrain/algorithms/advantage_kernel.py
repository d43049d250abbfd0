"""Generalized advantage estimation as one kernel of Warp: a thread an environment, back in time.

See `simtrain.algorithms.rollout` for what it computes; Warp's CPU device is for tests.
No ``from __future__ import annotations`` here: Warp reads the annotations as types.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import warp as wp
from torch import Tensor

from simtrain.algorithms.rollout import Rollout
from simtrain.sim.warp_graphs import current_stream, init_warp

wp.set_module_options({"enable_backward": False})


@wp.kernel
def _estimate(
    rewards: wp.array2d[float],
    dones: wp.array2d[wp.uint8],
    time_outs: wp.array2d[wp.bool],
    values: wp.array2d[float],
    last_values: wp.array[float],
    gamma: float,
    lam: float,
    # out:
    advantages: wp.array2d[float],
    returns: wp.array2d[float],
):
    env = wp.tid()
    next_value = last_values[env]
    advantage = wp.float32(0.0)
    for back in range(rewards.shape[0]):
        step = rewards.shape[0] - 1 - back
        value = values[step, env]
        delta = rewards[step, env] - value
        if time_outs[step, env]:
            delta += gamma * value
        if dones[step, env] == wp.uint8(0):
            delta += gamma * next_value
            advantage = delta + gamma * lam * advantage
        else:
            advantage = delta
        advantages[step, env] = advantage
        returns[step, env] = advantage + value
        next_value = value


class KernelEstimator:
    """Estimates advantages on one device; RuntimeError if Warp cannot use it."""

    def __init__(self, device: torch.device) -> None:
        init_warp()
        if device.type == "cuda" and not wp.is_cuda_available():
            raise RuntimeError("Warp finds no CUDA driver that is new enough")
        self._torch_device, self._device = device, wp.device_from_torch(device)

    def __call__(self, rollout: Rollout, last_values: Tensor, gamma: float, lam: float) -> None:
        """See `simtrain.algorithms.rollout.estimate_by_steps`; on PyTorch's current stream."""
        given = (rollout.rewards, rollout.dones, rollout.time_outs, rollout.values)
        wp.launch(
            _estimate,
            dim=len(last_values),
            inputs=[*map(_flat, given), wp.from_torch(last_values.view(-1)), gamma, lam],
            outputs=[_flat(rollout.advantages), _flat(rollout.returns)],
            device=self._device,
            stream=current_stream(self._torch_device) if self._device.is_cuda else None,
        )


def _flat(tensor: Tensor) -> wp.array:
    """The memory of ``(steps, num_envs, 1)`` as ``(steps, num_envs)``."""
    return wp.from_torch(tensor.view(len(tensor), -1))
