"""Complete tasks for arms: move a tool to a pose. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simtrain import mdp
from simtrain.algorithms.cfg import ActorCfg, CriticCfg, PpoCfg
from simtrain.env.cfg import (
    CommandTermCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
)
from simtrain.env.control.cfg import Names, RelativeJointPositionActionCfg


def reach_task(
    model: Path | Callable[[], Any],
    *,
    joints: Names,
    tool: str,
    reach: float,
    spread: float = 0.8,
    action_scale: float | dict[str, float] = 0.3,
    timestep: float = 0.01,
    decimation: int = 2,
) -> TaskCfg:
    """Move the site `tool` to a pose, position and orientation, with an arm of length `reach`, m.

    The policy controls `joints`, with targets relative to the present positions by `action_scale`,
    rad or m, for an action of 1. Other joints, such as those of a gripper, are held at their
    positions in the keyframe ``home``. Goals are tool poses at joint positions that differ by up to
    `spread` from this keyframe.
    """
    goal: dict[str, Any] = {"command": "goal", "place": tool}
    pos_noise, vel_noise = UniformNoiseCfg(-0.005, 0.005), UniformNoiseCfg(-0.2, 0.2)
    term, reward = ObservationTermCfg, RewardTermCfg
    observations: dict[str, dict[str, ObservationTermCfg] | ObservationGroupCfg] = {
        group: {
            "joint_pos": term(mdp.joint_pos_rel, joints=joints, noise=noisy and pos_noise),
            "joint_vel": term(mdp.joint_vel, joints=joints, noise=noisy and vel_noise),
            "goal_pos": term(mdp.goal_in_frame, command="goal", frame=tool, scale=2.0 / reach),
            "goal_ori": term(mdp.goal_orientation_in_frame, command="goal", frame=tool),
            "last_action": term(mdp.last_action),
        }
        for group, noisy in (("actor", True), ("critic", None))
    }
    return TaskCfg(
        model=model,
        keyframe="home",
        timestep=timestep,
        decimation=decimation,
        episode_length_s=4.0,
        actions={"arm": RelativeJointPositionActionCfg(joints, scale=action_scale)},
        commands={
            "goal": CommandTermCfg(
                mdp.ReachablePoseCommand, (1e6, 1e6), place=tool, joints=joints, spread=spread
            )
        },
        observations=observations,
        rewards={
            "reach": reward(mdp.goal_pose_tanh, 1.0, std=0.2 * reach, **goal),
            "turn": reward(mdp.goal_pose_tanh, 1.0, angle_std=0.6, **goal),
            "pose": reward(mdp.goal_pose_tanh, 4.0, std=0.03 * reach, angle_std=0.15, **goal),
            "action_rate": reward(mdp.action_rate_l2, -0.01),
            "joint_vel": reward(mdp.joint_vel_hinge, -0.02, joints=joints, max_vel=1.5),
        },
        terminations={"time_out": TerminationTermCfg(mdp.time_out, time_out=True)},
        metrics={
            "success": MetricTermCfg(mdp.at_goal, reduce="last", distance=0.03 * reach, **goal),
            "goal_distance": MetricTermCfg(mdp.goal_distance, reduce="last", **goal),
            "goal_angle": MetricTermCfg(mdp.goal_angle, reduce="last", **goal),
        },
        events={
            "reset_joints": EventTermCfg(
                mdp.reset_joints_uniform, mode="reset", joints=joints, position=(-0.2, 0.2)
            ),
            "gains": EventTermCfg(
                mdp.randomize_actuator_gains,
                mode="startup",
                joints=joints,
                stiffness=(0.9, 1.1),
                damping=(0.9, 1.1),
            ),
        },
        num_envs=256,
        num_envs_on_gpu=4096,
        max_iterations=400,
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=(256, 128), init_std=0.6),
            critic=CriticCfg(hidden_dims=(256, 128)),
            num_mini_batches=1,
            desired_kl=0.03,
            desired_kl_end=0.005,
            gamma=0.97,
            lam=0.9,
            entropy_coef=0.001,
        ),
    )
