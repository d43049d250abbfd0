"""Actions, actuators and delays as data. Imports neither torch nor MuJoCo."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Suppress

from simtrain.env.reading import MirrorRule
from simtrain.errors import ConfigError, flag
from simtrain.limits import UNBOUNDED, Fraction, Limits

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    import torch
    from torch import Tensor

Names = str | tuple[str, ...]
PerName = float | dict[str, float]
"""One number for all, or one for each pattern of names."""
NotNegative = Annotated[PerName, Limits(0.0, 1e12)]
Positive = Annotated[PerName, Limits(1e-9, 1e12)]
Lag = Annotated[int, Limits(0, 10_000)]
Range = Annotated[tuple[float, float], UNBOUNDED]
"""Low and high, which may be infinite."""


@dataclass(kw_only=True)
class DelayCfg:
    """A delay: a lag that is drawn for each environment.

    Terms of a group with equal settings share one lag, as the measurements in one message do. It is
    drawn when an episode begins and again every `delay_update_period`; a later draw keeps the lag
    with the probability `delay_hold_prob`. The lag of an observation is in control steps, the lag
    of an action in physics steps.
    """

    delay_min_lag: Lag = 0
    """Smallest lag: control steps, or physics steps of an action."""
    delay_max_lag: Lag = 0
    """Largest lag; 0 for no delay."""
    delay_hold_prob: Fraction = 0.0
    """Probability that a later draw keeps the lag; with 1, it is constant in an episode."""
    delay_update_period: Annotated[int, Limits(0, 10**9)] = 0
    """Steps between draws; 0 for every step."""

    def check_fields(self, *path: str) -> None:
        """Raise ConfigError if the bounds of the lag cannot be; see `simtrain.limits.check`."""
        if self.delay_min_lag > self.delay_max_lag:
            least, most = (flag(*path, name) for name in ("delay_min_lag", "delay_max_lag"))
            text = f"and the largest lag is {self.delay_max_lag}; it must not be greater"
            give = f"(give {most} {self.delay_min_lag})"
            raise ConfigError(f"{least} is {self.delay_min_lag}, {text} {give}")


@dataclass(frozen=True)
class InitialState:
    """The ``qpos`` and ``ctrl`` that episodes start from; ``ctrl`` is 0 unless the model says."""

    qpos: np.ndarray
    ctrl: np.ndarray


class ActionTerm(ABC):
    """`dim` actions and their effect on the ``ctrl`` of `actuators`, ids that no other term has."""

    dim: int
    actuators: tuple[int, ...] = ()

    def declare(self, env: Any) -> None:  # noqa: B027 - most actions keep no state
        """Declare state that is kept between steps, with `env.buffer`; called once, first of all.

        `env` has `num_envs`, `step_dt` and `physics_dt`, and returns fields by `env.bind`.
        """

    @abstractmethod
    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """Write its part of `ctrl`, ``(num_envs, nu)``, from `actions`, ``(num_envs, dim)``."""

    def substep(self, ctrl: Tensor) -> None:  # noqa: B027 - most actions hold `ctrl`
        """Change its part of `ctrl` before each physics step, in place; after `apply`.

        State fields, such as ``qpos`` and ``qvel``, are up to date then; other fields may still
        have their values from the start of the control step. If a term has this method, physics
        runs step by step.
        """

    def reset(self, mask: Tensor) -> None:  # noqa: B027 - most actions keep no state
        """Start a new episode in the environments in `mask`, boolean ``(num_envs,)``."""


@dataclass(kw_only=True)
class ActionTermCfg(DelayCfg):
    """A part of the action vector. For an action of your own, derive from this and write `build`.

    A delay applies to its targets. Until the first target arrives, actuators hold the initial
    state.
    """

    mirror: Suppress[MirrorRule | None] = None
    """How its actions are mirrored, for an action of your own; ready-made actions declare it."""

    def build(
        self, model: mujoco.MjModel, start: InitialState, device: torch.device | str
    ) -> ActionTerm:
        """The term on a compiled model, its tensors on `device`; ConfigError for unknown names."""
        raise ConfigError(f"{type(self).__name__} needs a method `build`")


@dataclass(kw_only=True)
class TargetActionCfg(ActionTermCfg):
    """``ctrl = clip(offset + scale x action)`` on some actuators; no action by itself."""

    scale: PerName = 1.0
    """Factor: one for all, or one for each pattern of names."""
    offset: PerName = 0.0
    """Target of a zero action: one for all, or one for each pattern of names."""
    clip: Range | None = None
    """Bounds of ``ctrl``; the model's ``ctrlrange`` always applies, too."""
    rate_limit: Positive | None = None
    """Largest change of ``ctrl`` per second, in its unit; None for no limit."""
    acceleration_limit: Positive | None = None
    """Largest change of this rate, per second squared; ``ctrl`` slows down before its target."""


@dataclass
class ActuatorActionCfg(TargetActionCfg):
    """Controls of any actuators, in their own units."""

    actuators: Suppress[Names]
    """Names or patterns of the actuators, in the model's order."""


@dataclass
class JointActionCfg(TargetActionCfg):
    """``ctrl = clip(offset + scale x action)`` on the actuators that drive some joints."""

    joints: Suppress[Names]
    """Names or patterns of the joints, in the model's order."""


@dataclass
class JointEffortActionCfg(JointActionCfg):
    """Forces or torques, on motor actuators."""


@dataclass
class JointVelocityActionCfg(JointActionCfg):
    """Target velocities, on velocity actuators."""


@dataclass
class JointPositionActionCfg(JointActionCfg):
    """Target positions, on position actuators."""

    use_default_offset: bool = True
    """Let a zero action hold the initial state: add the ``ctrl`` of the keyframe or, if it is all
    zero, the actuators' lengths in the initial state."""
    reference: str | None = None
    """Name of a command with a motion of the joints, such as `mdp.GaitClock`, which is added to the
    targets."""


@dataclass
class RelativeJointPositionActionCfg(JointActionCfg):
    """Target positions of slides and hinges relative to the present ones, on position actuators."""


@dataclass
class TendonActionCfg(TargetActionCfg):
    """``ctrl = clip(offset + scale x action)`` on the actuators that pull some tendons."""

    tendons: Suppress[Names]
    """Names or patterns of the tendons, in the model's order."""


@dataclass
class TendonEffortActionCfg(TendonActionCfg):
    """Forces along tendons, on motor actuators."""


@dataclass
class TendonVelocityActionCfg(TendonActionCfg):
    """Target velocities of tendons, on velocity actuators."""


@dataclass
class TendonLengthActionCfg(TendonActionCfg):
    """Target lengths of tendons, on position actuators."""

    use_default_offset: bool = True
    """Let a zero action hold the initial state: add the ``ctrl`` of the keyframe or, if it is all
    zero, the initial lengths of the tendons."""


@dataclass
class SiteEffortActionCfg(TargetActionCfg):
    """Forces and torques on sites, such as those of propellers, one for each motor of a site.

    The motor's ``gear`` sets the axis, and whether it is a force or a torque.
    """

    sites: Suppress[Names]
    """Names or patterns of the sites; actions are in the model's order of actuators."""


@dataclass
class DifferentialIKActionCfg(ActionTermCfg):
    """Targets of a site, relative to its present pose; the servos of joints get joint targets.

    Damped least squares: dq = J' (J J' + damping² I)^-1 e, for every control step.
    """

    site: Suppress[str]
    """The site that moves."""
    joints: Suppress[Names]
    """Slides and hinges that move it, each with a position actuator."""
    frame: Suppress[str | None] = None
    """The body in whose frame actions are given; None for the world."""
    orientation: bool = True
    """Whether there are six actions, a displacement and a rotation vector, or only the first three.
    """
    position_scale: float = 0.05
    """Displacement of an action of 1, m."""
    rotation_scale: float = 0.2
    """Rotation of an action of 1, rad."""
    damping: Annotated[float, Limits(0.0, 1e12)] = 0.05
    """Damping, in m or rad of the site per rad or m of a joint: it reduces the motion of the
    joints, and limits it if the site cannot reach its target."""


@dataclass
class ActuatorCfg:
    """The actuators of some joints, one each, which replace the model's ``<actuator>``.

    The model's actuator of a joint keeps its name, position and ``ctrlrange``, which bounds
    targets; a joint without an actuator gets a new one with the name of the joint.
    """

    joints: Suppress[Names]
    """Names or patterns of slides and hinges."""
    effort_limit: NotNegative | None = field(default=None, kw_only=True)
    """Largest force or torque, N or Nm; None for the model's ``forcerange``."""


@dataclass(kw_only=True)
class IdealPdActuatorCfg(ActuatorCfg):
    """A servo: effort = stiffness (target - position) - damping velocity, within its limit.

    This is MuJoCo's ``<position>``, computed at every physics step, with implicit damping.
    """

    stiffness: NotNegative | None = None
    """N/m or Nm/rad; None for the stiffness of the model's servo."""
    damping: NotNegative | None = None
    """Ns/m or Nms/rad; None for the damping of the model's servo."""


@dataclass(kw_only=True)
class DcMotorActuatorCfg(IdealPdActuatorCfg):
    """A servo that is limited by the torque-speed line of its motor.

    The effort is at most ``saturation_effort (1 - velocity / velocity_limit)``, at least
    ``saturation_effort (-1 - velocity / velocity_limit)``, and within `effort_limit`.
    """

    saturation_effort: Positive
    """Effort at standstill under full voltage, N or Nm."""
    velocity_limit: Positive
    """Velocity without load under full voltage, m/s or rad/s."""
    builtin: bool = False
    """Use MuJoCo's ``<dcmotor>`` with the same effect. Physics then does not have to run step by
    step, but gains and encoders cannot be randomized."""


@dataclass(kw_only=True)
class NetworkActuatorCfg(ActuatorCfg):
    """A motor model learned from logs, one network for all joints (Hwangbo et al., 2019,
    https://arxiv.org/abs/1901.08652).

    Its inputs are the position errors, target - position, at the physics steps `history_steps`, and
    then the velocities at these steps; its output is an effort.
    """

    network: Path
    """A TorchScript file (``.pt``) or an ONNX file (``.onnx``), ``(n, inputs)`` to ``(n, 1)``. ONNX
    runs on the CPU, and is refused if a GPU simulates: use TorchScript then."""
    history_steps: Annotated[tuple[int, ...], Limits(0, 1000)] = (0, 1, 2)
    """Age of each input, in physics steps; 0 is the present."""
    input_order: Literal["pos_vel", "vel_pos"] = "pos_vel"
    """Which of the two inputs comes first."""
    pos_scale: float = 1.0
    """Factor of the position errors."""
    vel_scale: float = 1.0
    """Factor of the velocities."""
    torque_scale: float = 1.0
    """Factor of the output."""
