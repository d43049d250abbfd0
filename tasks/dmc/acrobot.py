"""Acrobot: two links, a motor at the elbow. Swing them up to the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, rotation, suite_task

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-acrobot-swingup", needs=PACKAGE)
def acrobot_swingup() -> TaskCfg:
    """Swing two links up by a motor between them."""
    return suite_task(
        acrobot,
        timestep=0.01,
        decimation=1,
        observations={
            "orientations": ObservationTermCfg(orientations),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
        },
        reward=near_target,
        starts=AcrobotStarts,
    )


class AcrobotStarts(Starts):
    """Both joints are uniform in a turn."""


def acrobot() -> mujoco.MjSpec:
    """The Suite's model."""
    return load("acrobot")


def orientations(env: Env) -> Tensor:
    """Sines of both links' angles to the vertical, then their cosines. Shape: (num_envs, 4)."""
    import torch

    upper, lower = rotation(env, "upper_arm"), rotation(env, "lower_arm")
    return torch.stack((upper[:, 2], lower[:, 2], upper[:, 8], lower[:, 8]), dim=1)


def near_target(env: Env) -> Tensor:
    """1 with the tip in the target, less within about a metre of it."""
    model, sites = env.model, env.bind("site_xpos")
    target, tip = model.site("target"), model.site("tip")
    distance = (sites[:, target.id] - sites[:, tip.id]).norm(dim=1)
    return mdp.tolerance(distance, margin=1.0, bounds=(0.0, target.size[0]))
