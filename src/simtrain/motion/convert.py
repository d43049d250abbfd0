"""A retargeted motion as CSV, resampled: from a row a frame to a motion.

A row is the root's position, m, and quaternion, x y z w, then the joints, rad, as LAFAN1's
retargeted G1 motions have them. A first row of text names the columns of joints.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation, Slerp

from simtrain.errors import ConfigError, config_errors_of
from simtrain.files import damage_as_config_error, read_file
from simtrain.motion.clip import check_names, joint_names

_ROOT = 7  # columns before the joints
_LARGEST = 1e6  # m or rad


def read_csv(path: Path, model: mujoco.MjModel, names: Sequence[str] = ()) -> np.ndarray:
    """The positions of a `load_robot` model in a CSV: float64, ``(frames, nq)``, w first.

    `names` are those of its columns of joints; else its first row's, else the model's order.
    ConfigError, with the line, for a file of another form.
    """
    data, expected = read_file(path, "the motion"), joint_names(model)
    with config_errors_of(f"the motion {path}"), damage_as_config_error("it is no CSV"):
        rows = [row for row in csv.reader(data.decode("utf-8-sig").splitlines()) if row]
        header = rows.pop(0) if rows and not any(map(_is_number, rows[0])) else []
        names = tuple(names or [name.strip() for name in header[_ROOT:]] or expected)
        check_names("joint", names, expected)
        size = _ROOT + len(names)
        for number, row in enumerate(rows, start=1):
            if len(row) != size:
                text = f"{len(row)} columns; it must have 7 and {len(names)} joints"
                raise ConfigError(f"row {number} has {text}")
            if not all(map(_is_number, row)):
                raise ConfigError(f"row {number} has what is no number, or too large a one")
        if len(rows) < 2:
            raise ConfigError(f"it has {len(rows)} frames; it must have 2 or more")
        values = np.array(rows, dtype=float)
        lengths = np.linalg.norm(values[:, 3:_ROOT], axis=1)
        worst = int(np.abs(lengths - 1.0).argmax())
        if abs(lengths[worst] - 1.0) > 1e-2:
            text = f"the quaternion of row {worst + 1} has length {lengths[worst]:.4g}, not 1"
            raise ConfigError(text)
    quats = values[:, [6, 3, 4, 5]] / lengths[:, None]
    joints = values[:, _ROOT:][:, [names.index(name) for name in expected]]
    return np.concatenate((values[:, :3], quats, joints), axis=1)


def resample(
    qpos: np.ndarray, fps: float, output_fps: float, start: float = 0.0, end: float | None = None
) -> np.ndarray:
    """Positions ``(frames, nq)`` at another rate, linearly and by slerp, from `start` to `end`, s.

    ConfigError if nothing lies between them.
    """
    last = (len(qpos) - 1) / fps
    end = last if end is None else end
    if not 0.0 <= start < end <= last + 1e-9:
        text = f"--start {start:g} and --end {end:g} must lie in this order in 0 to {last:g} s"
        raise ConfigError(text)
    # A millionth of a frame, so that rounding does not lose the last one.
    frames = int((end - start) * output_fps + 1e-6) + 1
    if frames < 2:
        raise ConfigError(f"{end - start:g} s are less than a frame at --output-fps {output_fps:g}")
    times = np.minimum(start + np.arange(frames) / output_fps, last)
    given = np.arange(len(qpos)) / fps
    resampled = np.stack([np.interp(times, given, column) for column in qpos.T], axis=1)
    slerp = Slerp(given, Rotation.from_quat(qpos[:, 3:_ROOT], scalar_first=True))
    resampled[:, 3:_ROOT] = slerp(times).as_quat(scalar_first=True)
    return resampled


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < _LARGEST
    except ValueError:
        return False
