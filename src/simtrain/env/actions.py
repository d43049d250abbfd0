"""Actions at work: from the policy's output to targets of the actuators, in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from simtrain.env.control import cfg as configs
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.control.inverse_kinematics import DifferentialIK
from simtrain.env.control.limiter import Limiter
from simtrain.env.control.transmission import (
    Kind,
    actuators_on,
    check_control,
    joint_servos,
    only_actuator_on,
)
from simtrain.env.names import (
    as_index,
    find_actuators,
    find_joints,
    find_keyframe,
    find_sites,
    find_tendons,
    initial_state,
    match_values,
)
from simtrain.errors import ConfigError, call_term, flag

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.cfg import TaskCfg
    from simtrain.env.control.cfg import InitialState
    from simtrain.env.names import (
        Joints,
    )

_NO_LIMIT = 1e12
_CONTROLS = {
    configs.JointEffortActionCfg: "motor",
    configs.JointVelocityActionCfg: "velocity",
    configs.JointPositionActionCfg: "position",
    configs.RelativeJointPositionActionCfg: "position",
    configs.DifferentialIKActionCfg: "position",
    configs.TendonEffortActionCfg: "motor",
    configs.TendonVelocityActionCfg: "velocity",
    configs.TendonLengthActionCfg: "position",
    configs.SiteEffortActionCfg: "motor",
}


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
        self.dim, self.actuators, self._names = len(actuators), tuple(actuators), names
        scale = match_values(cfg.scale, names, 1.0, "scale")
        offset = match_values(cfg.offset, names, 0.0, "offset")
        for what in ("rate_limit", "acceleration_limit"):
            match_values(getattr(cfg, what) or 0.0, names, 0.0, what)  # for its names
        if getattr(cfg, "use_default_offset", False):
            # Soft motors sag under the robot's weight, so that a keyframe that stands has targets
            # ahead of its joints.
            targets = start.ctrl[actuators] if start.ctrl.any() else self._lengths(model, start)
            offset = [a + float(b) for a, b in zip(offset, targets, strict=True)]
        ranges = model.actuator_ctrlrange[actuators]
        # Not `ctrllimited`: that of a DC motor bounds its targets, and not what it does with them.
        limits = np.where(ranges[:, :1] < ranges[:, 1:], ranges, (-np.inf, np.inf)).T
        low, high = cfg.clip or (-np.inf, np.inf)
        bounds = np.maximum(limits[0], low), np.minimum(limits[1], high)
        # The offset is what zero actions mean; low and high bound ``ctrl``. All are ``(dim,)``.
        self.scale, self.offset = (torch.tensor(v, device=device) for v in (scale, offset))
        self.low, self.high = (torch.tensor(b, dtype=torch.float32, device=device) for b in bounds)
        self._all = actuators == list(range(model.nu))
        self._index = as_index(actuators, device)
        self._cfg = cfg
        self._limiter: Limiter | None = None
        self._reference: Callable[[], Tensor] | None = None

    def declare(self, env: Any) -> None:
        """See `ActionTerm.declare`."""
        limits = self._cfg.rate_limit, self._cfg.acceleration_limit
        if limits != (None, None):
            rates = [
                match_values(_NO_LIMIT if limit is None else limit, self._names, _NO_LIMIT, what)
                for limit, what in zip(limits, ("rate_limit", "acceleration_limit"), strict=True)
            ]
            self._limiter = Limiter(env, env.initial_targets[self._index], *rates)

    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """See `ActionTerm.apply`."""
        if self._all and self._limiter is None:
            torch.addcmul(self.origin(), actions, self.scale, out=ctrl)
            torch.clamp(ctrl, self.low, self.high, out=ctrl)
            return
        target = torch.addcmul(self.origin(), actions, self.scale)
        target = torch.clamp(target, self.low, self.high)
        if self._limiter is not None:
            target = self._limiter.follow(target)
        ctrl[:, self._index] = target

    def origin(self) -> Tensor:
        """The targets of zero actions, ``(dim,)`` or ``(num_envs, dim)``."""
        return self.offset if self._reference is None else self._reference().add_(self.offset)

    def _find(
        self, cfg: Any, model: mujoco.MjModel, device: torch.device | str
    ) -> tuple[tuple[str, ...], list[int]]:
        """The names that patterns of numbers are for, and an actuator for each."""
        if isinstance(cfg, configs.TendonActionCfg):
            tendons = find_tendons(model, cfg.tendons, device).names
            return tendons, _one_each(model, cfg, "tendon", tendons)
        if isinstance(cfg, configs.SiteEffortActionCfg):
            ids = []
            for site in find_sites(model, cfg.sites, device).names:
                on_site = actuators_on(model, "site", site)
                if not on_site:
                    raise ConfigError(f"no actuator drives the site {site!r}")
                ids += on_site
            ids.sort()
            for actuator in ids:
                check_control(model, actuator, type(cfg).__name__, _CONTROLS.get(type(cfg)))
        else:
            names = find_actuators(model, cfg.actuators, device).names
            ids = [model.actuator(name).id for name in names]
        return tuple(model.actuator(i).name for i in ids), ids

    def _lengths(self, model: mujoco.MjModel, start: InitialState) -> np.ndarray:
        """What its position actuators hold in the initial state."""
        data = mujoco.MjData(model)
        data.qpos[:] = start.qpos
        mujoco.mj_fwdPosition(model, data)
        lengths: np.ndarray = data.actuator_length[list(self.actuators)]
        return lengths


class JointAction(TargetAction):
    """The same on the actuators that drive some joints."""

    joints: Joints

    def declare(self, env: Any) -> None:
        """See `ActionTerm.declare`; with the command whose motion the targets are relative to."""
        super().declare(env)
        name = getattr(self._cfg, "reference", None)
        if name is not None:
            self._reference = env.commands.terms[name].reference(self.joints)

    def _find(
        self, cfg: Any, model: mujoco.MjModel, device: torch.device | str
    ) -> tuple[tuple[str, ...], list[int]]:
        self.joints = find_joints(model, cfg.joints, device)
        return self.joints.names, _one_each(model, cfg, "joint", self.joints.names)

    def _lengths(self, model: mujoco.MjModel, start: InitialState) -> np.ndarray:
        return start.qpos[[int(model.joint(name).qposadr[0]) for name in self.joints.names]]


class RelativeJointAction(JointAction):
    """Target positions relative to those that joints have at the start of the control step."""

    def declare(self, env: Any) -> None:
        """See `ActionTerm.declare`."""
        super().declare(env)
        self._qpos: Tensor = env.bind("qpos")

    def origin(self) -> Tensor:
        """See `TargetAction.origin`."""
        return self._qpos[:, self.joints.qpos] + self.offset


class Actions:
    """All of a task's actions, one after the other in the action vector.

    Servos that none of them drives hold the initial state.
    """

    def __init__(self, cfg: TaskCfg, model: mujoco.MjModel, device: torch.device | str) -> None:
        """Make the terms on the compiled `model`; ConfigError if they do not fit it."""
        start = initial_state(model, find_keyframe(model, cfg.keyframe))
        self.terms: dict[str, ActionTerm] = {}
        for name, action in cfg.actions.items():
            try:
                self.terms[name] = _make(action, model, start, device)
                if action.delay_max_lag and not self.terms[name].actuators:
                    text = "its term names no `actuators`, whose targets could be late"
                    raise ConfigError(f"it has a delay, but {text}")
            except ConfigError as error:
                raise ConfigError(f"{flag('env', 'actions', name)}: {error}") from error
        self.dim = sum(term.dim for term in self.terms.values())
        taken: dict[int, str] = {}
        for name, term in self.terms.items():
            for actuator in term.actuators:
                if actuator in taken:
                    both = " and ".join(flag("env", "actions", n) for n in (taken[actuator], name))
                    what = model.actuator(actuator).name
                    raise ConfigError(f"{both} both drive the actuator {what!r}")
                taken[actuator] = name
        self._sizes = [term.dim for term in self.terms.values()]
        servos, initial = joint_servos(model), np.array(start.ctrl)
        if not start.ctrl.any():
            initial[list(servos)] = start.qpos[model.jnt_qposadr[list(servos.values())]]
        self.initial = torch.tensor(initial, dtype=torch.float32, device=device)
        """What actuators hold before the first action: the initial state, ``(nu,)``."""
        # The engine resets ``ctrl`` to the keyframe's own, which is zero for many a keyframe.
        rest = [] if start.ctrl.any() else [i for i in servos if i not in taken]
        self._rest = torch.tensor(rest, dtype=torch.long, device=device)
        self._initial_of_rest = self.initial[self._rest]
        self.held = {model.joint(servos[i]).name: float(initial[i]) for i in rest}
        """Positions that joints are held at which no action drives, by name."""

    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """Write `ctrl`, ``(num_envs, nu)``, from `actions`, ``(num_envs, dim)``, in place."""
        if len(self._initial_of_rest):
            ctrl[:, self._rest] = self._initial_of_rest
        parts = actions.split(self._sizes, dim=1)
        for (name, term), part in zip(self.terms.items(), parts, strict=True):
            call_term(f"actions.{name}", term.apply, part, ctrl)


def _make(
    cfg: configs.ActionTermCfg,
    model: mujoco.MjModel,
    start: InitialState,
    device: torch.device | str,
) -> ActionTerm:
    if isinstance(cfg, configs.DifferentialIKActionCfg):
        joints = find_joints(model, cfg.joints, device)
        return DifferentialIK(cfg, model, joints, _one_each(model, cfg, "joint", joints.names))
    if isinstance(cfg, configs.RelativeJointPositionActionCfg):
        return RelativeJointAction(cfg, model, start, device)
    if isinstance(cfg, configs.JointActionCfg):
        return JointAction(cfg, model, start, device)
    if isinstance(cfg, configs.TargetActionCfg):
        return TargetAction(cfg, model, start, device)
    return cfg.build(model, start, device)


def _one_each(
    model: mujoco.MjModel, cfg: configs.ActionTermCfg, kind: Kind, names: Sequence[str]
) -> list[int]:
    """The one actuator of each joint or tendon, checked to be of the kind that `cfg` drives."""
    needed_by, control = type(cfg).__name__, _CONTROLS.get(type(cfg))
    return [only_actuator_on(model, kind, name, needed_by, control) for name in names]
