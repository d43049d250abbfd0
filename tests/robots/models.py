"""Robots that nobody has, as MJCF and URDF: names that say nothing, feet of several kinds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import mujoco

from simtrain.robots.check import check
from simtrain.robots.inspect import Robot, inspect
from simtrain.robots.prepare import Prepared, prepare
from simtrain.robots.read import read

_LEG = """
<body name="{n}0" pos="{x} {y} 0"><inertial mass="0.6" pos="0 0 0" diaginertia="1e-3 1e-3 1e-3"/>
  <joint name="{n}a" axis="1 0 0" range="-0.8 0.8"/>
  <body name="{n}1" pos="0 {out} 0">
    <inertial mass="0.8" pos="0 0 -0.1" diaginertia="5e-3 5e-3 1e-3"/>
    <joint name="{n}b" axis="0 1 0" range="-1.5 2.5"/>
    <body name="{n}2" pos="0 0 -0.2">
      <inertial mass="0.2" pos="0 0 -0.1" diaginertia="2e-3 2e-3 1e-4"/>
      <joint name="{n}c" axis="0 1 0" range="-2.6 -0.3"/>
      {foot}
    </body>
  </body>
</body>"""
_BALL = '<geom type="sphere" size="0.02" pos="0 0 -0.2" {bits}/>'
_PLACES = {"p": (0.2, 0.08), "q": (0.2, -0.08), "r": (-0.2, 0.08), "s": (-0.2, -0.08)}
JOINTS = [f"{leg}{joint}" for leg in _PLACES for joint in "abc"]
MOTORS = "".join(
    f'<motor name="m{j}" joint="{j}" ctrlrange="-1 1" gear="{40 if j[1] == "c" else 20}"/>'
    for j in JOINTS
)
MOTORS = f"<actuator>{MOTORS}</actuator>"


def quadruped(*, bits: str = "", actuators: str = MOTORS, world: str = "", extra: str = "") -> str:
    """MJCF of a quadruped of 16.4 kg, whose legs are called p, q, r and s."""
    legs = [
        _LEG.format(n=n, x=x, y=y, out=0.05 if y > 0 else -0.05, foot=_BALL.format(bits=bits))
        for n, (x, y) in _PLACES.items()
    ]
    return f"""
<mujoco model="unknown">
  <compiler angle="radian"/>
  <worldbody>{world}
    <body name="middle" pos="0 0 0.5"><freejoint name="root"/>
      <inertial mass="10" pos="0 0 0" diaginertia="0.1 0.2 0.2"/>
      <geom type="box" size="0.2 0.08 0.05" contype="0" conaffinity="0"/>
      {"".join(legs)}
    </body>
  </worldbody>{actuators}{extra}
</mujoco>"""


bare = partial(quadruped, actuators="")
"""The same without motors."""


def _link(name: str, mass: float, shape: str = "", z: float = 0.0) -> str:
    inertia = f'ixx="{mass / 100}" ixy="0" ixz="0" iyy="{mass / 100}" iyz="0" izz="{mass / 100}"'
    of = f'<inertial><origin xyz="0 0 {z}"/><mass value="{mass}"/><inertia {inertia}/></inertial>'
    return f'<link name="{name}">{of if mass else ""}{shape}</link>'


def _joint(name: str, parent: str, child: str, xyz: str, axis: str, limits: str) -> str:
    low, high, effort = limits.split()
    kind = "fixed" if not axis else "revolute"
    bounds = f'<limit lower="{low}" upper="{high}" effort="{effort}" velocity="10"/>'
    turn = f'<axis xyz="{axis}"/>{bounds}' if axis else ""
    ends = f'<parent link="{parent}"/><child link="{child}"/>'
    return f'<joint name="{name}" type="{kind}">{ends}<origin xyz="{xyz}"/>{turn}</joint>'


def biped() -> str:
    """URDF of a biped of 31 kg: a massless root, flat feet of boxes, arms whose mesh is missing."""
    parts = [_link("root", 0.0), _link("hips", 14.0), _link("chest", 5.0, z=0.1)]
    parts.append(_joint("weld", "root", "hips", "0 0 0", "", "0 0 0"))
    parts.append(_joint("waist", "hips", "chest", "0 0 0.1", "0 0 1", "-1 1 60"))
    for side, y in (("u", 0.1), ("v", -0.1)):
        sole = '<collision><origin xyz="0.03 0 -0.04"/><geometry><box size="0.2 0.08 0.02"/>'
        sole += "</geometry></collision>"
        mesh = '<collision><geometry><mesh filename="package://x/arm.stl"/></geometry></collision>'
        chain = [
            (f"{side}1", "hips", f"0 {y} -0.05", "0 1 0", "-1.5 1.5 90", 1.0, "", 0.0),
            (f"{side}2", f"{side}1", "0 0 0", "1 0 0", "-0.5 0.5 60", 1.5, "", -0.15),
            (f"{side}3", f"{side}2", "0 0 -0.3", "0 1 0", "-0.1 2.2 90", 1.5, "", -0.15),
            (f"{side}4", f"{side}3", "0 0 -0.3", "0 1 0", "-1 1 50", 0.1, "", 0.0),
            (f"{side}5", f"{side}4", "0 0 0", "1 0 0", "-0.3 0.3 30", 0.6, sole, -0.03),
            (f"{side}6", "chest", f"0 {1.6 * y} 0.25", "0 1 0", "-2 2 20", 1.3, mesh, -0.2),
        ]
        for name, parent, xyz, axis, limits, mass, shape, z in chain:
            parts.append(_link(name, mass, shape, z))
            parts.append(_joint(f"j{name}", parent, name, xyz, axis, limits))
    return f'<robot name="unknown">{"".join(parts)}</robot>'


def robot_of(text: str, folder: Path, suffix: str = "xml") -> Robot:
    source = read(model_file(text, folder, suffix))
    return inspect(source.spec, source.base)


def prepared_of(text: str, folder: Path, suffix: str = "xml") -> Prepared:
    return prepare(read(model_file(text, folder, suffix)))


def at_home(model: mujoco.MjModel) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_kinematics(model, data)
    return data


def model_file(text: str, folder: Path, suffix: str = "xml") -> Path:
    path = folder / f"robot.{suffix}"
    path.write_text(text)
    return path


def without(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def after(mark: str, text: str, old: str, new: str) -> str:
    """The text with the first `old` after a mark replaced."""
    before, text = text.split(mark, 1)
    assert old in text
    return before + mark + text.replace(old, new, 1)


def home_of(prepared: Prepared, *joints: str) -> list[float]:
    """Positions of joints at home."""
    return [float(at_home(prepared.model).joint(name).qpos[0]) for name in joints]


def is_good(prepared: Prepared, *rows: str) -> bool:
    """Whether the check has these rows, and finds nothing wrong in them."""
    found = {finding.what: finding.is_good for finding in check(prepared)}
    return all(found[row] for row in rows)


def off(prepared: Prepared) -> dict[str, str]:
    """What the check finds wrong, by row."""
    return {finding.what: finding.text for finding in check(prepared) if not finding.is_good}
