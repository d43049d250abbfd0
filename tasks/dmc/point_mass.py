"""Point mass: push it to the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, small_control, suite_task

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-point_mass-easy", needs=PACKAGE)
def point_mass_easy() -> TaskCfg:
    """Push a mass to the middle and hold it there."""
    return suite_task(
        point_mass,
        timestep=0.02,
        decimation=1,
        observations={
            "position": ObservationTermCfg(mdp.joint_pos, joints=".*"),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
        },
        reward=near_target,
        starts=PointMassStarts,
    )


class PointMassStarts(Starts):
    """Anywhere within the walls."""


def point_mass() -> mujoco.MjSpec:
    """The Suite's model."""
    return load("point_mass")


def near_target(env: Env) -> Tensor:
    """Near the target x small control."""
    places, target = env.bind("geom_xpos"), env.model.geom("target")
    distance = (places[:, target.id] - places[:, env.model.geom("pointmass").id]).norm(dim=1)
    size = target.size[0]
    return mdp.tolerance(distance, margin=size, bounds=(0.0, size)) * small_control(env)
