"""Engines: a batch of MuJoCo simulations on one device, behind one contract. Knows no task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import mujoco
    import torch

    from simtrain.sim.engine import Engine

EngineName = Literal["mujoco", "warp"]


@dataclass(frozen=True)
class EngineCfg:
    """Which engine simulates, and on what."""

    name: EngineName = "mujoco"
    """``mujoco`` is MuJoCo on CPU threads, ``warp`` MuJoCo Warp: on CUDA or, slowly, on the CPU."""
    device: torch.device | str = "cpu"
    """Where the simulations' tensors live."""
    threads: int = 0
    """Physics threads of the mujoco engine; 0 for all cores given to the process."""
    deterministic: bool = False
    """Whether warp gives the same results in every run; slower. mujoco always does."""


def choose_engine(
    name: EngineName | Literal["auto"],
    device: torch.device | str,
    threads: int = 0,
    deterministic: bool = False,
) -> EngineCfg:
    """What simulates for a learner on `device`: ``auto`` takes warp on a GPU and mujoco elsewhere.

    The mujoco engine's tensors live on the CPU: its threads can feed a network on a GPU.
    """
    kind = str(device).split(":")[0]
    if name == "auto":
        name = "warp" if kind == "cuda" else "mujoco"
    return EngineCfg(name, device if name == "warp" else "cpu", threads, deterministic)


def make_engine(
    cfg: EngineCfg,
    model: mujoco.MjModel,
    num_envs: int,
    *,
    keyframe: int | None = None,
    max_contacts: int | None = None,
    max_constraints: int | None = None,
) -> Engine:
    """An engine with `num_envs` simulations of a compiled model.

    Args:
        cfg: which, and where.
        model: the compiled model.
        num_envs: number of simulations.
        keyframe: id of the keyframe that `Engine.reset` goes to.
        max_contacts: room for contacts per environment on the warp engine; None to find out.
        max_constraints: room for rows of constraints there; None to find out.
    """
    if cfg.name == "mujoco":
        from simtrain.sim.mujoco_engine import MujocoEngine

        return MujocoEngine(model, num_envs, threads=cfg.threads, keyframe=keyframe)

    from simtrain.sim.warp_engine import WarpEngine

    return WarpEngine(
        model,
        num_envs,
        device=cfg.device,
        keyframe=keyframe,
        max_contacts=max_contacts,
        max_constraints=max_constraints,
        deterministic=cfg.deterministic,
    )
