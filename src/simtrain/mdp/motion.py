"""The command to follow recorded motions; `simtrain.mdp.tracking` has the other terms for it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from simtrain.env.commands import CommandTerm
from simtrain.env.names import find_base, find_joints
from simtrain.errors import ConfigError
from simtrain.lazy_imports import torch
from simtrain.mdp.draws import Draws
from simtrain.mdp.events import by_axis
from simtrain.mdp.rotations import (
    quat_conjugate,
    quat_from_euler,
    quat_mul,
    rotate,
    yaw_rotation,
)
from simtrain.mirror import mirrored_as
from simtrain.motion.clip import MotionClip, joint_names
from simtrain.registry import find_beside_tasks

if TYPE_CHECKING:
    import mujoco
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Bounds, Entities, Joints
    from simtrain.mdp.events import Ranges

Sampling = Literal["adaptive", "uniform", "start"]


def _each_joint_twice(reflection: Any, params: Any) -> list[tuple[int, float]]:
    names = tuple(re.escape(name) for name in joint_names(reflection.model))
    places = reflection.partners(reflection.resolved({"joints": names})["joints"])
    return [*places, *((len(places) + place, sign) for place, sign in places)]


@mirrored_as(_each_joint_twice)
@dataclass(eq=False, repr=False)
class MotionCommand(CommandTerm):
    """Follow motions: [positions, velocities] that the joints are to have after this step.

    `files` are motions of this robot at the control rate, see `simtrain.motion`; a path that is not
    there is looked for beside the task's model. An episode begins in a frame that is drawn, in the
    robot's state there plus an offset: of the base, within `pose_range`, m and rad, and
    `velocity_range`, m/s and rad/s, along and about the world's axes, and of joints, within
    `joint_position_range`, rad. `bodies` are those that are compared, `anchor` the one among them
    that targets are carried along with.

    Frames are drawn evenly (``uniform``), or where episodes failed (``adaptive``): a motion has
    bins of `bin_s` seconds, of which one is drawn by its share of the failures, a moving average
    that takes up `failure_rate` of each step's, with a part `uniform_share` spread evenly. A
    failure also counts for the `kernel` - 1 bins before, each by `kernel_decay` less than the next.
    ``start`` begins each environment's own motion at its first frame, and exactly there. So do
    evaluation and viewers.
    """

    is_driven = False
    in_evaluation: ClassVar[dict[str, Any]] = {"sampling": "start"}

    env: InitVar[Env]
    files: tuple[str, ...]
    bodies: Entities
    anchor: str
    sampling: Sampling = "adaptive"
    pose_range: Ranges | None = None
    velocity_range: Ranges | None = None
    joint_position_range: Bounds = (0.0, 0.0)
    bin_s: float = 1.0
    uniform_share: float = 0.1
    failure_rate: float = 0.001
    kernel: int = 1
    kernel_decay: float = 0.8

    def __post_init__(self, env: Env) -> None:
        self._env, device = env, env.device
        clips = _load(self.files, env.model, env.step_dt)
        self.clips = tuple(clip.name for clip in clips)
        """Names of the motions."""
        self._names = clips[0].joint_names
        self._joints = find_joints(env.model, self._names, device)
        self.anchor_index = self.bodies.names.index(self.anchor)
        """Its place among the bodies."""
        self._frames = _Frames(clips, self.bodies.names, env)
        lengths = torch.tensor([clip.frames for clip in clips])
        ends = lengths.cumsum(0)
        of_frame = torch.repeat_interleave(torch.arange(len(clips)), lengths)
        self._clip_of = of_frame.to(device)
        self._firsts, self._lasts = (ends - lengths).to(device), (ends - 1).to(device)
        self._bins = _Bins(clips, self.bin_s, self.kernel, self.kernel_decay, device)
        self._failures = env.variable("failures", torch.zeros(len(self._bins.starts)))
        self._frame = env.buffer("frame", reset=None, dtype=torch.long)
        self.command = env.buffer("command", (2 * len(self._names),), reset=None)
        self._offset = Draws(
            env, by_axis(self.pose_range or {}), by_axis(self.velocity_range or {})
        )

    @staticmethod
    def check(model: mujoco.MjModel, step_dt: float, **params: Any) -> None:
        """Raise ConfigError for parameters that cannot be, and files that are not of `model`."""
        if params["anchor"] not in params["bodies"].names:
            there = ", ".join(params["bodies"].names)
            raise ConfigError(f"the anchor {params['anchor']!r} is none of the bodies: {there}")
        if not params["files"]:
            raise ConfigError("files needs one or more motions")
        if params.get("sampling", "adaptive") not in ("adaptive", "uniform", "start"):
            choices = "adaptive, uniform or start"
            raise ConfigError(f"sampling is {params['sampling']!r}; it must be {choices}")
        for name, low, high in (
            ("bin_s", 1e-3, math.inf),
            ("uniform_share", 0.0, 1.0),
            ("failure_rate", 1e-9, 1.0),
            ("kernel", 1, 1000),
            ("kernel_decay", 0.0, 1.0),
        ):
            if name in params and not low <= params[name] <= high:
                raise ConfigError(f"{name} is {params[name]}; it must be from {low:g} to {high:g}")
        for ranges in ("pose_range", "velocity_range"):
            by_axis(params.get(ranges) or {})
        find_base(model)
        _load(params["files"], model, step_dt)

    def resample(self, mask: Tensor) -> None:
        """Begin anew where `mask`: draw a frame, and put the robot there, in place."""
        frame = self._draw(mask)
        torch.where(mask, frame, self._frame, out=self._frame)
        self.put(mask)

    def update(self) -> None:
        """Go on to the frame that the next step is to reach, in place."""
        torch.minimum(self._frame + 1, self._lasts[self._clip_of[self._frame]], out=self._frame)
        frame = self._frame
        torch.cat(
            (self._frames.joint_pos[frame], self._frames.joint_vel[frame]), 1, out=self.command
        )

    def put(self, mask: Tensor, *, exact: bool = False) -> None:
        """Write the present frame's state into the simulation where `mask`, in place.

        Plus what is drawn from the ranges, unless `exact`; nothing is with the sampling ``start``.
        """
        env, base, frames, frame = self._env, self._env.base, self._frames, self._frame
        position, turn = frames.root_pos[frame], frames.root_quat[frame]
        linear, angular = frames.root_lin_vel[frame], frames.root_ang_vel[frame]
        joints = frames.joint_pos[frame]
        if not exact and self.sampling != "start":
            pose, velocity = self._offset.draw()
            position = position + pose[:, :3]
            turn = quat_mul(quat_from_euler(*pose[:, 3:].unbind(1)), turn)
            linear, angular = linear + velocity[:, :3], angular + velocity[:, 3:]
            joints = joints + torch.empty_like(joints).uniform_(*self.joint_position_range)
        if env.terrain is not None:
            position = position + env.terrain.origins
        pose = torch.cat((position, turn), dim=1)
        env.sim.write("qpos", pose, mask, slice(base.position.start, base.quaternion.stop))
        twist = torch.cat((linear, rotate(quat_conjugate(turn), angular)), dim=1)
        env.sim.write("qvel", twist, mask, slice(base.linear.start, base.angular.stop))
        env.sim.write("qpos", joints, mask, self._joints.qpos)
        env.sim.write("qvel", frames.joint_vel[frame], mask, self._joints.qvel)

    def reference(self, joints: Joints) -> Callable[[], Tensor]:
        """See `CommandTerm.reference`: where the motion's joints are."""
        if unknown := [name for name in joints.names if name not in self._names]:
            raise ConfigError(f"the motion does not say where {unknown[0]!r} is")
        places = torch.tensor([self._names.index(name) for name in joints.names])
        places, initial = places.to(self._env.device), self._env.initial_qpos[joints.qpos]
        return lambda: self.command[:, places] - initial

    def describe(self) -> dict[str, Any]:
        """See `CommandTerm.describe`: the files of the motions, by name, and their anchor."""
        files = {name: f"motion_{name}.npz" for name in self.clips}
        return {"motions": files, "anchor": self.anchor}

    def exported_files(self) -> dict[str, bytes]:
        """See `CommandTerm.exported_files`: the motions, with names."""
        clips = _load(self.files, self._env.model, self._env.step_dt)
        return {f"motion_{clip.name}.npz": clip.packed() for clip in clips}

    def is_over(self) -> Tensor:
        """Whether the motion's last frame is the present one, boolean ``(num_envs,)``."""
        return self._frame == self._lasts[self._clip_of[self._frame]]

    def clip(self) -> Tensor:
        """Which of `clips` each environment follows, long ``(num_envs,)``."""
        return self._clip_of[self._frame]

    def anchor_pose(self) -> tuple[Tensor, Tensor]:
        """The motion's anchor in the world: position, ``(num_envs, 3)``, and quaternion."""
        position, turn = self.poses()
        return position[:, self.anchor_index], turn[:, self.anchor_index]

    def robot_anchor_pose(self) -> tuple[Tensor, Tensor]:
        """The robot's anchor in the world: position, ``(num_envs, 3)``, and quaternion."""
        position, turn = self.robot_poses()
        return position[:, self.anchor_index], turn[:, self.anchor_index]

    def robot_poses(self) -> tuple[Tensor, Tensor]:
        """The robot's bodies: positions, ``(num_envs, bodies, 3)``, and quaternions."""
        env, ids = self._env, self.bodies.ids
        positions = env.once((self, "robot positions"), lambda: env.bind("xpos")[:, ids])
        return positions, env.once((self, "robot turns"), lambda: env.bind("xquat")[:, ids])

    def poses(self) -> tuple[Tensor, Tensor]:
        """The motion's bodies in the world: positions, ``(num_envs, bodies, 3)``, quaternions."""
        env, frames = self._env, self._frames
        position = env.once((self, "positions"), lambda: frames.body_pos[self._frame])
        if env.terrain is not None:
            position = position + env.terrain.origins.unsqueeze(1)
        return position, env.once((self, "turns"), lambda: frames.body_quat[self._frame])

    def targets(self) -> tuple[Tensor, Tensor]:
        """The motion's bodies carried along with the robot: positions and quaternions."""
        both = self._env.once((self, "targets"), self._carried_along)
        return both[..., :3], both[..., 3:]

    def velocities(self) -> tuple[Tensor, Tensor]:
        """The motion's bodies in the world: of their origins, m/s, and angular, rad/s."""
        return self._frames.body_lin_vel[self._frame], self._frames.body_ang_vel[self._frame]

    def robot_velocities(self) -> tuple[Tensor, Tensor]:
        """The robot's bodies in the world: of their origins, m/s, and angular, rad/s."""
        env, ids = self._env, self.bodies.ids
        # MuJoCo's are at the centre of mass of the robot.
        angular, linear = env.bind("cvel")[:, ids].split(3, dim=2)
        center = env.bind("subtree_com")[:, env.base.body].unsqueeze(1)
        arm = env.bind("xpos")[:, ids] - center
        return linear + torch.linalg.cross(angular, arm), angular

    def joint_vel_error(self) -> Tensor:
        """Norm of the joints' velocities minus the motion's, rad/s, ``(num_envs,)``."""
        error = self._env.bind("qvel")[:, self._joints.qvel] - self._frames.joint_vel[self._frame]
        norm: Tensor = torch.linalg.vector_norm(error, dim=1)
        return norm

    def caption(self, index: int) -> str:
        """See `CommandTerm.caption`: the motion's name, and how far it is."""
        clip = int(self.clip()[index])
        seconds = (int(self._frame[index]) - int(self._firsts[clip])) * self._env.step_dt
        return f"{self.clips[clip]} {seconds:.2f} s"

    def ghost(self, index: int) -> np.ndarray:
        """See `CommandTerm.ghost`: the motion's own place in the world."""
        base, frames, frame = self._env.base, self._frames, self._frame[index]
        qpos, position = self._env.initial_qpos.clone(), frames.root_pos[frame]
        if self._env.terrain is not None:
            position = position + self._env.terrain.origins[index]
        qpos[base.position], qpos[base.quaternion] = position, frames.root_quat[frame]
        qpos[self._joints.qpos] = frames.joint_pos[frame]
        return qpos.cpu().numpy()

    def _draw(self, mask: Tensor) -> Tensor:
        """A frame for each environment, and what failed counted, in place."""
        env, bins = self._env, self._bins
        if self.sampling == "start":
            return self._firsts[torch.arange(env.num_envs, device=env.device) % len(self.clips)]
        random = torch.rand(2, env.num_envs, device=env.device)
        if self.sampling == "uniform":
            shares = bins.frames / bins.frames.sum()
        else:
            failed = (mask & env.terminations.terminated).float()
            counts = torch.zeros_like(self._failures).index_add_(
                0, bins.of_frame[self._frame], failed
            )
            self._failures.lerp_(counts, self.failure_rate)
            spread = bins.kernel @ self._failures + torch.finfo().tiny
            shares = spread * ((1.0 - self.uniform_share) / spread.sum())
            shares = shares + self.uniform_share / len(shares)
        drawn = torch.searchsorted(shares.cumsum(0), random[0])
        drawn = drawn.clamp_(max=len(shares) - 1)
        return bins.starts[drawn] + (random[1] * bins.frames[drawn]).long()

    def _carried_along(self) -> Tensor:
        (position, turn), (own_position, own_turn) = self.poses(), self.robot_anchor_pose()
        anchor, anchor_turn = position[:, self.anchor_index], turn[:, self.anchor_index]
        heading = yaw_rotation(quat_mul(own_turn, quat_conjugate(anchor_turn))).unsqueeze(1)
        place = torch.cat((own_position[:, :2], anchor[:, 2:]), dim=1).unsqueeze(1)
        carried = place + rotate(heading, position - anchor.unsqueeze(1))
        return torch.cat((carried, quat_mul(heading, turn)), dim=2)


class _Frames:
    """All motions' frames, one after the other, on the device."""

    def __init__(self, clips: list[MotionClip], bodies: tuple[str, ...], env: Env) -> None:
        def joined(field: str, columns: list[int] | None = None) -> Tensor:
            arrays = [getattr(clip, field) for clip in clips]
            rows = np.concatenate([a if columns is None else a[:, columns] for a in arrays])
            return torch.as_tensor(rows, dtype=torch.float32).to(env.device)

        names = clips[0].body_names
        chosen = [names.index(name) for name in bodies]
        root = [names.index(env.model.body(env.base.body).name)]
        self.joint_pos, self.joint_vel = joined("joint_pos"), joined("joint_vel")
        self.body_pos, self.body_quat = joined("body_pos_w", chosen), joined("body_quat_w", chosen)
        self.body_lin_vel = joined("body_lin_vel_w", chosen)
        self.body_ang_vel = joined("body_ang_vel_w", chosen)
        self.root_pos, self.root_quat = (
            joined(f, root)[:, 0] for f in ("body_pos_w", "body_quat_w")
        )
        self.root_lin_vel = joined("body_lin_vel_w", root)[:, 0]
        self.root_ang_vel = joined("body_ang_vel_w", root)[:, 0]


class _Bins:
    """Parts of about equal length that episodes may begin in, without each motion's last frame."""

    def __init__(
        self,
        clips: list[MotionClip],
        seconds: float,
        kernel: int,
        decay: float,
        device: torch.device,
    ) -> None:
        starts: list[int] = []
        counts: list[int] = []
        of_frame: list[int] = []
        first, before = 0, 0
        weights = []
        for clip in clips:
            number = max(1, round((clip.frames - 1) / (seconds * clip.fps)))
            edges = np.linspace(0, clip.frames - 1, number + 1).astype(int)
            starts += [first + int(edge) for edge in edges[:-1]]
            counts += np.diff(edges).tolist()
            bins = np.minimum(
                np.searchsorted(edges, np.arange(clip.frames), "right") - 1, number - 1
            )
            of_frame += (before + bins).tolist()
            later = np.arange(number) - np.arange(number)[:, None]  # from a bin to one that failed
            weights.append(
                np.where((later >= 0) & (later < kernel), decay ** np.maximum(later, 0), 0)
            )
            first, before = first + clip.frames, before + number
        self.starts, self.of_frame = (torch.tensor(v, device=device) for v in (starts, of_frame))
        self.frames = torch.tensor(counts, dtype=torch.float32, device=device)
        blocks = [torch.tensor(w, dtype=torch.float32) for w in weights]
        self.kernel = torch.block_diag(*blocks).to(device)


def _load(files: tuple[str, ...], model: mujoco.MjModel, step_dt: float) -> list[MotionClip]:
    """The motions in `files`; ConfigError if one does not fit the model or the control rate."""
    clips = [MotionClip.load(find_beside_tasks(file), model) for file in files]
    names = [clip.name for clip in clips]
    if double := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two of the motions are called {double[0]!r}; rename a file")
    for file, clip in zip(files, clips, strict=True):
        if abs(clip.fps * step_dt - 1.0) > 1e-4:
            rates = f"{clip.fps:g} frames a second, and the task {1.0 / step_dt:g} steps"
            raise ConfigError(f"{file} has {rates}; `uv run motion convert` resamples")
    return clips
