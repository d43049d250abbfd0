"""A task small enough to calculate by hand: four bodies that do not touch, and no gravity."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import mujoco
import torch
from torch import Tensor

from simtrain import (
    JointEffortActionCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    mdp,
)
from simtrain.env.env import Env
from simtrain.env.reading import read_as
from simtrain.sim import EngineCfg

MODEL = """
<mujoco>
  <option gravity="0 0 0"><flag contact="disable"/></option>
  <default><geom size="0.1" mass="1"/></default>
  <worldbody>
    <body name="box">
      <freejoint name="root"/> <geom name="box"/>
    </body>
    <body name="left_cart" pos="0 1 0">
      <joint name="left_slide" type="slide" axis="1 0 0"/> <geom name="left_cart"/>
      <site name="left_tip"/>
    </body>
    <body name="left_wheel" pos="0 2 0">
      <joint name="left_hinge" axis="0 0 1"/> <geom name="left_wheel"/>
    </body>
    <body name="right_cart" pos="0 -1 0">
      <joint name="right_slide" type="slide" axis="1 0 0"/> <geom name="right_cart"/>
    </body>
    <body name="right_wheel" pos="0 -2 0">
      <joint name="right_hinge" axis="0 0 1"/> <geom name="right_wheel"/>
    </body>
  </worldbody>
  <actuator>
    <motor name="push" joint="left_slide" ctrlrange="-1 1"/>
    <position name="turn" joint="left_hinge" kp="5"/>
    <velocity name="drive" joint="right_slide" kv="2"/>
    <motor name="twist" joint="right_hinge"/>
  </actuator>
  <sensor>
    <jointpos name="left_slide_pos" joint="left_slide"/>
    <framepos name="left_tip_pos" objtype="site" objname="left_tip"/>
    <jointvel name="left_slide_vel" joint="left_slide"/>
  </sensor>
  <keyframe>
    <key name="bent" qpos="0 0 0 1 0 0 0  0.1 0.2 0.3 0.4"/>
  </keyframe>
</mujoco>
"""
STEP_DT = 0.02


def tiny_model() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(MODEL)


def tiny_task(**changes: Any) -> TaskCfg:
    """A cart of 1 kg to push; a reward of 1 a second; episodes of ten steps."""
    task = TaskCfg(
        model=tiny_model,
        timestep=0.01,
        decimation=2,
        episode_length_s=0.2,
        actions={"push": JointEffortActionCfg("left_slide")},
        observations={
            "actor": {"position": ObservationTermCfg(mdp.joint_pos, joints="left_slide")}
        },
        rewards={"alive": RewardTermCfg(alive, weight=1.0)},
        terminations={"time_out": TerminationTermCfg(mdp.time_out, time_out=True)},
    )
    return dataclasses.replace(task, **changes)


def tiny_env(num_envs: int = 2, **changes: Any) -> Env:
    return Env(tiny_task(**changes), num_envs, EngineCfg(threads=1))


def idle(env: Env, steps: int = 1) -> Any:
    """Step without doing anything; what the last step returned."""
    for _ in range(steps):
        result = env.step(torch.zeros(env.num_envs, env.num_actions))
    return result


def alive(env: Env) -> Tensor:
    return torch.ones(env.num_envs)


@read_as("given")
def steps_lived(env: Env) -> Tensor:
    """Steps into the episode, a number that a test knows. Shape: ``(num_envs, 1)``."""
    return env.episode_length_buf.float().unsqueeze(1)


def values(*of_each_env: float) -> Callable[[Env], Tensor]:
    """A term that always returns these, ``(num_envs,)``."""
    return lambda env: torch.tensor(of_each_env)


def at_step(steps: Sequence[int]) -> Callable[[Env], Tensor]:
    """A termination of each environment at its given step of an episode; never for 0."""
    return lambda env: env.episode_length_buf == torch.tensor(steps)
