"""A film of a robot in random poses, without gravity: whether axes and ranges are right."""

from __future__ import annotations

import mujoco
import numpy as np

from simtrain.robots.prepare import Prepared

_POSES, _SECONDS = 60, 1.5


class PosesFilm:
    """Moves from one pose to the next; its base stays where it is. See `simtrain.view.film`."""

    fps, end_seconds = 30.0, 0.0

    def __init__(self, prepared: Prepared, name: str) -> None:
        self.title, self._robot = name, prepared.robot
        self.model = prepared.spec.compile()
        self.data = mujoco.MjData(self.model)
        ids = [self.model.joint(joint).id for joint in prepared.robot.joints]
        limited = self.model.jnt_limited[ids, None] > 0
        low, high = np.where(limited, self.model.jnt_range[ids], (-np.pi, np.pi)).T
        drawn = np.random.default_rng(0).uniform(low, high, (_POSES, len(ids)))
        self._places, self._low, self._high = self.model.jnt_qposadr[ids], low, high
        self._home, self._poses = prepared.home, np.concatenate([drawn, drawn[:1]])
        self.frames = round(_POSES * _SECONDS * self.fps)

    def show(self, frame: int) -> list[str]:
        """See `Film.show`: the joints that are at an end of their range."""
        pose, part = divmod(frame / self.fps / _SECONDS, 1.0)
        before, after = self._poses[int(pose)], self._poses[int(pose) + 1]
        joints = before + (after - before) * min(1.0, 2.0 * part)
        self.data.qpos[:] = self._home
        self.data.qpos[self._places] = joints
        mujoco.mj_forward(self.model, self.data)
        touching = {
            tuple(self.model.body(int(self.model.geom_bodyid[g])).name for g in contact.geom)
            for contact in self.data.contact
        }
        lines = [f"pose {int(pose) + 1} of {_POSES}"]
        return lines + [f"{one} and {other} touch each other" for one, other in sorted(touching)]
