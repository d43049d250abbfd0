"""Small models for the engine tests: few, because Warp compiles kernels for each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import mujoco

from simtrain.sim.engine import Engine

MakeEngine = Callable[..., Engine]

MIXED = """
<mujoco>
  <option timestep="0.002"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="target" mocap="true" pos="0 0 2"/>
    <body name="box" pos="0 0 .3">
      <freejoint/>
      <geom name="box" type="box" size=".1 .1 .1" mass="1"/>
      <site name="imu"/>
    </body>
    <body name="arm" pos="2 0 1">
      <joint name="hinge" axis="0 1 0" damping=".1"/>
      <geom type="capsule" size=".02" fromto="0 0 0 .3 0 0" mass=".5"/>
      <site name="tip" pos=".3 0 0"/>
    </body>
  </worldbody>
  <actuator><motor name="hinge" joint="hinge"/></actuator>
  <sensor>
    <accelerometer name="accelerometer" site="imu"/>
    <velocimeter name="velocimeter" site="imu"/>
    <framepos name="tip" objtype="site" objname="tip"/>
    <jointvel name="hinge_speed" joint="hinge"/>
    <actuatorfrc name="hinge_force" actuator="hinge"/>
  </sensor>
  <keyframe><key name="low" time="1" qpos="0 0 .098 1 0 0 0 .5" ctrl=".2"/></keyframe>
</mujoco>
"""
"""A box above the floor, an actuated arm and a mocap body. qpos is box (7) and hinge (1)."""

CARTPOLE = """
<mujoco>
  <option timestep="0.01"><flag contact="disable"/></option>
  <worldbody>
    <body name="cart">
      <joint name="slider" type="slide" axis="1 0 0" damping="5e-4" range="-1.8 1.8"/>
      <geom type="box" size=".1 .1 .05" mass="1"/>
      <body name="pole">
        <joint name="hinge" axis="0 1 0" damping="2e-6"/>
        <geom type="capsule" fromto="0 0 0 0 0 1" size=".045" mass=".1"/>
        <site name="tip" pos="0 0 1"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="slider" gear="10" ctrllimited="true" ctrlrange="-1 1"/></actuator>
  <sensor>
    <jointpos joint="hinge"/>
    <framelinvel objtype="site" objname="tip"/>
    <accelerometer site="tip"/>
  </sensor>
</mujoco>
"""

PENDULUMS = """
<mujoco>
  <option timestep="0.002" integrator="{integrator}"><flag contact="disable"/></option>
  <default><geom type="capsule" size=".02" fromto="0 0 0 .2 0 0" mass=".2"/></default>
  <worldbody>
    <body pos="0 0 2">
      <joint name="first" axis="0 1 0" damping=".02"/>
      <geom/>
      <body pos=".2 0 0">
        <joint axis="0 0 1" damping=".02" stiffness=".5"/>
        <geom/>
        <body pos=".2 0 0">
          <joint axis="0 1 0" armature=".01"/>
          <geom/>
          <site name="tip" pos=".2 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator><position name="first" joint="first" kp="2" kv=".1"/></actuator>
  <sensor>
    <framepos objtype="site" objname="tip"/>
    <velocimeter site="tip"/>
    <accelerometer site="tip"/>
    <actuatorfrc actuator="first"/>
  </sensor>
</mujoco>
"""

FALLING_BOX = """
<mujoco>
  <option timestep="0.002"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .12">
      <freejoint/>
      <geom type="box" size=".1 .1 .1" mass="1"/>
      <site name="imu" size=".2"/>
    </body>
  </worldbody>
  <sensor><velocimeter site="imu"/><touch site="imu"/></sensor>
</mujoco>
"""


def compile_xml(xml: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(xml)


@functools.cache
def quadruped() -> mujoco.MjModel:
    """The Go1, which engines copy."""
    return mujoco.MjModel.from_xml_path(str(Path(__file__).parents[1] / "tasks/go1/scene.xml"))
