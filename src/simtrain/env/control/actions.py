"""Actions at work: from the policy's output to ``ctrl`` before each physics step, in place."""

from collections.abc import Callable, Sequence
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.env.cfg import TaskCfg
from simtrain.env.control import cfg as configs
from simtrain.env.control.actuators import simulated_actuators
from simtrain.env.control.cfg import ActionTerm, InitialState
from simtrain.env.control.delay import DelayLine
from simtrain.env.control.transmission import (
    Kind,
    check_gears,
    control_of,
    find_driving,
    joint_actuators,
    target_limits,
)
from simtrain.env.names import (
    ONE_DEGREE,
    Joints,
    as_index,
    find_id,
    find_joints,
    initial_state,
    match_names,
    match_values,
)
from simtrain.errors import ConfigError, call_term, config_errors_of, flag

_NO_LIMIT = 1e12
_CONTROLS = {  # of the actuators that they drive, see `control_of`
    configs.JointEffortActionCfg: "motor",
    configs.JointVelocityActionCfg: "velocity",
    configs.JointPositionActionCfg: "position",
    configs.RelativeJointPositionActionCfg: "position",
    configs.TendonEffortActionCfg: "motor",
    configs.TendonVelocityActionCfg: "velocity",
    configs.TendonLengthActionCfg: "position",
    configs.SiteEffortActionCfg: "motor",
}


class Actions:
    """All of a task's actions, one after the other in the action vector.

    Servos that none of them drives hold the initial state.
    """

    def __init__(self, cfg: TaskCfg, model: mujoco.MjModel, device: torch.device | str) -> None:
        """Make the terms on the compiled `model`; ConfigError if they do not fit it."""
        start = initial_state(model, cfg.keyframe)
        self.terms: dict[str, ActionTerm] = {}
        drives: dict[int, str] = {}
        for name, action in cfg.actions.items():
            with config_errors_of(flag("env", "actions", name)):
                ready_made = (term for kind, term in _TERMS.items() if isinstance(action, kind))
                make: Callable[..., ActionTerm] = next(ready_made, type(action).build)
                term = self.terms[name] = make(action, model, start, device)
                if action.delay_max_lag and not term.actuators:
                    text = "its term names no `actuators`, whose targets could be late"
                    raise ConfigError(f"it has a delay, but {text}")
                for actuator in term.actuators:
                    if (other := drives.setdefault(actuator, name)) != name:
                        what = f"the actuator {model.actuator(actuator).name!r}"
                        raise ConfigError(f"{flag('env', 'actions', other)} drives {what} already")
        self._sizes = [term.dim for term in self.terms.values()]
        self.dim = sum(self._sizes)
        servos, initial = _joint_servos(model), np.array(start.ctrl)
        if servos:
            initial[list(servos)] = _holding(model, start)[list(servos)]
        self.initial = torch.tensor(initial, dtype=torch.float32, device=device)
        """``ctrl`` before the first action, which holds the initial state, ``(nu,)``."""
        rest = [i for i in servos if i not in drives]
        held = {servos[i]: float(initial[i] / model.actuator_gear[i, 0]) for i in rest}
        self.held = {model.joint(joint).name: position for joint, position in held.items()}
        """Positions that joints are held at which no action drives, by name."""
        # The engine resets ``ctrl`` to the keyframe's own, which is zero for many a keyframe.
        rest = [] if start.ctrl.any() else rest
        self._rest = torch.tensor(rest, dtype=torch.long, device=device)
        self._initial_of_rest = self.initial[self._rest]

    def declare(self, env: Any) -> None:
        """Let the terms declare their state, and bind the fields of `env` that they read."""
        for name, term in self.terms.items():
            with env.scope(f"actions.{name}"):
                call_term(f"actions.{name}", term.declare, env)

    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """Write `ctrl`, ``(num_envs, nu)``, from `actions`, ``(num_envs, dim)``, in place."""
        if len(self._initial_of_rest):
            ctrl[:, self._rest] = self._initial_of_rest
        parts = actions.split(self._sizes, dim=1)
        for (name, term), part in zip(self.terms.items(), parts, strict=True):
            call_term(f"actions.{name}", term.apply, part, ctrl)


class Control:
    """Actions, their delays, and actuators. Without the latter two, targets are ``ctrl`` itself."""

    def __init__(self, cfg: TaskCfg, actions: Actions, env: Any) -> None:
        self._ctrl: Tensor = env.bind("ctrl")
        actions.declare(env)
        self._terms = {
            name: term
            for name, term in actions.terms.items()
            if type(term).substep is not ActionTerm.substep
        }
        self._actuators = simulated_actuators(cfg.actuators, env)
        delays = {n: c for n, c in cfg.actions.items() if c.delay_max_lag}
        self._delay: DelayLine | None = None
        if delays:
            ids = [actions.terms[name].actuators for name in delays]
            self._delayed = as_index([i for actuators in ids for i in actuators], env.device)
            sizes, initial = [len(actuators) for actuators in ids], actions.initial[self._delayed]
            self._delay = DelayLine(env, "actions", list(delays.values()), sizes, initial)
        self.targets = self._ctrl
        """What actions write, ``(num_envs, nu)``, for the next physics steps."""
        if self._delay is not None or self._actuators:
            self.targets = env.buffer("targets", (env.model.nu,), reset=None)
            self.targets.copy_(actions.initial)  # also of actuators that no action drives
        self.by_substep = bool(self._terms) or self.targets is not self._ctrl
        """Whether physics runs step by step, with `substep` before each."""

    def substep(self) -> None:
        """Write ``ctrl`` for the next physics step, in place."""
        for name, term in self._terms.items():
            call_term(f"actions.{name}", term.substep, self.targets)
        if self.targets is self._ctrl:
            return
        self._ctrl.copy_(self.targets)
        if self._delay is not None:
            self._ctrl[:, self._delayed] = self._delay.push(self.targets[:, self._delayed])
        for actuator in self._actuators:
            actuator.apply(self._ctrl)


class TargetAction(ActionTerm):
    """``ctrl = clip(offset + scale x action)`` on some actuators, within their limits."""

    def __init__(
        self,
        cfg: configs.TargetActionCfg,
        model: mujoco.MjModel,
        start: InitialState,
        device: torch.device | str,
    ) -> None:
        names, actuators = self._find(cfg, model, device)
        self.dim, self.actuators, self._cfg = len(actuators), tuple(actuators), cfg
        scale = match_values(cfg.scale, names, 1.0, "scale")
        offset = match_values(cfg.offset, names, 0.0, "offset")
        if getattr(cfg, "use_default_offset", False):
            targets = _holding(model, start)[actuators]
            offset = [a + float(b) for a, b in zip(offset, targets, strict=True)]
        low, high = cfg.clip or (-np.inf, np.inf)
        limits = target_limits(model, actuators)
        bounds = np.maximum(limits[0], low), np.minimum(limits[1], high)
        # The offset is the target of zero actions; low and high bound ``ctrl``. All are ``(dim,)``.
        self.scale, self.offset = (torch.tensor(v, device=device) for v in (scale, offset))
        self.low, self.high = (torch.tensor(b, dtype=torch.float32, device=device) for b in bounds)
        self._all = actuators == list(range(model.nu))
        self._index = as_index(actuators, device)
        self._limits = [
            match_values(getattr(cfg, what) or _NO_LIMIT, names, _NO_LIMIT, what)
            for what in ("rate_limit", "acceleration_limit")
        ]
        self._limiter: Limiter | None = None
        self._reference: Callable[[], Tensor] | None = None

    def declare(self, env: Any) -> None:
        """See `ActionTerm.declare`."""
        if (self._cfg.rate_limit, self._cfg.acceleration_limit) != (None, None):
            self._limiter = Limiter(env, env.initial_targets[self._index], *self._limits)

    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """See `ActionTerm.apply`."""
        origin = self.offset if self._reference is None else self._reference().add_(self.offset)
        if self._all and self._limiter is None:
            torch.addcmul(origin, actions, self.scale, out=ctrl)
            torch.clamp(ctrl, self.low, self.high, out=ctrl)
            return
        target = torch.addcmul(origin, actions, self.scale)
        target = torch.clamp(target, self.low, self.high)
        ctrl[:, self._index] = target if self._limiter is None else self._limiter.follow(target)

    def _find(
        self, cfg: Any, model: mujoco.MjModel, device: torch.device | str
    ) -> tuple[tuple[str, ...], list[int]]:
        """The names that patterns of numbers are matched with, and an actuator for each."""
        if isinstance(cfg, configs.ActuatorActionCfg):
            return match_names(model, "actuator", cfg.actuators)
        kinds: tuple[Kind, ...] = ("joint", "tendon", "site")
        kind = next(kind for kind in kinds if hasattr(cfg, f"{kind}s"))
        names, _ = match_names(model, kind, getattr(cfg, f"{kind}s"))
        needs = type(cfg).__name__, _CONTROLS.get(type(cfg))
        actuators = find_driving(model, kind, names, *needs, several=kind == "site")
        if kind == "joint" and needs[1] == "position":
            check_gears(model, actuators, needs[0])
        if kind == "site":
            actuators.sort()
            names = tuple(model.actuator(i).name for i in actuators)
        return names, actuators


class JointAction(TargetAction):
    """A `TargetAction` on the actuators of some joints, maybe relative to a moving reference."""

    joints: Joints

    def declare(self, env: Any) -> None:
        """See `ActionTerm.declare`; also binds the reference of the targets."""
        super().declare(env)
        if isinstance(self._cfg, configs.RelativeJointPositionActionCfg):
            qpos: Tensor = env.bind("qpos")
            self._reference = lambda: qpos[:, self.joints.qpos]
        elif (name := getattr(self._cfg, "reference", None)) is not None:
            self._reference = env.commands.terms[name].reference(self.joints)

    def _find(
        self, cfg: Any, model: mujoco.MjModel, device: torch.device | str
    ) -> tuple[tuple[str, ...], list[int]]:
        self.joints = find_joints(model, cfg.joints, device)
        return super()._find(cfg, model, device)


class Limiter:
    """Limits the rate and the acceleration of targets.

    A limited target slows down in time to stop at the wanted one.
    """

    def __init__(
        self, env: Any, start: Tensor, rate: Sequence[float], acceleration: Sequence[float]
    ) -> None:
        """Episodes begin at rest at `start`, ``(dim,)``; limits are per s and per s²."""
        self._start, self._dt = start, env.step_dt
        self._most = torch.tensor(rate, dtype=torch.float32, device=env.device)
        self._acceleration = torch.tensor(acceleration, dtype=torch.float32, device=env.device)
        self._moved: Tensor = env.buffer("moved", start.shape)  # from the start
        self._rate = env.buffer("rate", start.shape)

    def follow(self, wanted: Tensor) -> Tensor:
        """The next targets on the way to `wanted`, ``(num_envs, dim)``."""
        before = self._moved + self._start
        way, dt = wanted - before, self._dt
        distance = way.abs()
        change = self._acceleration * dt
        # From a rate r it moves at most (r + change / 2)² / 2a before it stands, in whole steps.
        braking = (2.0 * self._acceleration * distance).sqrt() - change / 2
        rate = torch.minimum(distance / dt, torch.maximum(braking, change))
        rate = torch.minimum(rate, self._most) * way.sign()
        rate = torch.clamp(rate, self._rate - change, self._rate + change)
        self._rate.copy_(rate)
        self._moved.add_(rate, alpha=dt)
        return self._moved + self._start


class DifferentialIK(ActionTerm):
    """Gives servos of joints the targets that move and turn a site by the actions."""

    def __init__(
        self,
        cfg: configs.DifferentialIKActionCfg,
        model: mujoco.MjModel,
        start: InitialState,
        device: torch.device | str,
    ) -> None:
        self._joints = find_joints(model, cfg.joints, device)
        names = self._joints.names
        actuators = find_driving(model, "joint", names, type(cfg).__name__, "position")
        check_gears(model, actuators, type(cfg).__name__)
        self.dim, self.actuators = 6 if cfg.orientation else 3, tuple(actuators)
        self._site = find_id(model, "site", cfg.site)
        self._frame = None if cfg.frame is None else find_id(model, "body", cfg.frame)
        moving, body = set(), int(model.site_bodyid[self._site])
        while body:
            moving.add(body)
            body = int(model.body_parentid[body])
        ids = [model.joint(name).id for name in names]
        for name, joint in zip(names, ids, strict=True):
            if int(model.jnt_bodyid[joint]) not in moving:
                raise ConfigError(f"{name!r} does not move the site {cfg.site!r}")
            if model.jnt_type[joint] not in ONE_DEGREE:
                raise ConfigError(f"{name!r} is neither a slide nor a hinge")
        scale = [cfg.position_scale] * 3 + [cfg.rotation_scale] * 3
        self._scale = torch.tensor(scale[: self.dim], device=device)
        self._damping = cfg.damping**2 * torch.eye(self.dim, device=device)
        is_hinge = torch.as_tensor(model.jnt_type[ids] == mujoco.mjtJoint.mjJNT_HINGE.value)
        self._hinges = is_hinge.float().unsqueeze(1).to(device)
        limits = torch.as_tensor(target_limits(model, actuators), dtype=torch.float32)
        self._low, self._high = limits.to(device)
        self._index, self._places = as_index(actuators, device), as_index(ids, device)

    def declare(self, env: Any) -> None:
        """Bind the fields of `env` that it reads; it has no state."""
        names = ("qpos", "xanchor", "xaxis", "site_xpos", "xmat")
        self._fields: list[Tensor] = [env.bind(name) for name in names]

    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """See `ActionTerm.apply`."""
        qpos = self._fields[0][:, self._joints.qpos]
        jacobian = self._jacobian()  # (num_envs, dim, joints)
        error = self._along_frame(actions * self._scale)
        squared = jacobian @ jacobian.transpose(1, 2) + self._damping
        step = jacobian.transpose(1, 2) @ solve_positive(squared, error.unsqueeze(2))
        ctrl[:, self._index] = torch.clamp(qpos + step.squeeze(2), self._low, self._high)

    def _jacobian(self) -> Tensor:
        """Jacobian of the site's velocity and angular velocity, along the world's axes."""
        _, anchors, axes, sites, _ = self._fields
        axis = axes[:, self._places]
        arm = sites[:, self._site].unsqueeze(1) - anchors[:, self._places]
        linear = torch.lerp(axis, torch.linalg.cross(axis, arm), self._hinges)
        if self.dim == 6:
            linear = torch.cat((linear, axis * self._hinges), dim=2)
        return linear.transpose(1, 2)

    def _along_frame(self, vectors: Tensor) -> Tensor:
        """Vectors ``(num_envs, dim)`` from the frame's axes to those of the world."""
        if self._frame is None:
            return vectors
        rotation = self._fields[4].view(len(vectors), -1, 3, 3)[:, self._frame]
        turned: Tensor = rotation @ vectors.unflatten(1, (-1, 3)).transpose(1, 2)
        return turned.transpose(1, 2).flatten(1)


def _joint_servos(model: mujoco.MjModel) -> dict[int, int]:
    """The position actuators of slides and hinges that have a gear, each with its joint's id."""
    return {
        int(i): int(joint)
        for i, joint in zip(*joint_actuators(model), strict=True)
        if model.jnt_type[joint] in ONE_DEGREE
        and model.actuator_gear[i, 0] != 0.0
        and control_of(model, i) == "position"
    }


def _holding(model: mujoco.MjModel, start: InitialState) -> np.ndarray:
    """``ctrl`` with which position actuators hold the initial state: its own, or their lengths."""
    if start.ctrl.any():  # soft motors sag, so that it is ahead of the joints in a keyframe
        return start.ctrl
    data = mujoco.MjData(model)
    data.qpos[:] = start.qpos
    for stage in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_tendon, mujoco.mj_transmission):
        stage(model, data)
    lengths: np.ndarray = data.actuator_length
    return lengths


def solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """``matrix^-1 right`` of positive definite matrices, ``(n, k, k)`` and ``(n, k, m)``.

    By Gauss and Jordan; pivots need no search, and so nothing waits for the device.
    """
    size = matrix.shape[1]
    rows = torch.cat((matrix, right), dim=2)
    for i in range(size):
        pivot = rows[:, i] / rows[:, i, i].unsqueeze(1)
        rows = rows - rows[:, :, i].unsqueeze(2) * pivot.unsqueeze(1)
        rows[:, i] = pivot
    return rows[:, :, size:]


_TERMS: dict[type, Callable[..., ActionTerm]] = {
    configs.DifferentialIKActionCfg: DifferentialIK,
    configs.JointActionCfg: JointAction,
    configs.TargetActionCfg: TargetAction,
}
