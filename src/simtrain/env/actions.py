"""Actions at work: from the policy's output to the engine's ``ctrl``, in place."""

from collections.abc import Mapping

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.env import cfg as configs
from simtrain.env.cfg import ActionTerm, InitialState, JointActionCfg
from simtrain.env.names import Joints, as_index, find_joints, match_values
from simtrain.errors import ConfigError, call_term, flag
from simtrain.sim.engine import Index

_JOINT = mujoco.mjtTrn.mjTRN_JOINT.value
_ONE_NUMBER = (mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value)


class JointAction(ActionTerm):
    """``ctrl = clip(offset + scale x action)`` on the actuators that drive some joints."""

    def __init__(
        self,
        cfg: JointActionCfg,
        model: mujoco.MjModel,
        start: InitialState,
        device: torch.device | str,
    ) -> None:
        self.joints: Joints = find_joints(model, cfg.joints, device)
        names = self.joints.names
        actuators = [_actuator_of(model, name, cfg) for name in names]
        self.dim, self.actuators = len(actuators), tuple(actuators)
        scale = match_values(cfg.scale, names, 1.0, "scale")
        offset = match_values(cfg.offset, names, 0.0, "offset")
        if isinstance(cfg, configs.JointPositionActionCfg) and cfg.use_default_offset:
            # Soft motors sag under the robot's weight, so that a keyframe that stands has targets
            # ahead of its joints.
            places = [int(model.joint(name).qposadr[0]) for name in names]
            targets = start.ctrl[actuators] if start.ctrl.any() else start.qpos[places]
            offset = [a + float(b) for a, b in zip(offset, targets, strict=True)]
        limited = model.actuator_ctrllimited[actuators].astype(bool)[:, None]
        limits = np.where(limited, model.actuator_ctrlrange[actuators], (-np.inf, np.inf)).T
        low, high = cfg.clip or (-np.inf, np.inf)
        bounds = np.maximum(limits[0], low), np.minimum(limits[1], high)
        # The offset is what zero actions mean; low and high bound ``ctrl``. All are ``(dim,)``.
        self.scale, self.offset = (torch.tensor(v, device=device) for v in (scale, offset))
        self.low, self.high = (torch.tensor(b, dtype=torch.float32, device=device) for b in bounds)
        self._all = actuators == list(range(model.nu))
        self._actuators = torch.tensor(actuators, dtype=torch.long, device=device)

    def describe(self) -> str | None:
        """See `ActionTerm.describe`; not of a class derived from this, which may do otherwise."""
        return "joint_targets" if type(self) is JointAction else None

    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """See `ActionTerm.apply`."""
        if self._all:
            torch.addcmul(self.offset, actions, self.scale, out=ctrl)
            torch.clamp(ctrl, self.low, self.high, out=ctrl)
        else:
            target = torch.addcmul(self.offset, actions, self.scale)
            ctrl[:, self._actuators] = torch.clamp(target, self.low, self.high)


class Actions:
    """All of a task's actions, one after the other in the action vector.

    Servos that none of them drives hold the initial state.
    """

    def __init__(
        self,
        cfgs: Mapping[str, configs.ActionTermCfg],
        model: mujoco.MjModel,
        start: InitialState,
        device: torch.device | str,
    ) -> None:
        self.terms: dict[str, ActionTerm] = {}
        for name, cfg in cfgs.items():
            try:
                if isinstance(cfg, JointActionCfg):
                    self.terms[name] = JointAction(cfg, model, start, device)
                else:
                    self.terms[name] = cfg.build(model, start, device)
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
        # The engine resets ``ctrl`` to the keyframe's own, which is zero for many a keyframe.
        rest = {} if start.ctrl.any() else _servos(model, set(range(model.nu)) - taken.keys())
        self._rest = torch.tensor(list(rest), dtype=torch.long, device=device)
        places = [float(start.qpos[i]) for i in rest.values()]
        self._held = torch.tensor(places, device=device)
        self.held = {model.joint(model.actuator_trnid[i, 0]).name: float(start.qpos[place])
                     for i, place in rest.items()}  # fmt: skip
        """Positions that joints are held at which no action drives, by name."""

    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """Write `ctrl`, ``(num_envs, nu)``, from `actions`, ``(num_envs, dim)``, in place."""
        if len(self._held):
            ctrl[:, self._rest] = self._held
        parts = actions.split(self._sizes, dim=1)
        for (name, term), part in zip(self.terms.items(), parts, strict=True):
            call_term(f"actions.{name}", term.apply, part, ctrl)


def find_actuators_of(model: mujoco.MjModel, joints: Joints, device: torch.device | str) -> Index:
    """The position actuators that drive `joints`, in their order; ConfigError if one has none."""
    cfg = configs.JointPositionActionCfg(joints.names)
    return as_index([_actuator_of(model, name, cfg) for name in joints.names], device)


def _servos(model: mujoco.MjModel, actuators: set[int]) -> dict[int, int]:
    """Those of `actuators` that are position servos of a slide or hinge, and its place in qpos."""
    found = {}
    for i in sorted(actuators):
        if model.actuator_trntype[i] == _JOINT and model.actuator_biasprm[i, 1] != 0.0:
            joint = model.joint(int(model.actuator_trnid[i, 0]))
            if joint.type[0] in _ONE_NUMBER:
                found[i] = int(joint.qposadr[0])
    return found


def _actuator_of(model: mujoco.MjModel, joint: str, cfg: JointActionCfg) -> int:
    """The one actuator that drives `joint`, checked to be of the kind that `cfg` speaks to."""
    what = type(cfg).__name__
    transmissions = (mujoco.mjtTrn.mjTRN_JOINT.value, mujoco.mjtTrn.mjTRN_JOINTINPARENT.value)
    driving = np.isin(model.actuator_trntype, transmissions)
    found = np.flatnonzero(driving & (model.actuator_trnid[:, 0] == model.joint(joint).id))
    if len(found) != 1:
        driven = ", ".join(model.actuator(int(i)).name for i in found) or "no actuator drives it"
        raise ConfigError(f"{what} needs exactly one actuator on joint {joint!r}: {driven}")
    actuator = int(found[0])
    affine = model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_AFFINE.value
    position, velocity = affine * model.actuator_biasprm[actuator, 1:3]
    kind = "position" if position != 0.0 else "velocity" if velocity != 0.0 else "motor"
    wanted = {
        configs.JointEffortActionCfg: "motor",
        configs.JointVelocityActionCfg: "velocity",
        configs.JointPositionActionCfg: "position",
    }.get(type(cfg), kind)
    if kind != wanted:
        found_one = f"{model.actuator(actuator).name!r} is a {kind} actuator"
        raise ConfigError(f"{what} needs a {wanted} actuator on joint {joint!r}, but {found_one}")
    return actuator
