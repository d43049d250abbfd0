"""The command to follow recorded motions; the other terms for it are in `tracking.terms`."""

from __future__ import annotations

import re
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from simtrain.env.commands import CommandTerm, Frame
from simtrain.env.control.transmission import find_driving
from simtrain.env.names import find_base, find_joints
from simtrain.env.randomness import Draws
from simtrain.env.reading import mirrored_as
from simtrain.errors import ConfigError
from simtrain.files import find_beside_tasks
from simtrain.limits import Fraction, Limits
from simtrain.mdp.events import Ranges, by_axis
from simtrain.mdp.robot_state import computed_once
from simtrain.mdp.rotations import (
    about_vertical,
    quat_conjugate,
    quat_from_euler,
    quat_mul,
    rotate,
)
from simtrain.motion.clip import MotionClip, joint_names

if TYPE_CHECKING:
    from collections.abc import Callable

    import mujoco
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Bounds, Entities, Joints

Sampling = Literal["adaptive", "uniform", "start"]
_FEEDFORWARD: WeakKeyDictionary[mujoco.MjModel, dict[Any, np.ndarray]] = WeakKeyDictionary()
_FRAME_LENGTH = 0.2  # of the axes that show a body's target, m


def _each_joint_twice(reflection: Any, params: Any) -> list[tuple[int, float]]:
    names = tuple(re.escape(name) for name in joint_names(reflection.model))
    places = reflection.partners(reflection.resolved({"joints": names})["joints"])
    return [*places, *((len(places) + place, sign) for place, sign in places)]


@mirrored_as(_each_joint_twice)
@dataclass(eq=False, repr=False)
class MotionCommand(CommandTerm):
    """Follow motions: target [positions, velocities] of the joints after this step.

    `files` are motions of this robot at the control rate, see `simtrain.motion`; a path that does
    not exist is searched in the folder of the task's model. An episode starts in a random frame, in
    the state of the motion plus an offset: for the base within `pose_range`, m and rad, and
    `velocity_range`, m/s and rad/s, along and about the world's axes, and for joints within
    `joint_position_range`, rad. `bodies` are the compared bodies; `anchor` is the one of them with
    which targets are moved along.

    With `feedforward`, actions with this command as their `reference` are also relative to what
    the servos need for the torques of the motion, see `simtrain.motion.forces`.

    Frames are drawn uniformly (``uniform``), or more often where episodes failed (``adaptive``): a
    motion is divided into bins of `bin_s` seconds. A bin is drawn in proportion to its failure
    rate, the number of failures divided by the control steps in it, and a fraction `uniform_share`
    of the draws is uniform. Both numbers are moving averages with the factor `failure_rate` for
    each step. A failure also counts for the `kernel` - 1 previous bins, each with a weight smaller
    by `kernel_decay`.
    With ``start``, each environment starts its motion at the first frame, without an offset.
    Evaluations and viewers use ``start``, and also follow the motions in the files `held_out`, in
    which no training episode starts.
    """

    is_driven = False
    in_evaluation: ClassVar[dict[str, Any]] = {"sampling": "start", "follow_held_out": True}

    env: InitVar[Env]
    files: tuple[str, ...]
    bodies: Entities
    anchor: str
    held_out: tuple[str, ...] = ()
    follow_held_out: bool = False
    sampling: Sampling = "adaptive"
    pose_range: Ranges | None = None
    velocity_range: Ranges | None = None
    joint_position_range: Bounds = (0.0, 0.0)
    feedforward: bool = False
    bin_s: Annotated[float, Limits(1e-3)] = 1.0
    uniform_share: Fraction = 0.1
    failure_rate: Annotated[float, Limits(1e-9, 1.0)] = 0.001
    kernel: Annotated[int, Limits(1, 1000)] = 1
    kernel_decay: Fraction = 0.8

    def __post_init__(self, env: Env) -> None:
        self._env, device = env, env.device
        files = (*self.files, *self.held_out)
        self._clips = clips = _load(files, env.model, env.step_dt)
        self.clips = tuple(clip.name for clip in clips)
        """Names of the motions, those held out last."""
        self._followed = len(clips if self.follow_held_out else self.files)
        self._names = clips[0].joint_names
        self._joints = find_joints(env.model, self._names, device)
        self.anchor_index = self.bodies.names.index(self.anchor)
        """Index of the anchor among the bodies."""
        ids = [env.model.body(name).id for name in self.bodies.names]
        self._ids = torch.tensor(ids, device=device)
        root, places = env.base.body - 1, [i - 1 for i in ids]  # motions are without the world
        self._of_joints = _Table([(clip.joint_pos, clip.joint_vel) for clip in clips], device)
        self._of_root = _Table([clip.of_bodies(root) for clip in clips], device)
        self._of_bodies = _Table([_with_matrices(*c.of_bodies(places)) for c in clips], device)
        lengths = torch.tensor(frames := [clip.frames for clip in clips])
        ends = lengths.cumsum(0)
        of_frame = torch.repeat_interleave(torch.arange(len(clips)), lengths)
        self._clip_of = of_frame.to(device)
        self._starts, self._ends = (ends - lengths).to(device), (ends - 1).to(device)
        trained, size = frames[: len(self.files)], self.bin_s / env.step_dt
        self._bins = _Bins(trained, size, self.kernel, self.kernel_decay, device)
        # Failures and control steps in each bin.
        self._failures = env.variable("failures", torch.zeros(2, len(self._bins.starts)))
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
            raise ConfigError(f"the anchor {params['anchor']!r} is not one of the bodies: {there}")
        if not params["files"]:
            raise ConfigError("files needs one or more motions")
        for ranges in ("pose_range", "velocity_range"):
            by_axis(params.get(ranges) or {})
        find_base(model)
        _load((*params["files"], *params.get("held_out", ())), model, step_dt)

    def resample(self, mask: Tensor) -> None:
        """Start new episodes in `mask`: draw a frame and set the robot to it, in place."""
        frame = self._draw(mask)
        torch.where(mask, frame, self._frame, out=self._frame)
        self.put(mask)

    def update(self) -> None:
        """Advance to the target frame of the next step, in place."""
        torch.minimum(self._frame + 1, self._ends[self.clip()], out=self._frame)
        torch.index_select(self._of_joints.rows, 0, self._frame, out=self.command)

    def put(self, mask: Tensor) -> None:
        """Write the state of the present frame to the simulations in `mask`, in place.

        An offset from the ranges is added, except with the sampling ``start``.
        """
        env, base = self._env, self._env.base
        position, turn, linear, angular = self._of_root.at(self._frame)
        joints, joint_vel = self._of_joints.at(self._frame)
        if self.sampling != "start":
            pose, velocity = self._offset.draw()
            position = position + pose[:, :3]
            turn = quat_mul(quat_from_euler(*pose[:, 3:].unbind(1)), turn)
            linear, angular = linear + velocity[:, :3], angular + velocity[:, 3:]
            joints = joints + torch.empty_like(joints).uniform_(*self.joint_position_range)
        if env.terrain is not None:
            position = position + env.terrain.origins
        pose = torch.cat((position, turn), dim=1)
        env.sim.write("qpos", pose, mask, base.pose)
        twist = torch.cat((linear, rotate(quat_conjugate(turn), angular)), dim=1)
        env.sim.write("qvel", twist, mask, base.twist)
        env.sim.write("qpos", joints, mask, self._joints.qpos)
        env.sim.write("qvel", joint_vel, mask, self._joints.qvel)

    def reference(self, joints: Joints) -> Callable[[], Tensor]:
        """See `CommandTerm.reference`: joint positions of the motion, maybe with `feedforward`."""
        if unknown := [name for name in joints.names if name not in self._names]:
            raise ConfigError(f"the motion does not say where {unknown[0]!r} is")
        env = self._env
        places = torch.tensor([self._names.index(name) for name in joints.names])
        targets, initial = self._of_joints.rows[:, places], env.initial_qpos[joints.qpos]
        if self.feedforward:
            servos = find_driving(env.model, "joint", joints.names, "feedforward", "position")
            targets = targets + torch.as_tensor(self._feedforward(servos)).to(targets)
            # Initial targets may differ from the positions, to hold the robot's weight.
            initial = env.initial_targets[servos]
        targets = targets - initial
        return lambda: targets.index_select(0, self._frame)

    def _feedforward(self, servos: list[int]) -> np.ndarray:
        """Offsets of all motions, ``(frames, servos)``; an export makes the same command often."""
        from simtrain.motion.forces import servo_offsets  # SciPy's optimization loads slowly

        model, key = self._env.model, (self.files, self.held_out, *servos)
        known = _FEEDFORWARD.setdefault(model, {})
        if key not in known:
            known[key] = np.concatenate([servo_offsets(c, model, servos) for c in self._clips])
        return known[key]

    def describe(self) -> dict[str, Any]:
        """See `CommandTerm.describe`: the anchor, and the first frame of each motion."""
        starts = {}
        for name, frame in zip(self.clips, self._starts, strict=True):
            qpos = self._qpos(frame.view(1)).tolist()
            starts[name] = {"memory": {"frame": [int(frame)]}, "qpos": qpos}
        return {"places": [self.anchor], "starts": starts}

    def is_over(self) -> Tensor:
        """Whether the present frame is the last one of the motion, boolean ``(num_envs,)``."""
        return self._frame == self._ends[self.clip()]

    def clip(self) -> Tensor:
        """Index in `clips` of the motion of each environment, long ``(num_envs,)``."""
        return self._clip_of[self._frame]

    def poses(self) -> tuple[Tensor, Tensor]:
        """The motion's bodies in the world: positions, ``(num_envs, bodies, 3)``, and rotations.

        Rotations are matrices, ``(num_envs, bodies, 3, 3)``.
        """
        return self._now()[:2]

    @computed_once
    def robot_poses(self) -> tuple[Tensor, Tensor]:
        """The robot's bodies in the world, see `poses`."""
        return self._of("xpos"), self._of("xmat")

    @computed_once
    def targets(self) -> tuple[Tensor, Tensor]:
        """The motion's bodies, moved along with the robot, see `poses`."""
        at, (position, turn) = self.anchor_index, self.poses()
        own_position, own_turn = (part[:, at] for part in self.robot_poses())
        # The first column of the rotation from the motion's anchor to the robot's.
        ahead = (own_turn[:, :2] * turn[:, at, :1]).sum(dim=2)
        heading = about_vertical(torch.atan2(ahead[:, 1], ahead[:, 0]))
        place = torch.cat((own_position[:, :2], position[:, at, 2:]), dim=1).unsqueeze(1)
        carried = (position - position[:, at : at + 1]) @ heading.mT + place
        return carried, heading.unsqueeze(1) @ turn

    def velocities(self) -> tuple[Tensor, Tensor]:
        """Velocities of the motion's bodies in the world: of their origins, m/s; angular, rad/s."""
        return self._now()[2:]

    @computed_once
    def robot_velocities(self) -> tuple[Tensor, Tensor]:
        """Velocities of the robot's bodies in the world, see `velocities`."""
        # MuJoCo's are at the centre of mass of the robot.
        angular, linear = self._of("cvel").split(3, dim=2)
        center = self._env.bind("subtree_com")[:, self._env.base.body].unsqueeze(1)
        return linear + torch.linalg.cross(angular, self.robot_poses()[0] - center), angular

    def joint_vel_error(self) -> Tensor:
        """Root mean square of the joints' velocities minus the motion's, rad/s, ``(num_envs,)``."""
        error = self._env.bind("qvel")[:, self._joints.qvel] - self._of_joints.at(self._frame)[1]
        return error.square().mean(dim=1).sqrt()

    def caption(self, index: int) -> str:
        """See `CommandTerm.caption`: the name and the time of the motion."""
        clip = int(self.clip()[index])
        seconds = (int(self._frame[index]) - int(self._starts[clip])) * self._env.step_dt
        return f"{self.clips[clip]} {seconds:.2f} s"

    def ghost(self, index: int) -> np.ndarray:
        """See `CommandTerm.ghost`: the pose of the motion in the world."""
        qpos = self._qpos(self._frame[index : index + 1])
        if self._env.terrain is not None:
            qpos[self._env.base.position] += self._env.terrain.origins[index]
        return qpos.cpu().numpy()

    def _qpos(self, frame: Tensor) -> Tensor:
        """The robot's ``qpos`` in a `frame`, ``(1,)``."""
        base = self._env.base
        qpos, (position, turn, *_) = self._env.initial_qpos.clone(), self._of_root.at(frame)
        qpos[base.position], qpos[base.quaternion] = position[0], turn[0]
        qpos[self._joints.qpos] = self._of_joints.at(frame)[0][0]
        return qpos

    def markers(self, index: int) -> list[Frame]:
        """See `CommandTerm.markers`: the targets of the bodies, see `targets`."""
        from scipy.spatial.transform import Rotation

        places, matrices = (part[index].cpu().numpy() for part in self.targets())
        turns = Rotation.from_matrix(matrices).as_quat(scalar_first=True)
        poses = zip(places.tolist(), turns.tolist(), strict=True)
        return [Frame(tuple(place), tuple(turn), _FRAME_LENGTH) for place, turn in poses]

    def _draw(self, mask: Tensor) -> Tensor:
        """Draw a frame for each environment; counts failures, in place."""
        env, bins = self._env, self._bins
        if self.sampling == "start":
            return self._starts[torch.arange(env.num_envs, device=env.device) % self._followed]
        random = torch.rand(2, env.num_envs, device=env.device)
        if self.sampling == "uniform":
            shares = bins.frames / bins.frames.sum()
        else:
            failed = (mask & env.terminations.terminated).float()
            counts = torch.zeros_like(self._failures)
            here = torch.stack((failed, torch.ones_like(failed)))
            counts.index_add_(1, bins.of_frame[self._frame], here)
            self._failures.lerp_(counts, self.failure_rate)
            failures, steps = self._failures
            tiny = torch.finfo().tiny
            spread = bins.kernel @ (failures / (steps + tiny)) + tiny
            shares = spread * ((1.0 - self.uniform_share) / spread.sum())
            shares = shares + self.uniform_share / len(shares)
        drawn = torch.searchsorted(shares.cumsum(0), random[0]).clamp_(max=len(shares) - 1)
        return bins.starts[drawn] + (random[1] * bins.frames[drawn]).long()

    @computed_once
    def _now(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The motion's bodies in the present frame: `poses` and `velocities`."""
        position, turn, linear, angular = self._of_bodies.at(self._frame)
        if self._env.terrain is not None:
            position = position + self._env.terrain.origins.unsqueeze(1)
        return position, turn, linear, angular

    def _of(self, field: str) -> Tensor:
        """A field of the robot's bodies; ``xmat`` as 3 x 3 matrices."""
        rows = self._env.bind(field).index_select(1, self._ids)
        return rows.view(len(rows), -1, 3, 3) if field == "xmat" else rows


class _Table:
    """Arrays of the frames of motions, one motion after the other, on the device."""

    def __init__(self, arrays: list[tuple[np.ndarray, ...]], device: torch.device) -> None:
        joined = [torch.as_tensor(np.concatenate(parts)) for parts in zip(*arrays, strict=True)]
        self._shapes = [part.shape[1:] for part in joined]
        self.rows = torch.cat([part.flatten(1) for part in joined], dim=1).to(device)

    def at(self, frame: Tensor) -> list[Tensor]:
        """The arrays' rows for each environment, whose frame is `frame`, ``(num_envs,)``."""
        parts = self.rows.index_select(0, frame).split([s.numel() for s in self._shapes], dim=1)
        return [p.unflatten(1, shape) for p, shape in zip(parts, self._shapes, strict=True)]


def _with_matrices(
    pos: np.ndarray, quat: np.ndarray, *velocities: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The arrays with rotation matrices, ``(frames, bodies, 3, 3)``, for quaternions."""
    from scipy.spatial.transform import Rotation  # slow to import, and only motions need it

    rotation = Rotation.from_quat(quat.reshape(-1, 4), scalar_first=True)
    matrices = rotation.as_matrix().astype(np.float32).reshape(*quat.shape[:2], 3, 3)
    return pos, matrices, *velocities


class _Bins:
    """Parts of about equal length that episodes may begin in, without each motion's last frame."""

    def __init__(
        self, lengths: list[int], frames: float, kernel: int, decay: float, device: torch.device
    ) -> None:
        """Divide motions of `lengths` frames into bins of about `frames`."""
        starts, sizes, of_frame, kernels, first, before = [], [], [], [], 0, 0
        for length in lengths:
            number = max(1, round((length - 1) / frames))
            edges = np.linspace(0, length - 1, number + 1).astype(int)
            starts.append(first + edges[:-1])
            sizes.append(np.diff(edges))
            of_frame.append(before + np.searchsorted(edges[1:-1], np.arange(length), "right"))
            later = np.arange(number) - np.arange(number)[:, None]  # from a bin to one that failed
            weights = np.where((later >= 0) & (later < kernel), decay ** np.abs(later), 0.0)
            kernels.append(torch.tensor(weights, dtype=torch.float32))
            first, before = first + length, before + number
        joined = (torch.as_tensor(np.concatenate(v)).to(device) for v in (starts, sizes, of_frame))
        self.starts, size, self.of_frame = joined
        self.frames = size.float()
        self.kernel = torch.block_diag(*kernels).to(device)


def _load(files: tuple[str, ...], model: mujoco.MjModel, step_dt: float) -> list[MotionClip]:
    """The motions in `files`; ConfigError if one does not fit the model or the control rate."""
    clips = [MotionClip.load(find_beside_tasks(file), model) for file in files]
    names = [clip.name for clip in clips]
    if double := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two of the motions are called {double[0]!r}; rename a file")
    for file, clip in zip(files, clips, strict=True):
        if abs(clip.fps * step_dt - 1.0) > 1e-4:
            rates = f"{clip.fps:g} frames a second, and the task {1.0 / step_dt:g} steps"
            raise ConfigError(f"{file} has {rates}; `uv run simtrain motion convert` resamples")
    return clips
