"""A clock for the swings of feet, and rewards for following it.

Feet have the model's order; see `simtrain.mdp.observations`. The policy observes the clock with
``generated_commands``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch

from simtrain.env.commands import CommandTerm
from simtrain.env.names import find_joints, match_values
from simtrain.env.reading import mirrored_as
from simtrain.errors import ConfigError
from simtrain.limits import Limits
from simtrain.mdp.observations import foot_height
from simtrain.mdp.robot_state import feet_touch, find_command, is_moving

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Bounds, Entities, Joints, Sensors


def _shifted_by_half(reflection: Any, params: Any) -> list[tuple[int, float]]:
    """A reflected clock is the same, or half a period later: minus its sine and cosine."""
    offsets = params["offsets"]
    images = [offsets[place] for place, _ in reflection.partners(params["sites"])]
    shifts = {round((b - a) % 1.0, 6) for a, b in zip(offsets, images, strict=True)}
    if shifts not in ({0.0}, {0.5}):
        text = "offsets of feet and of their mirror images must be equal, or all differ by 0.5"
        raise ConfigError(f"{text}; they are {offsets}")
    if bend := params.get("bend"):
        joints = reflection.resolved({"joints": tuple(bend)})["joints"]
        angles = match_values(bend, joints.names, 0.0, "bend")
        for name, angle, (place, joint_sign) in zip(
            joints.names, angles, reflection.partners(joints), strict=True
        ):
            if angle != joint_sign * angles[place]:
                raise ConfigError(f"bend is not symmetric: that of {name!r}")
    sign = 1.0 if shifts == {0.0} else -1.0
    return [(0, sign), (1, sign)]


@mirrored_as(_shifted_by_half)
@dataclass(eq=False, repr=False)
class GaitClock(CommandTerm):
    """A clock for the swings of feet: [sin, cos] of a phase, which runs under commands to walk.

    `frequency` bounds the steps per second of each foot; it is drawn with the phase at every reset.
    `offsets` are the fractions of a period by which each foot of `sites` is ahead, such as (0, 0.5)
    for two legs. A foot is in stance for the fraction `stance` of its period, and swings for the
    rest. Under a command to stand, with a norm of `command_name` up to `command_threshold`, the
    clock stops and its value is [0, 0]. With a negative threshold it never stops, and the robot
    steps in place. After a command to walk, the clock runs on for `stopping_time`, s, so that the
    robot can make its last steps.

    `bend` is a stepping motion, for actions with the clock as their `reference`: the angles, rad,
    by which joints leave their initial positions in the middle of the swing of their foot, as
    sin^2.
    """

    labels = ("sin", "cos")
    is_driven = False

    env: InitVar[Env]
    sites: Entities
    offsets: tuple[float, ...]
    command_name: str = "velocity"
    frequency: Bounds = (1.5, 1.5)
    stance: Annotated[float, Limits(0.0, 0.999)] = 0.5
    command_threshold: float = 0.05
    stopping_time: Annotated[float, Limits(0.0, 1e6)] = 0.0
    bend: dict[str, float] | None = None

    def __post_init__(self, env: Env) -> None:
        if len(self.offsets) != len(self.sites):
            counts = f"{len(self.offsets)} offsets for {len(self.sites)} feet"
            raise ConfigError(f"{counts}: {', '.join(self.sites.names)}")
        self._env = env
        self.command = env.buffer("command", (2,), reset=None)
        self._phase = env.buffer("phase", reset=None)
        self._swing = env.buffer("swing", (len(self.sites),), reset=None)
        self._lift = env.buffer("lift", (len(self.sites),), reset=None)
        self._frequency = env.buffer("frequency", reset=None)
        self._offsets = torch.tensor(self.offsets, device=env.device)
        self._stopping_steps = round(self.stopping_time / env.step_dt)
        self._steps_left = env.buffer("steps_left", reset=None)  # negative where it stands

    def resample(self, mask: Tensor) -> None:
        """See `CommandTerm.resample`."""
        low, high = self.frequency
        phase, frequency = torch.rand(2, self._env.num_envs, device=self._env.device)
        torch.where(mask, phase, self._phase, out=self._phase)
        frequency = frequency.mul_(high - low).add_(low)
        torch.where(mask, frequency, self._frequency, out=self._frequency)
        self._steps_left.masked_fill_(mask, 0.0)

    def update(self) -> None:
        """See `CommandTerm.update`."""
        moving = is_moving(self._env, self.command_name, self.command_threshold)
        self._steps_left.sub_(1.0).masked_fill_(moving, self._stopping_steps)
        runs = torch.ge(self._steps_left, 0.0, out=torch.empty_like(self._steps_left))
        self._phase.addcmul_(self._frequency, runs, value=self._env.step_dt).frac_()
        angle, runs = self._phase * (2.0 * math.pi), runs.unsqueeze(1)
        torch.stack((angle.sin(), angle.cos()), dim=1, out=self.command)
        self.command.mul_(runs)
        done = (self._phase.unsqueeze(1) + self._offsets).frac_().sub_(self.stance)
        torch.mul(done.mul_(1.0 / (1.0 - self.stance)).clamp_(min=0.0), runs, out=self._swing)
        torch.mul(self._swing, math.pi, out=self._lift).sin_().square_()

    def reference(self, joints: Joints) -> Callable[[], Tensor]:
        """See `CommandTerm.reference`."""
        env, bends = self._env, self.bend or {}
        bent = find_joints(env.model, tuple(bends), "cpu").names
        angles = dict(zip(bent, match_values(bends, bent, 0.0, "bend"), strict=True))
        feet = [_foot_on(env, name, self.sites) if name in bent else 0 for name in joints.names]
        foot = torch.tensor(feet, device=env.device)
        angle = torch.tensor([angles.get(name, 0.0) for name in joints.names], device=env.device)
        return lambda: self._lift[:, foot].mul_(angle)

    def begin(self) -> None:
        """See `CommandTerm.begin`: at the middle of the frequencies."""
        self._frequency.fill_(sum(self.frequency) / 2.0)

    def swing(self) -> Tensor:
        """Progress of each foot in its swing, 0 to 1; 0 in stance. ``(num_envs, feet)``."""
        return self._swing

    def lift(self) -> Tensor:
        """Relative target height of feet, 0 to 1, sin^2 of their `swing`: ``(num_envs, feet)``."""
        return self._lift


def feet_contact_by_phase(env: Env, sensors: Sensors, gait: str) -> Tensor:
    """Fraction of the feet that touch the ground in stance, or do not in swing: ``(num_envs,)``."""
    stance = find_command(env, gait, GaitClock).swing() == 0.0
    return (feet_touch(env, sensors) == stance).mean(dim=1, dtype=torch.float32)


def feet_height_by_phase(
    env: Env, sites: Entities, gait: str, swing_height: float, std: float, sole: float = 0.0
) -> Tensor:
    """exp(-sum over feet of (height - target)^2 / std^2), with targets from the clock `gait`.

    The target of a foot rises as sin^2 to `swing_height`, m, in the middle of its swing, above
    `sole`, m, the height of its site in stance.
    """
    target = (find_command(env, gait, GaitClock).lift() * swing_height).add_(sole)
    return torch.exp((foot_height(env, sites) - target).square().sum(dim=1) / -(std**2))


class track_reference_joint_pos_exp:
    """exp(-mean over joints of (q - reference)^2 / std^2), for a `command` with a motion."""

    def __init__(self, env: Env, joints: Joints, command: str, std: float) -> None:
        self._joints, self._factor = joints, -1.0 / std**2
        self._initial = env.initial_qpos[joints.qpos]
        self._reference = env.commands.terms[command].reference(joints)

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        error = env.bind("qpos")[:, self._joints.qpos] - self._initial - self._reference()
        return torch.exp(error.square().mean(dim=1) * self._factor)


def _foot_on(env: Env, joint: str, sites: Entities) -> int:
    """Index of the foot in `sites` that the `joint` carries."""
    moved = env.model.joint(joint).bodyid[0]
    for place, name in enumerate(sites.names):
        body = env.model.site(name).bodyid[0]
        while body not in (0, moved):
            body = env.model.body_parentid[body]
        if body == moved:
            return place
    raise ConfigError(f"the joint {joint!r} carries none of the feet {', '.join(sites.names)}")
