"""Cheetah: a planar body on two legs. Run as fast as it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, load, reaches, sensor, suite_task

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    from torch import Tensor

    from simtrain.env.env import Env


@task("dmc-cheetah-run", needs=PACKAGE)
def cheetah_run() -> TaskCfg:
    """Run at up to 10 m/s."""
    return suite_task(
        cheetah,
        timestep=0.01,
        decimation=1,
        observations={
            "position": ObservationTermCfg(mdp.joint_pos, joints="(?!rootx).*"),
            "velocity": ObservationTermCfg(mdp.joint_vel, joints=".*"),
        },
        reward=speed,
        starts=CheetahStarts,
    )


class CheetahStarts(Starts):
    """Joints are anywhere in their ranges; then it falls and comes to rest."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw the joints, and simulate 200 steps."""
        import mujoco

        low, high = model.jnt_range[3:].T
        data.qpos[3:] = rng.uniform(low, high)
        mujoco.mj_step(model, data, 200)


def cheetah() -> mujoco.MjSpec:
    """The Suite's model. Its ``settotalmass``, which MuJoCo warns of, becomes a density."""
    spec = load("cheetah")
    mass, spec.compiler.settotalmass = spec.compiler.settotalmass, -1.0
    factor = mass / spec.copy().compile().body_mass.sum()
    for geom in spec.geoms:
        geom.density *= factor
    return spec


def speed(env: Env) -> Tensor:
    """1 from 10 m/s on, 0 at rest."""
    value = sensor(env, "torso_subtreelinvel")[:, 0]
    return reaches(value, 10.0, margin=10.0, value_at_margin=0.0)
