"""Engines: a batch of MuJoCo simulations on one device, behind one contract. Knows no task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.sim.engine import Engine, EngineCfg, EngineName, choose_engine

if TYPE_CHECKING:
    import mujoco

__all__ = ["EngineCfg", "EngineName", "choose_engine", "make_engine"]


def make_engine(
    cfg: EngineCfg,
    model: mujoco.MjModel,
    num_envs: int,
    *,
    keyframe: int | None = None,
    max_contacts: int | None = None,
    max_constraints: int | None = None,
) -> Engine:
    """An engine with `num_envs` simulations of a compiled model, of which it takes a copy.

    Args:
        cfg: which engine, and on what.
        model: the compiled model.
        num_envs: number of simulations.
        keyframe: id of the keyframe that `Engine.reset` goes to; None for MuJoCo's default.
        max_contacts: contacts, and pairs of geoms near each other, that the warp engine's buffers
            hold, per environment on average; None to find out by a probe on the CPU.
        max_constraints: rows of constraints that they hold in each environment; None likewise.
    """
    if cfg.name == "mujoco":
        from simtrain.sim.mujoco_engine import MujocoEngine

        return MujocoEngine(model, num_envs, threads=cfg.threads, keyframe=keyframe)

    from simtrain.sim.warp_engine import WarpEngine

    return WarpEngine(
        cfg,
        model,
        num_envs,
        keyframe=keyframe,
        max_contacts=max_contacts,
        max_constraints=max_constraints,
    )
