"""A robot small enough to calculate by hand: a box on two legs of one hinge each."""

from __future__ import annotations

import itertools
from typing import Any

import mujoco
import torch

from simtrain import (
    CommandTermCfg,
    JointPositionActionCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    mdp,
)
from simtrain.env.env import Env
from simtrain.env.names import resolve_params
from simtrain.sim import EngineCfg

MODEL = """
<mujoco>
  <compiler angle="radian"/>
  <option integrator="implicitfast"/>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <body name="base" pos="0 0 0.5">
      <freejoint name="root"/>
      <geom name="box" type="box" size="0.2 0.1 0.05" mass="4"/>
      <body name="left_leg" pos="0 0.1 0">
        <joint name="left_hinge" axis="0 1 0" range="-1 1" limited="true" armature="0.1"/>
        <geom name="left_foot" type="sphere" size="0.05" pos="0 0 -0.45" mass="1" priority="1"/>
        <site name="left_foot" pos="0 0 -0.45"/>
      </body>
      <body name="right_leg" pos="0 -0.1 0">
        <joint name="right_hinge" axis="0 1 0" armature="0.1"/>
        <geom name="right_foot" type="sphere" size="0.05" pos="0 0 -0.45" mass="1" priority="1"/>
        <site name="right_foot" pos="0 0 -0.45"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="left_servo" joint="left_hinge" kp="50" kv="5"/>
    <position name="right_servo" joint="right_hinge" kp="100" kv="5"/>
  </actuator>
  <sensor>
    <contact name="left_contact" geom2="left_foot" data="found force" reduce="netforce"/>
    <contact name="right_contact" geom2="right_foot" data="found force" reduce="netforce"/>
    <framelinvel name="left_linvel" objtype="site" objname="left_foot"/>
    <framelinvel name="right_linvel" objtype="site" objname="right_foot"/>
    <subtreeangmom name="momentum" body="base"/>
  </sensor>
  <keyframe>
    <key name="stand" qpos="0 0 0.5 1 0 0 0  0.1 -0.2"/>
  </keyframe>
</mujoco>
"""
HINGES = ".*_hinge"
CONTACTS = ".*_contact"
VELOCITIES = ".*_linvel"
FEET = ".*_foot"


def walker_model() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(MODEL)


def walker_task(**changes: Any) -> TaskCfg:
    task = TaskCfg(
        model=walker_model,
        keyframe="stand",
        timestep=0.005,
        decimation=4,
        episode_length_s=2.0,
        actions={"joint_pos": JointPositionActionCfg(HINGES)},
        commands={
            "velocity": CommandTermCfg(
                mdp.UniformVelocityCommand,
                resampling_time_range=(1.0, 1.0),
                lin_vel_x=(-1.0, 1.0),
                lin_vel_y=(-0.5, 0.5),
                ang_vel_z=(-0.7, 0.7),
            )
        },
        observations={"actor": {"gravity": ObservationTermCfg(mdp.projected_gravity)}},
        rewards={"alive": RewardTermCfg(mdp.is_alive, weight=1.0)},
        terminations={"time_out": TerminationTermCfg(mdp.time_out, time_out=True)},
    )
    for name, value in changes.items():
        setattr(task, name, value)
    return task


def walker_env(num_envs: int = 1, **changes: Any) -> Env:
    return Env(walker_task(**changes), num_envs, EngineCfg(threads=1))


def set_state(env: Env, qpos: torch.Tensor | None = None, qvel: torch.Tensor | None = None) -> None:
    """Put all environments into a state by hand."""
    if qpos is not None:
        env.sim.write("qpos", qpos)
    if qvel is not None:
        env.sim.write("qvel", qvel)
    env.sim.forward()


def set_contact(env: Env, found: Any, force: float = 0.0, index: Any = slice(None)) -> None:
    """Let feet touch the ground, pressed by a vertical force, as their sensors see it."""
    data = contact_rows(env.bind("sensordata"))
    data[index, :, 0] = torch.tensor(found, dtype=torch.float32)
    data[index, :, 1:] = torch.tensor([0.0, 0.0, force]) * data[index, :, :1]


def contact_rows(data: torch.Tensor) -> torch.Tensor:
    """A view of the sensors' entries: found, fx, fy and fz of each foot, ``(..., 2, 4)``."""
    return data[..., :8].unflatten(-1, (2, 4))


_numbers = itertools.count()


def made(env: Env, term: type, **params: Any) -> Any:
    """An object of a term's class, its names resolved."""
    params = resolve_params(params, env.model, "cpu")
    return env.make_term(f"test.{next(_numbers)}", term, params)


def value(env: Env, func: Any, **params: Any) -> torch.Tensor:
    """What a term gives now, its names resolved; a class is made anew."""
    if isinstance(func, type):
        return made(env, func, **params)(env)
    return func(env, **resolve_params(params, env.model, "cpu"))
