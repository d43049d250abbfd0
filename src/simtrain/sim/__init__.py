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

    `Engine.reset` goes to `keyframe`, an id; None is MuJoCo's default. The warp engine's buffers
    hold `max_contacts` contacts, and pairs of geoms near each other, per environment on average,
    and `max_constraints` rows of constraints in each; None finds out by a probe on the CPU.
    """
    if cfg.name == "mujoco":
        from simtrain.sim.mujoco_engine import MujocoEngine

        return MujocoEngine(model, num_envs, cfg.threads, keyframe)

    from simtrain.sim.warp_engine import WarpEngine

    return WarpEngine(cfg, model, num_envs, keyframe, max_contacts, max_constraints)
