"""Swimmer: six links in water. Bring the nose to a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _suite import PACKAGE, Starts, in_frame, load, make_movable, rotation, sensor, suite_task

from simtrain import ObservationTermCfg, TaskCfg, mdp, task

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    from torch import Tensor

    from simtrain.env.env import Env

LINKS = 6


@task("dmc-swimmer-swimmer6", needs=PACKAGE)
def swimmer_swimmer6() -> TaskCfg:
    """Swim to a target with six links."""
    return suite_task(
        swimmer,
        timestep=0.002,
        decimation=15,
        observations={
            "joints": ObservationTermCfg(mdp.joint_pos, joints="joint_.*"),
            "to_target": ObservationTermCfg(nose_to_target),
            "body_velocities": ObservationTermCfg(body_velocities),
        },
        reward=near_target,
        starts=SwimmerStarts,
    )


class SwimmerStarts(Starts):
    """Any pose; a fifth of the targets are near."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw joints and target."""
        super().draw(model, data, rng)
        box = 0.3 if rng.uniform() < 0.2 else 2.0
        data.mocap_pos[0, :2] = rng.uniform(-box, box, size=2)


def swimmer() -> mujoco.MjSpec:
    """The Suite's head with five links more, a motor and two sensors each, and a target."""
    import mujoco

    spec = make_movable(load("swimmer"), "geom")
    parts = {name: spec.find_default(name) for name in ("swimmer", "visual", "inertial")}
    parent, limit = spec.body("head"), 360.0 / LINKS
    for link in range(LINKS - 1):
        parent = parent.add_body(name=f"segment_{link}", pos=(0.0, 0.1, 0.0))
        for kind in ("visual", "inertial"):
            parent.add_geom(parts[kind], name=f"{kind}_{link}")
        site = parent.add_site(parts["swimmer"], name=f"site_{link}")
        joint = parent.add_joint(parts["swimmer"], name=f"joint_{link}", range=(-limit, limit))
        spec.add_actuator(
            spec.default,
            name=f"motor_{link}",
            target=joint.name,
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
        )
        for kind in ("velocimeter", "gyro"):
            spec.add_sensor(
                name=f"{kind}_{link}",
                type=getattr(mujoco.mjtSensor, f"mjSENS_{kind.upper()}"),
                objtype=mujoco.mjtObj.mjOBJ_SITE,
                objname=site.name,
            )
    return spec


def nose_to_target(env: Env) -> Tensor:
    """From the nose to the target in the head's frame, x and y, m. Shape: ``(num_envs, 2)``."""
    away = sensor(env, "target_pos") - sensor(env, "nose_pos")
    return in_frame(away.unsqueeze(1), rotation(env, "head"))[:, 0, :2]


def body_velocities(env: Env) -> Tensor:
    """Velocities of all links along their x and y, and about z. Shape: ``(num_envs, 18)``."""
    import torch

    values = env.bind("sensordata")[:, 12:].unflatten(1, (-1, 6))
    return torch.cat((values[..., :2], values[..., 5:]), dim=2).flatten(1)


def near_target(env: Env) -> Tensor:
    """1 with the nose in the target, less with a long tail around it."""
    size = env.model.geom("target").size[0]
    distance = nose_to_target(env).norm(dim=1)
    return mdp.tolerance(distance, margin=5.0 * size, bounds=(0.0, size), sigmoid="long_tail")
