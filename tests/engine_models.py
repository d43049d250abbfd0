"""Small models for the engine tests: few, because Warp compiles kernels for each."""

from __future__ import annotations

from collections.abc import Callable

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


def quadruped() -> mujoco.MjModel:
    """A four-legged robot with 12 position actuators, feet on the floor and self-collisions."""
    spec = mujoco.MjSpec.from_string(
        '<mujoco><option timestep="0.005"/><worldbody><geom type="plane" size="9 9 1"/>'
        "</worldbody></mujoco>"
    )
    trunk = spec.worldbody.add_body(name="trunk", pos=[0, 0, 0.31])
    trunk.add_freejoint()
    trunk.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.19, 0.05, 0.05], mass=5)
    trunk.add_site(name="imu")
    for i, (x, y) in enumerate([(0.19, 0.13), (0.19, -0.13), (-0.19, 0.13), (-0.19, -0.13)]):
        parent = trunk
        for part, axis, at, to in (
            ("hip", [1, 0, 0], [x, y, 0], [0, 0, -0.01]),
            ("thigh", [0, 1, 0], [0, 0, 0], [-0.1, 0, -0.15]),
            ("calf", [0, 1, 0], [-0.1, 0, -0.15], [0.1, 0, -0.15]),
        ):
            parent = parent.add_body(name=f"{part}{i}", pos=at)
            parent.add_joint(name=f"{part}{i}", axis=axis, range=[-40, 40], damping=[1, 0, 0])
            parent.add_geom(
                type=mujoco.mjtGeom.mjGEOM_CAPSULE,
                fromto=[0, 0, 0, *to],
                size=[0.015, 0, 0],
                mass=0.3,
            )
            actuator = spec.add_actuator(target=f"{part}{i}", trntype=mujoco.mjtTrn.mjTRN_JOINT)
            actuator.set_to_position(kp=35)
            actuator.ctrlrange = [-0.6, 0.6]
    spec.add_sensor(
        type=mujoco.mjtSensor.mjSENS_GYRO, objtype=mujoco.mjtObj.mjOBJ_SITE, objname="imu"
    )
    return spec.compile()
