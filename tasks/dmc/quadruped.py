"""Quadruped: four legs with three actuators each. Walk or run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, random_quaternion, reaches, sensor, suite_task, upright

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    from torch import Tensor

    from simtrain.env.env import Env

WALLS = ("wall_px", "wall_py", "wall_nx", "wall_ny")
JOINTS = "(yaw|pitch|knee|ankle)_.*"
FORCES = "(force|torque)_.*"


@task("dmc-quadruped-walk", needs=PACKAGE)
def quadruped_walk() -> TaskCfg:
    """Walk at 0.5 m/s."""
    return _task(0.5)


@task("dmc-quadruped-run", needs=PACKAGE)
def quadruped_run() -> TaskCfg:
    """Run at 5 m/s."""
    return _task(5.0)


def _task(speed: float) -> TaskCfg:
    return suite_task(
        quadruped,
        timestep=0.005,
        decimation=4,
        observations={
            "joint_pos": ObservationTermCfg(mdp.joint_pos, joints=JOINTS),
            "joint_vel": ObservationTermCfg(mdp.joint_vel, joints=JOINTS),
            "activations": ObservationTermCfg(activations),
            "torso_velocity": ObservationTermCfg(mdp.builtin_sensor, sensors="velocimeter"),
            "torso_upright": ObservationTermCfg(upright),
            "imu": ObservationTermCfg(mdp.builtin_sensor, sensors=("imu_accel", "imu_gyro")),
            "force_torque": ObservationTermCfg(force_torque, sensors=FORCES),
        },
        reward=moves,
        starts=QuadrupedStarts,
        # The ranges are -1 to 1, -1 to 1.1 and -0.8 to 0.8.
        scale={"yaw_.*": 1.0, "lift_.*": 1.05, "extend_.*": 0.8},
        offset={"yaw_.*": 0.0, "lift_.*": 0.05, "extend_.*": 0.0},
        speed=speed,
    )


class QuadrupedStarts(Starts):
    """Any orientation, at the lowest height, in steps of 1 cm, that touches nothing."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw the orientation and rise until there is no contact."""
        import mujoco

        data.qpos[:3], data.qpos[3:7] = 0.0, random_quaternion(rng)
        mujoco.mj_fwdPosition(model, data)
        while data.ncon > 0:
            data.qpos[2] += 0.01
            mujoco.mj_fwdPosition(model, data)


def quadruped() -> mujoco.MjSpec:
    """The Suite's model without what other tasks need: walls, ball, target, terrain and rays."""
    import mujoco

    spec = load("quadruped")
    rays = [s for s in spec.sensors if s.type == mujoco.mjtSensor.mjSENS_RANGEFINDER]
    walls = [spec.geom(name) for name in (*WALLS, "terrain")]
    for element in (*rays, *walls, spec.body("ball"), spec.site("target")):
        spec.delete(element)
    spec.geom("floor").size = (100.0, 100.0, 0.5)
    return spec


def activations(env: Env) -> Tensor:
    """States of the actuators' filters. Shape: ``(num_envs, 12)``."""
    return env.bind("act")


def force_torque(env: Env, sensors: mdp.Sensors) -> Tensor:
    """Forces and torques at the toes, by their inverse hyperbolic sine. ``(num_envs, 24)``."""
    return mdp.builtin_sensor(env, sensors).asinh()


def moves(env: Env, speed: float) -> Tensor:
    """Upright x forward speed, 1 from `speed` on."""
    velocity = sensor(env, "velocimeter")[:, 0]
    forward = reaches(velocity, speed, margin=speed, value_at_margin=0.5)
    return forward * reaches(upright(env)[:, 0], 1.0, margin=2.0, value_at_margin=0.0)
