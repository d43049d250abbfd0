"""AMASS and SMPL-X files without a body model: the joints of a person of usual proportions.

The body models that give each person's own proportions have licences of their own. Here rotations
are applied to a skeleton in SMPL's T-pose, whose lengths are parts of the height of a person
(Winter, Biomechanics and Motor Control of Human Movement, figure 4.1).
"""

import numpy as np
from scipy.spatial.transform import Rotation

from simtrain.errors import ConfigError

SMPL_JOINTS = (
    "pelvis", "left_hip", "right_hip", "spine1", "left_knee", "right_knee", "spine2", "left_ankle",
    "right_ankle", "spine3", "left_foot", "right_foot", "neck", "left_collar", "right_collar",
    "head", "left_shoulder", "right_shoulder", "left_elbow", "right_elbow", "left_wrist",
    "right_wrist",
)  # fmt: skip
"""The first 22 joints of SMPL, SMPL-H and SMPL-X, in their order."""
SMPL_PARENTS = (-1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19)
_HEIGHT = 1.7  # m; which one does not matter, for the robot's size is its own
_OFFSETS = {  # of the left and the middle, parts of the height: to the left, up, ahead
    "hip": (0.05, -0.02, 0.0), "knee": (0.0, -0.245, 0.0), "ankle": (0.0, -0.246, 0.0),
    "foot": (0.0, -0.03, 0.08), "spine1": (0.0, 0.07, 0.0), "spine2": (0.0, 0.08, 0.0),
    "spine3": (0.0, 0.03, 0.0), "neck": (0.0, 0.13, 0.0), "collar": (0.04, 0.08, 0.0),
    "head": (0.0, 0.05, 0.0), "shoulder": (0.075, 0.02, 0.0), "elbow": (0.16, 0.0, 0.0),
    "wrist": (0.146, 0.0, 0.0), "pelvis": (0.0, 0.0, 0.0),
}  # fmt: skip


def amass_positions(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Joints of an AMASS file, m, in its axes, ``(frames, 22, 3)``."""
    if "poses" in arrays:
        poses = arrays["poses"]
    else:
        poses = np.concatenate((arrays["root_orient"], arrays["pose_body"]), axis=1)
    frames, count = len(arrays["trans"]), len(SMPL_JOINTS)
    if poses.ndim != 2 or poses.shape[0] != frames or poses.shape[1] < 3 * count:
        raise ConfigError(
            f"its poses are {poses.shape}; they must be ({frames}, {3 * count} or more)"
        )
    turns = [Rotation.from_rotvec(poses[:, 3 * j : 3 * j + 3]) for j in range(count)]
    places = [np.asarray(arrays["trans"], dtype=float)]
    for joint in range(1, count):
        parent, name = SMPL_PARENTS[joint], SMPL_JOINTS[joint]
        offset = _HEIGHT * np.array(_OFFSETS[name.split("_")[-1]])
        if name.startswith("right"):
            offset[0] *= -1.0
        places.append(places[parent] + turns[parent].apply(offset))
        turns[joint] = turns[parent] * turns[joint]
    return np.stack(places, axis=1)
