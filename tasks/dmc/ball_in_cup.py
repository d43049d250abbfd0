"""Ball in cup: an actuated cup, a ball on a string. Throw the ball up and catch it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, suite_task

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-ball_in_cup-catch", needs=PACKAGE)
def ball_in_cup_catch() -> TaskCfg:
    """Swing a ball into a cup."""
    return suite_task(
        ball_in_cup,
        timestep=0.002,
        decimation=10,
        observations={
            "position": ObservationTermCfg(mdp.joint_pos, joints=".*"),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
        },
        reward=in_cup,
        starts=BallStarts,
    )


class BallStarts(Starts):
    """The ball is anywhere about the cup and touches nothing."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw the ball's place until there is no contact."""
        import mujoco

        while True:
            data.joint("ball_x").qpos = rng.uniform(-0.2, 0.2)
            data.joint("ball_z").qpos = rng.uniform(0.2, 0.5)
            mujoco.mj_fwdPosition(model, data)
            if data.ncon == 0:
                return


def ball_in_cup() -> mujoco.MjSpec:
    """The Suite's model."""
    return load("ball_in_cup")


def in_cup(env: Env) -> Tensor:
    """1 while the whole ball is in the cup."""
    model = env.model
    target, ball = model.site("target"), model.body("ball")
    away = (env.bind("site_xpos")[:, target.id] - env.bind("xpos")[:, ball.id]).abs()
    radius = model.geom("ball").size[0]
    inside = [away[:, axis] < target.size[axis] - radius for axis in (0, 2)]
    return (inside[0] & inside[1]).float()
