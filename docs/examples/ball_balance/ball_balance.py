"""Ball balance: tilt a plate so that the ball on it rolls to a target and stays there.

The worked example of the manual's page "Writing a task".
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from simtrain import (
    ActorCfg,
    CommandTermCfg,
    CriticCfg,
    EventTermCfg,
    JointPositionActionCfg,
    MetricTermCfg,
    ObservationTermCfg,
    PpoCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
    task,
)
from simtrain.env.commands import Arrow, CommandTerm
from simtrain.env.env import Env
from simtrain.env.names import Joints
from simtrain.env.reading import read_as

TILTS = ("tilt_x", "tilt_y")


@task("ball-balance")
def ball_balance() -> TaskCfg:
    """Roll a ball to a target by tilting the plate under it."""
    return TaskCfg(
        # --8<-- [start:model]
        model=Path(__file__).with_name("ball_balance.xml"),
        timestep=0.005,
        decimation=4,
        episode_length_s=10.0,
        # --8<-- [end:model]
        # --8<-- [start:actions]
        actions={"tilt": JointPositionActionCfg(TILTS, scale=0.1)},
        # --8<-- [end:actions]
        # --8<-- [start:commands]
        commands={
            "target": CommandTermCfg(BallTarget, resampling_time_range=(3.0, 5.0), half_width=0.15)
        },
        # --8<-- [end:commands]
        # --8<-- [start:observations]
        observations={
            "actor": {
                "ball": ObservationTermCfg(ball_position, noise=UniformNoiseCfg(-0.002, 0.002)),
                "ball_vel": ObservationTermCfg(seen_velocity, noise=UniformNoiseCfg(-0.02, 0.02)),
                "tilt": ObservationTermCfg(mdp.joint_pos, joints=TILTS),
                "target": ObservationTermCfg(mdp.generated_commands, command="target"),
                "last_action": ObservationTermCfg(mdp.last_action),
            },
            "critic": {
                "ball": ObservationTermCfg(ball_position),
                "ball_vel": ObservationTermCfg(ball_velocity, joints="ball"),
                "tilt": ObservationTermCfg(mdp.joint_pos, joints=TILTS),
                "tilt_vel": ObservationTermCfg(mdp.joint_vel, joints=TILTS),
                "target": ObservationTermCfg(mdp.generated_commands, command="target"),
                "last_action": ObservationTermCfg(mdp.last_action),
            },
        },
        # --8<-- [end:observations]
        # --8<-- [start:rewards]
        rewards={
            "near_target": RewardTermCfg(near_target, weight=1.0, command="target", std=0.07),
            "action_rate": RewardTermCfg(mdp.action_rate_l2, weight=-0.05),
            "fell_off": RewardTermCfg(mdp.is_terminated, weight=-50.0),
        },
        # --8<-- [end:rewards]
        # --8<-- [start:terminations]
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
            "fell_off": TerminationTermCfg(
                mdp.root_height_below_minimum, bodies="ball", minimum_height=0.4
            ),
        },
        # --8<-- [end:terminations]
        # --8<-- [start:events]
        events={
            "ball_mass": EventTermCfg(
                mdp.randomize_field,
                mode="startup",
                field=("body_mass", "body_inertia"),
                bodies="ball",
                ranges=(0.5, 2.0),
            ),
            "reset_ball": EventTermCfg(
                mdp.reset_root_state_uniform,
                mode="reset",
                bodies="ball",
                pose_range={"x": (-0.1, 0.1), "y": (-0.1, 0.1)},
                velocity_range={"x": (-0.1, 0.1), "y": (-0.1, 0.1)},
            ),
            "reset_plate": EventTermCfg(
                mdp.reset_joints_uniform, mode="reset", joints=TILTS, position=(-0.05, 0.05)
            ),
            "push": EventTermCfg(
                mdp.push_by_setting_velocity,
                mode="interval",
                bodies="ball",
                interval_range_s=(2.0, 4.0),
                velocity_range={"x": (-0.2, 0.2), "y": (-0.2, 0.2)},
            ),
        },
        # --8<-- [end:events]
        # --8<-- [start:metrics]
        metrics={"distance": MetricTermCfg(target_distance, command="target")},
        # --8<-- [end:metrics]
        # --8<-- [start:ppo]
        num_envs=256,
        num_envs_on_gpu=4096,
        num_steps_per_env=24,
        max_iterations=120,
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=(64, 64)),
            critic=CriticCfg(hidden_dims=(64, 64)),
            entropy_coef=0.002,
        ),
        # --8<-- [end:ppo]
    )


# --8<-- [start:command_term]
class BallTarget(CommandTerm):
    """A place on the plate, m, drawn uniformly from a square about its middle."""

    labels = ("x", "y")

    def __init__(self, env: Env, half_width: float) -> None:
        self.command = env.buffer("command", (2,), reset=None)
        self._half_width = half_width

    def resample(self, mask: Tensor) -> None:
        """Draw new targets where `mask`, boolean ``(num_envs,)``, in place."""
        drawn = torch.empty_like(self.command).uniform_(-self._half_width, self._half_width)
        torch.where(mask.unsqueeze(1), drawn, self.command, out=self.command)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Where a viewer's sliders end, ``(2,)`` each."""
        high = torch.full_like(self.command[0], self._half_width)
        return -high, high

    def markers(self, index: int) -> list[Arrow]:
        """An arrow from above, so that a viewer shows the target."""
        x, y = self.command[index].tolist()
        return [Arrow(start=(x, y, 0.75), end=(x, y, 0.58), rgb=(0.2, 0.75, 0.35))]


# --8<-- [end:command_term]


# --8<-- [start:observation_terms]
@read_as("places", ("ball",))
def ball_position(env: Env) -> Tensor:
    """The ball's place in the plane, m. Shape: ``(num_envs, 2)``."""
    return env.bind("xpos")[:, env.model.body("ball").id, :2]


def ball_velocity(env: Env, joints: Joints) -> Tensor:
    """The ball's velocity in the plane, m/s. Shape: ``(num_envs, 2)``."""
    return env.bind("qvel")[:, joints.qvel][:, :2]


# --8<-- [end:observation_terms]


# --8<-- [start:class_term]
@read_as("places", ("ball",))
class seen_velocity:
    """The ball's velocity as a camera tells it: by how far it moved in a step, m/s."""

    def __init__(self, env: Env) -> None:
        self._last = env.buffer("last", (2,))
        self._is_first = env.buffer("is_first", (1,), reset=True, dtype=torch.bool)

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs, 2)``."""
        position = ball_position(env)
        moved = torch.where(self._is_first, 0.0, position - self._last)
        self._last.copy_(position)
        self._is_first.zero_()
        return moved / env.step_dt


# --8<-- [end:class_term]


# --8<-- [start:reward_terms]
def near_target(env: Env, command: str, std: float) -> Tensor:
    """1 at the target, 1/e at a distance of `std`, m. Shape: ``(num_envs,)``."""
    return torch.exp(-((target_distance(env, command) / std) ** 2))


def target_distance(env: Env, command: str) -> Tensor:
    """Distance of the ball from its target, m. Shape: ``(num_envs,)``."""
    return torch.linalg.vector_norm(ball_position(env) - env.command(command), dim=1)


# --8<-- [end:reward_terms]
