"""Engines: a batch of MuJoCo simulations on one device, behind one contract. Knows no task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import mujoco
    import torch

    from simtrain.sim.engine import Engine

EngineName = Literal["mujoco", "warp"]


def make_engine(
    name: EngineName,
    model: mujoco.MjModel,
    num_envs: int,
    *,
    device: torch.device | str = "cpu",
    threads: int = 0,
    keyframe: int | None = None,
) -> Engine:
    """An engine by its name.

    Args:
        name: ``"mujoco"`` (CPU threads).
        model: the compiled model.
        num_envs: number of simulations.
        device: where its tensors live.
        threads: physics threads of the CPU engine; 0 for all cores given to the process.
        keyframe: id of the keyframe that `Engine.reset` goes to.
    """
    if name == "mujoco":
        from simtrain.sim.mujoco_engine import MujocoEngine

        return MujocoEngine(model, num_envs, threads=threads, keyframe=keyframe)
    raise ValueError(f"unknown engine {name!r}")
