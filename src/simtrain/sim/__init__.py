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
    max_contacts: int | None = None,
    max_constraints: int | None = None,
    deterministic: bool = False,
) -> Engine:
    """An engine by its name.

    Args:
        name: ``"mujoco"`` (CPU threads) or ``"warp"`` (MuJoCo Warp: CUDA, or slowly the CPU).
        model: the compiled model.
        num_envs: number of simulations.
        device: where its tensors live.
        threads: physics threads of the CPU engine; 0 for all cores given to the process.
        keyframe: id of the keyframe that `Engine.reset` goes to.
        max_contacts: room for contacts per environment on the warp engine; None to find out.
        max_constraints: room for rows of constraints there; None to find out.
        deterministic: whether the warp engine gives the same results in every run; slower. The CPU
            engine always does.
    """
    if name == "mujoco":
        from simtrain.sim.mujoco_engine import MujocoEngine

        return MujocoEngine(model, num_envs, threads=threads, keyframe=keyframe)
    if name == "warp":
        from simtrain.sim.warp_engine import WarpEngine

        return WarpEngine(
            model,
            num_envs,
            device=device,
            keyframe=keyframe,
            max_contacts=max_contacts,
            max_constraints=max_constraints,
            deterministic=deterministic,
        )
    raise ValueError(f"unknown engine {name!r}")
