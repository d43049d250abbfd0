"""The torques of a motion by inverse dynamics, with the floor's forces on bodies on it."""

from collections.abc import Iterator

import mujoco
import numpy as np
from scipy.optimize import nnls
from scipy.signal import savgol_filter

from simtrain.errors import ConfigError
from simtrain.motion.clip import MotionClip, qpos_of, qvel_of

TOUCH = 0.005
"""Parts that are nearer to the floor stand on it, m."""
_WINDOW_S = 0.14  # over which velocities are smoothed before they are differentiated
_TORQUE_WEIGHT = 3.0  # 1/m; of a torque on the base, compared with a force
_CONTACT_WEIGHT = 0.02  # of a contact's force, compared with a missing force on the base


def servo_offsets(clip: MotionClip, model: mujoco.MjModel, actuators: list[int]) -> np.ndarray:
    """Offsets of position servos' targets from a motion's joint positions, in units of ``ctrl``.

    A servo with the gain kp and the damping kv needs the target q + (torque + kv velocity) / kp.
    The force is limited to that of the actuator. Each of `actuators` drives one joint. Shape:
    ``(frames, actuators)``. ConfigError for DC motors, whose forces are not computed like this.
    """
    if (model.actuator_biastype[actuators] != mujoco.mjtBias.mjBIAS_AFFINE.value).any():
        raise ConfigError("feedforward is for position actuators, and not for dcmotor")
    dofs = model.jnt_dofadr[model.actuator_trnid[actuators, 0]]
    gear, gain = model.actuator_gear[actuators, 0], model.actuator_gainprm[actuators, 0]
    torques, velocities = joint_torques(clip, model)
    forces = torques[:, dofs] / gear
    forces -= model.actuator_biasprm[actuators, 2] * gear * velocities[:, dofs]
    is_limited = model.actuator_forcelimited[actuators] != 0
    low, high = model.actuator_forcerange[actuators].T
    return np.asarray(np.where(is_limited, forces.clip(low, high), forces) / gain)


def joint_torques(clip: MotionClip, model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Generalized forces of a motion of a `load_robot` model, and its smoothed velocities.

    Bodies on the floor are pushed by it within the cones of friction, so that the forces on the
    base, the first six columns, vanish as far as possible. Shapes: ``(frames, nv)``.
    """
    qpos = qpos_of(clip, model)
    window = min(round(_WINDOW_S * clip.fps), len(qpos) - 1) // 2 * 2 + 1
    velocities = savgol_filter(
        qvel_of(model, qpos, clip.fps), window, min(2, window - 1), axis=0, mode="nearest"
    )
    accelerations = np.gradient(velocities, 1.0 / clip.fps, axis=0)
    forces = np.zeros_like(velocities)
    weights = np.repeat([1.0, _TORQUE_WEIGHT], 3)
    for i, (data, bodies) in enumerate(posed(model, qpos)):
        data.qvel[:], data.qacc[:] = velocities[i], accelerations[i]
        mujoco.mj_comVel(model, data)
        mujoco.mj_passive(model, data)
        mujoco.mj_rne(model, data, 1, forces[i])
        forces[i] += model.dof_armature * data.qacc - data.qfrc_passive
        if len(pushes := _pushes(model, data, bodies)):
            effort = _CONTACT_WEIGHT * np.eye(len(pushes))
            wanted = np.concatenate((weights * forces[i, :6], np.zeros(len(pushes))))
            sizes, _ = nnls(np.vstack(((weights * pushes[:, :6]).T, effort)), wanted)
            forces[i] -= sizes @ pushes
    return forces, velocities


def _pushes(model: mujoco.MjModel, data: mujoco.MjData, bodies: np.ndarray) -> np.ndarray:
    """Generalized forces of unit forces along the edges of friction cones: ``(edges, nv)``."""
    pushes, jacobian = [], np.zeros((3, model.nv))
    for contact, pair in zip(data.contact, bodies, strict=True):
        if (body := pair.max()) == 0 or pair.min() > 0:
            continue
        mujoco.mj_jac(model, data, jacobian, None, contact.pos, body)
        normal, *tangents = contact.frame.reshape(3, 3)
        normal = normal if pair[0] == 0 else -normal
        for tangent in tangents:
            for side in (-1.0, 1.0):
                pushes.append((normal + side * contact.friction[0] * tangent) @ jacobian)
    return np.array(pushes).reshape(-1, model.nv)


def posed(model: mujoco.MjModel, qpos: np.ndarray) -> Iterator[tuple[mujoco.MjData, np.ndarray]]:
    """The robot at each of `qpos`, ``(frames, nq)``, and its contacts' bodies ``(contacts, 2)``.

    The centre of mass is ``data.subtree_com[0]``.
    """
    data, margins = mujoco.MjData(model), model.geom_margin.copy()
    floor = model.geom_bodyid == 0
    model.geom_margin[floor] = np.maximum(margins[floor], 2 * TOUCH)
    try:
        for data.qpos in qpos:
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_collision(model, data)
            yield data, model.geom_bodyid[data.contact.geom].reshape(-1, 2)
    finally:
        model.geom_margin[:] = margins
