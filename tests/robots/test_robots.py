"""From a model that nobody has seen to a task: what is found, added, measured and written."""

from __future__ import annotations

import re
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from robots.models import (
    JOINTS,
    MOTORS,
    after,
    at_home,
    bare,
    biped,
    home_of,
    is_good,
    model_file,
    off,
    prepared_of,
    quadruped,
    robot_of,
    without,
)

import simtrain
from simtrain.cli.new import _show as show
from simtrain.cli.new import new
from simtrain.errors import ConfigError
from simtrain.robots.check import check
from simtrain.robots.gait import gait
from simtrain.robots.inspect import inspect
from simtrain.robots.kinematics import close_loops, inertias
from simtrain.robots.prepare import Prepared, prepare
from simtrain.robots.read import read
from simtrain.robots.standing import Guided, targets

GROUND = '<geom name="ground" type="plane" size="0 0 1"/>'


def test_finds_the_legs_of_a_quadruped(tmp_path: Path) -> None:
    robot = robot_of(quadruped(), tmp_path)
    assert robot.base == "middle"
    assert robot.mass == pytest.approx(16.4)
    assert [foot.name for foot in robot.feet] == ["FL", "FR", "RL", "RR"]
    assert [leg.joints for leg in robot.legs] == [(f"{n}a", f"{n}b", f"{n}c") for n in "pqrs"]
    assert robot.partners["pb"] == "qb"
    assert robot.partners["sc"] == "rc"
    assert all(foot.radius == pytest.approx(0.02) for foot in robot.feet)
    assert {(s.kind, s.torque) for s in robot.servos} == {("motor", 20.0), ("motor", 40.0)}


def test_finds_flat_feet_waist_and_arms_of_a_urdf(tmp_path: Path) -> None:
    path = model_file(biped(), tmp_path, "urdf")
    source = read(path)
    robot = inspect(source.spec, source.base)
    assert [foot.name for foot in robot.feet] == ["left", "right"]
    assert robot.feet[0].length == pytest.approx(0.2)
    assert robot.feet[0].center == pytest.approx([0.03, 0.0, -0.05], abs=1e-6)
    assert robot.trunk == ("waist",)
    assert {arm.joints for arm in robot.arms} == {("ju6",), ("jv6",)}
    assert "ju1" in robot.leg_joints
    assert "ju6" not in robot.leg_joints
    assert any("arm.stl" in note for note in source.notes)


@pytest.mark.parametrize(
    ("bits", "world"),
    [('contype="0" conaffinity="0"', GROUND), ('contype="2" conaffinity="4"', "")],
)
def test_every_foot_touches_the_ground(bits: str, world: str, tmp_path: Path) -> None:
    prepared = prepared_of(bare(bits=bits, world=world), tmp_path)
    assert not off(prepared)
    assert check(prepared)[1].text.startswith("3.0 s")


def test_what_collides_with_the_other_foot_alone_is_no_sole(tmp_path: Path) -> None:
    both = 'conaffinity="1"/><geom type="box" size="0.01 0.01 0.02" pos="0 0 -0.2" '
    prepared = prepared_of(bare(bits=both + 'contype="4" conaffinity="4" priority="1"'), tmp_path)
    boxes = [geom for geom in prepared.spec.geoms if geom.contype == 4]
    assert len(boxes) == 4
    assert {(geom.conaffinity, geom.priority) for geom in boxes} == {(4, 0)}


def test_stands_on_bent_legs_with_its_feet_below_its_hips(tmp_path: Path) -> None:
    prepared = prepared_of(quadruped(), tmp_path)
    data = at_home(prepared.model)
    assert 0.6 * 0.4 < prepared.hip_height < 0.85 * 0.4
    for name, x in (("FL", 0.2), ("RR", -0.2)):
        place = data.site(f"{name}_sole").xpos
        assert place[0] == pytest.approx(x, abs=0.01)
        assert place[2] == pytest.approx(0.02, abs=0.004)
    assert prepared.home[7:] == pytest.approx(np.tile(prepared.home[7:10], 4), abs=0.02)
    stands = check(prepared)[0].text
    assert re.search(r"(sinks|rises) \d+ mm, [p-s][a-c] is 0\.\d\d rad from home$", stands), stands


def test_knees_bend_although_their_axes_are_opposite_to_those_of_the_hips(tmp_path: Path) -> None:
    text = quadruped()
    for leg, sign in (("p", -1), ("q", 1), ("r", -1), ("s", 1)):
        old = f'<joint name="{leg}c" axis="0 1 0" range="-2.6 -0.3"/>'
        text = without(text, old, f'<joint name="{leg}c" axis="0 {sign} 0" range="-2.6 2.6"/>')
    prepared = prepared_of(text, tmp_path)
    left, right = home_of(prepared, "pc", "qc")
    assert left == pytest.approx(-right, abs=1e-3)
    assert right < -1.0
    assert 0.6 * 0.4 < prepared.hip_height < 0.85 * 0.4


@pytest.mark.parametrize(
    ("height", "leg", "is_pose"), [(0.1, "0 1.3 -2.55", True), (0.4, "0 45 -90", False)]
)
def test_a_keyframe_in_which_the_robot_lies_or_that_is_in_degrees_is_not_its_home(
    height: float, leg: str, is_pose: bool, tmp_path: Path
) -> None:
    key = f'<keyframe><key qpos="0 0 {height} 1 0 0 0 {" ".join([leg] * 4)}"/></keyframe>'
    prepared = prepared_of(quadruped(extra=key), tmp_path)
    assert prepared.robot.has_keyframe == is_pose
    assert any("keyframes are not used" in note for note in prepared.notes) != is_pose
    assert 0.6 * 0.4 < prepared.hip_height < 0.85 * 0.4
    assert is_good(prepared, "stands")


@pytest.mark.parametrize("mesh", [b"version https://git-lfs.github.com/spec/v1", b"solid\nfacet"])
def test_a_mesh_that_cannot_be_read_is_as_one_that_is_not_there(
    mesh: bytes, tmp_path: Path
) -> None:
    (tmp_path / "arm.stl").write_bytes(mesh)
    source = read(model_file(biped(), tmp_path, "urdf"))
    assert any("not readable (arm.stl" in note for note in source.notes)


@pytest.mark.parametrize("suffix", ["URDF", "urdf"])
def test_a_urdf_may_have_points_as_soles_and_a_name_in_capitals(
    suffix: str, tmp_path: Path
) -> None:
    box = '<box size="0.2 0.08 0.02"/></geometry></collision>'
    point = '<sphere radius="0.0"/></geometry></collision>'
    corners = [f'<origin xyz="{x} {y} -0.05"/>' for x in (-0.07, 0.13) for y in (-0.04, 0.04)]
    points = "<collision>".join(f"{corner}<geometry>{point}" for corner in corners)
    text = without(biped(), f'<origin xyz="0.03 0 -0.04"/><geometry>{box}', points)
    prepared = prepared_of(text, tmp_path, suffix)
    assert prepared.robot.feet[0].length == pytest.approx(0.2, abs=0.01)
    assert is_good(prepared, "stands")
    assert any("are balls of 5 mm" in note for note in prepared.notes)


def test_a_urdf_may_have_several_materials_in_a_shape(tmp_path: Path) -> None:
    colors = "".join(f'<material name="{n}"><color rgba="1 0 0 1"/></material>' for n in "xy")
    shape = f'<visual><geometry><box size="0.1 0.1 0.1"/></geometry>{colors}</visual>'
    mass = prepared_of(biped(), tmp_path, "urdf").robot.mass
    text = without(biped(), '<link name="chest">', f'<link name="chest">{shape}')
    assert prepared_of(text, tmp_path, "urdf").robot.mass == pytest.approx(mass)


def test_attributes_that_mjcf_had_are_left_out(tmp_path: Path) -> None:
    old = '<option apirate="100"><flag sensornoise="enable"/></option>'
    text = quadruped()
    robot = robot_of(without(text, "<worldbody>", f"{old}<worldbody>"), tmp_path)
    assert robot.partners == robot_of(text, tmp_path).partners
    never = without(text, "<worldbody>", '<option foo="1"/><worldbody>')
    with pytest.raises(ConfigError, match="unrecognized attribute: 'foo'"):
        robot_of(never, tmp_path)


def test_what_is_added_ignores_the_defaults_of_the_model(tmp_path: Path) -> None:
    text = quadruped()
    plain = prepared_of(text, tmp_path)
    defaults = '<default><motor gear="7" ctrlrange="-1 1"/>'
    defaults += '<geom group="3" priority="2" friction="0.3 0.1 0.1" margin="0.05"/></default>'
    model = prepared_of(without(text, "<worldbody>", f"{defaults}<worldbody>"), tmp_path).model
    assert (model.actuator_gear[:, 0] == 1.0).all()
    np.testing.assert_allclose(model.actuator_forcerange, plain.model.actuator_forcerange)
    np.testing.assert_allclose(model.actuator_gainprm, plain.model.actuator_gainprm, rtol=0.1)


def test_a_servo_of_speed_is_none_of_position(tmp_path: Path) -> None:
    servo = r'<intvelocity joint="\1" kp="60" actrange="-3 3" forcerange="-25 25"'
    text = re.sub(r'<motor name="...?" joint="(..)" ctrlrange="-1 1" gear=".."', servo, MOTORS)
    prepared = prepared_of(quadruped(actuators=text), tmp_path)
    assert {servo.kind for servo in prepared.robot.servos} == {"motor"}
    assert is_good(prepared, "stands")


def test_actuators_of_tendons_exert_no_force_at_home(tmp_path: Path) -> None:
    motors = re.sub(r'joint="(..)" ctrl', r'tendon="t\1" ctrl', MOTORS)
    tendons = "".join(f'<fixed name="t{j}"><joint joint="{j}" coef="2"/></fixed>' for j in JOINTS)
    text = quadruped(actuators=motors, extra=f"<tendon>{tendons}</tendon>")
    prepared = prepared_of(text, tmp_path)
    of_tendons = [i for i in range(prepared.model.nu) if prepared.model.actuator(i).name[0] == "m"]
    assert len(of_tendons) == 12
    assert (prepared.ctrl[of_tendons] == 0.0).all()
    assert is_good(prepared, "stands")


def test_a_moment_of_inertia_above_the_sum_of_the_others_is_told(tmp_path: Path) -> None:
    text = without(quadruped(), 'diaginertia="0.1 0.2 0.2"', 'diaginertia="0.1 0.1 1"')
    notes = read(model_file(text, tmp_path)).notes
    assert any("moment of inertia of middle is more" in note for note in notes)
    assert not read(model_file(quadruped(), tmp_path)).notes


def test_feet_lift_no_higher_than_their_joints_allow(tmp_path: Path) -> None:
    text = quadruped()
    free, stiff = (
        gait(prepared_of(t, tmp_path)) for t in (text, text.replace('"-2.6 -0.3"', '"-1.7 1.7"'))
    )
    assert free.swing_height == pytest.approx(0.28 * 0.3, rel=0.2)
    assert 0.0 < stiff.swing_height < 0.5 * free.swing_height


def test_feet_that_joints_hold_up_at_their_limits_can_be_lifted_from_home(tmp_path: Path) -> None:
    """Knees bend diagonally, so the pose of the model is not solved anew."""
    text = quadruped().replace('"1 0 0" range="-0.8 0.8"', '"0 0 1" range="-0.4 0.4"')
    text = text.replace('"0 1 0" range="-1.5 2.5"', '"0 0 1" range="-0.4 0.4"')
    for leg, x, y in (("p", 1, 1), ("q", 1, -1), ("r", -1, 1), ("s", -1, -1)):
        text = after(f'"{leg}c" axis', text, '"0 1 0"', f'"{-y} {x} 0"')
        text = after(f'"{leg}c" axis', text, '"-2.6 -0.3"', '"0.5 1.3"')
        text = after(f'"{leg}c" axis', text, 'pos="0 0 -0.2"', f'pos="{0.2 * x} {0.2 * y} 0"')
    prepared = prepared_of(text, tmp_path)
    assert home_of(prepared, "pa", "pc") == pytest.approx([0.0, 0.7], abs=0.02)
    figures = gait(prepared)
    assert all(figures.bend[f"{leg}c"] < -0.1 for leg in "pqrs")
    assert is_good(prepared, "stands")


def test_a_foot_is_named_once(tmp_path: Path) -> None:
    source = read(model_file(quadruped(), tmp_path))
    with pytest.raises(ConfigError, match="--feet names the leg that ends at p2 more than once"):
        inspect(source.spec, source.base, feet=("p2", "q2", "r2", "s2", "p2"))


def test_legs_are_pairs_although_their_frames_lie_elsewhere_on_the_axes(tmp_path: Path) -> None:
    text = quadruped()
    for place, shifted in (("-0.2", 0.04), ("-0.1", -0.04), ("-0.2", -0.04)):
        text = after('"q2"', text, f'pos="0 0 {place}"', f'pos="0 {shifted} {place}"')
    robot = robot_of(text, tmp_path)
    assert robot.partners["pc"] == "qc"
    assert robot.partners["qa"] == "pa"


@pytest.mark.parametrize("turn", ["hinge", "ball"])
def test_slides_and_turns_of_the_base_are_a_free_joint(turn: str, tmp_path: Path) -> None:
    axes = ("1 0 0", "0 1 0", "0 0 1")
    kinds = [("slide", 3), (turn, 3 if turn == "hinge" else 1)]
    joints = "".join(
        f'<joint name="{kind}{i}" type="{kind}" axis="{axes[i]}"/>'
        for kind, count in kinds
        for i in range(count)
    )
    sensor = "jointpos" if turn == "hinge" else "ballquat"
    more = f'<sensor><{sensor} joint="{turn}0"/></sensor>'
    more = f'<actuator><motor joint="slide0"/></actuator>{more}'
    text = quadruped(extra=more).replace('<freejoint name="root"/>', joints)
    prepared = prepared_of(text, tmp_path)
    assert prepared.robot.trunk == ()
    assert is_good(prepared, "stands")


def test_feet_point_ahead_although_a_hip_turns_about_two_axes_at_once(tmp_path: Path) -> None:
    text = biped()
    for side, sign in (("u", 1), ("v", -1)):
        text = after(f'"j{side}1"', text, '"0 1 0"', f'"0 0.7072 {-0.7070 * sign}"')
        text = after(f'<child link="{side}2"/>', text, '"1 0 0"', '"0 1 0"')
    prepared = prepared_of(text, tmp_path, "urdf")
    data = at_home(prepared.model)
    for foot in prepared.robot.feet:
        assert data.body(foot.body).xmat[3] == pytest.approx(0.0, abs=0.03)  # no yaw
    assert data.joint("ju3").qpos[0] > 0.4
    assert abs(data.joint("ju1").qpos[0]) < 0.05


def test_a_hip_that_is_tilted_by_45_degrees_is_where_the_leg_begins(tmp_path: Path) -> None:
    text = biped()
    for side, sign in (("u", 1), ("v", -1)):
        text = after(f'"j{side}1"', text, '"0 1 0"', f'"0 0.7070 {-0.7072 * sign}"')
    prepared, straight = prepared_of(text, tmp_path, "urdf"), prepared_of(biped(), tmp_path, "urdf")
    assert prepared.hip_height == pytest.approx(straight.hip_height, abs=0.02)
    assert abs(gait(prepared).bend["ju1"]) > 0.1


def test_knees_tell_where_a_robot_without_shapes_of_feet_looks(tmp_path: Path) -> None:
    text = re.sub("<collision>.*?</collision>", "", biped())
    assert robot_of(text, tmp_path, "urdf").heading == 0.0
    for low, high, heading in ((-2.2, 0.1, np.pi), (-1.6, 1.5, 0.0)):
        knee = without(text, 'lower="-0.1" upper="2.2"', f'lower="{low}" upper="{high}"')
        assert abs(robot_of(knee, tmp_path, "urdf").heading) == pytest.approx(heading)


def test_soles_tell_where_a_robot_looks_wherever_the_anchors_of_rolling_ankles_are(
    tmp_path: Path,
) -> None:
    text = biped()
    for side in "uv":
        text = after(f'<child link="{side}5"/>', text, 'xyz="0 0 0"', 'xyz="0.1 0 0"')
        text = after(f'<link name="{side}5">', text, 'xyz="0.03 0', 'xyz="-0.07 0')
    assert robot_of(text, tmp_path, "urdf").heading == 0.0


def test_knees_do_not_tell_where_a_robot_looks_if_one_foot_has_a_shape(tmp_path: Path) -> None:
    before, foot = without(biped(), '"-0.1" upper="2.2"', '"-2.2" upper="0.1"').split('name="v5"')
    text = f'{before}name="v5"{re.sub("<collision>.*?</collision>", "", foot)}'
    assert robot_of(text, tmp_path, "urdf").heading == 0.0


def test_a_mesh_without_volume_has_no_mass(tmp_path: Path) -> None:
    flat = '<asset><mesh name="a b" vertex="0 0 0 1 0 0 0 1 0 1 1 0" face="0 1 2 1 3 2"/></asset>'
    plate = '<body><geom type="mesh" mesh="a b" contype="0" conaffinity="0"/></body>'
    text = after("q0", quadruped(extra=flat), "</body>", f"{plate}</body>")
    prepared = prepared_of(text, tmp_path)
    assert prepared.robot.mass == pytest.approx(16.4, abs=0.01)
    assert any("a b has no volume" in note for note in prepared.notes)
    assert is_good(prepared, "stands", "masses")


def test_a_robot_on_six_legs_has_three_on_each_side(tmp_path: Path) -> None:
    leg = """<body name="{n}0" pos="{x} {y} 0" euler="0 0 {yaw}">
    <joint name="{n}a" axis="0 0 1" range="-1 1"/><geom size="0.02" mass="0.1"/>
    <body name="{n}1" pos="0.05 0 0"><joint name="{n}b" axis="0 1 0" range="-1.5 1.5"/>
    <geom type="capsule" size="0.01" fromto="0 0 0 0.08 0 0" mass="0.1"/>
    <body name="{n}2" pos="0.08 0 0"><joint name="{n}c" axis="0 1 0" range="-1.5 1.5"/>
    <geom type="capsule" size="0.01" fromto="0 0 0 0.01 0 -0.15" mass="0.1"/>
    </body></body></body>"""
    ahead = (0.1, 0.0, -0.1)
    places = [(x, y, y / 0.06 * np.radians(90 - 450 * x)) for y in (0.06, -0.06) for x in ahead]
    legs = [leg.format(n=n, x=x, y=y, yaw=a) for n, (x, y, a) in zip("abcdef", places, strict=True)]
    text = f"""<mujoco><compiler angle="radian"/><worldbody><body name="body"><freejoint/>
    <geom type="box" size="0.12 0.06 0.02" mass="1"/>{"".join(legs)}</body></worldbody></mujoco>"""
    robot = robot_of(text, tmp_path)
    assert robot.heading == 0.0
    assert [robot.partners[f"{n}b"] for n in "abc"] == ["db", "eb", "fb"]
    motors = "".join(f'<motor joint="{n}{j}" gear="2"/>' for n in "abcdef" for j in "abc")
    text = without(text, "</worldbody>", f"</worldbody><actuator>{motors}</actuator>")
    prepared = prepared_of(
        without(text, "<mujoco>", '<mujoco><compiler angle="radian"/>'), tmp_path
    )
    data = at_home(prepared.model)
    soles = [data.site(f"{foot.name}_sole").xpos[2] for foot in prepared.robot.feet]
    assert max(soles) - min(soles) < 0.002


def test_a_small_foot_of_a_robot_that_lies_at_zero_is_no_sole(tmp_path: Path) -> None:
    box = 'type="box" size="0.005 0.005 0.005" pos="0 0 -0.2"'
    text = quadruped().replace('type="sphere" size="0.02" pos="0 0 -0.2"', box)
    for n in "pqrs":
        text = after(f'"{n}c"', text, '"-2.6 -0.3"', '"-2.6 2.6"')
        text = text.replace(f'name="{n}1"', f'name="{n}1" euler="0 1.5 0"')
    prepared = prepared_of(text.replace('0.08 0.05" contype', '0.08 0.01" contype'), tmp_path)
    assert [foot.length for foot in prepared.robot.feet] == [0.0] * 4
    assert 0.6 * 0.4 < prepared.hip_height < 0.85 * 0.4


def test_a_foot_without_a_shape_is_as_long_as_its_inertia(tmp_path: Path) -> None:
    text = re.sub("<collision>.*?</collision>", "", biped())
    for side in "uv":
        for axes, moment in (("ixx", 0.0004), ("iyy", 0.0021), ("izz", 0.0024)):
            text = after(f'<link name="{side}5">', text, f'{axes}="0.006"', f'{axes}="{moment}"')
    prepared = prepared_of(text, tmp_path, "urdf")
    sole = prepared.model.geom("left_sole_0")
    assert sole.type == mujoco.mjtGeom.mjGEOM_BOX
    assert sorted(sole.size)[2] == pytest.approx(0.1, abs=0.005)
    assert prepared.robot.feet[0].length == pytest.approx(0.2, abs=0.01)
    assert is_good(prepared, "stands")


def test_links_beside_a_leg_are_held_where_no_loop_holds_them(tmp_path: Path) -> None:
    rod = """<body name="rod" pos="0 0 -0.05"><joint name="rod" axis="0 1 0"/>
    <geom type="capsule" size="0.005" fromto="0 0 0 0.08 0 0" mass="0.05" contype="0"
    conaffinity="0"/></body>"""
    text = without(quadruped(), '<body name="p2"', f'{rod}<body name="p2"')
    prepared = prepared_of(text, tmp_path)
    assert prepared.robot.legs[0].beside == ("rod",)
    assert is_good(prepared, "stands")


@pytest.mark.parametrize("place", ["0.2 0.3 0.7", "0 -0.08 0"])
def test_the_frame_of_the_base_may_lie_on_the_ground_or_aside(place: str, tmp_path: Path) -> None:
    """As in models from CAD."""
    text = biped()
    weld = '<child link="hips"/><origin xyz="'
    text = without(text, f'{weld}0 0 0"/>', f'{weld}{place}"/>')
    prepared = prepared_of(text, tmp_path, "urdf")
    assert [foot.name for foot in prepared.robot.feet] == ["left", "right"]
    assert prepared.robot.partners["ju1"] == "jv1"
    assert 0.5 < prepared.home[2] < 1.0
    assert abs(prepared.home[1]) < 0.01
    sides = [at_home(prepared.model).site(f"{side}_sole").xpos[1] for side in ("left", "right")]
    assert sum(sides) == pytest.approx(0.0, abs=0.01)
    assert any("frame of root is moved" in note for note in prepared.notes)
    assert is_good(prepared, "stands")


def test_a_placeholder_of_a_joint_is_no_second_robot(tmp_path: Path) -> None:
    inertial = '<inertial mass="1e-3" pos="0 0 0" diaginertia="1e-3 1e-3 1e-3"/>'
    world = f'<body name="none" pos="0 0 20">{inertial}<joint name="none"/></body>'
    more = '<actuator><motor joint="none"/></actuator>'
    robot = robot_of(quadruped(world=world, extra=more), tmp_path)
    assert robot.base == "middle"
    assert "none" not in robot.joints


def test_links_without_shapes_are_seen_as_bones(tmp_path: Path) -> None:
    model = prepared_of(quadruped(), tmp_path).model
    bones = model.geom_type == mujoco.mjtGeom.mjGEOM_CAPSULE
    seen = [model.body(body).name for body in model.geom_bodyid[bones]]
    assert sorted(seen) == sorted(f"{n}{i}" for n in "pqrs" for i in range(3))
    assert not model.geom_contype[bones].any()
    assert not model.geom_conaffinity[bones].any()
    assert model.body_mass.sum() == pytest.approx(16.4)


def test_parts_that_touch_at_home_part_although_the_model_pairs_them(tmp_path: Path) -> None:
    text = bare(extra='<contact><pair geom1="trunk" geom2="hip"/></contact>')
    text = text.replace('<geom type="box" size="0.2', '<geom name="trunk" type="box" size="0.2')
    hip = '<geom name="hip" type="sphere" size="0.1" contype="0" conaffinity="0"/>'
    prepared = prepared_of(text.replace('<joint name="pa"', f'{hip}<joint name="pa"'), tmp_path)
    assert prepared.touching == (("middle", "p0"),)
    assert not prepared.model.npair
    assert is_good(prepared, "stands")


def test_a_biped_stands_on_flat_soles(tmp_path: Path) -> None:
    prepared = prepared_of(biped(), tmp_path, "urdf")
    data = at_home(prepared.model)
    assert data.site("left_sole").xmat[8] == pytest.approx(1.0, abs=1e-4)
    assert data.joint("ju3").qpos[0] > 0.2
    assert data.joint("ju3").qpos == pytest.approx(data.joint("jv3").qpos, abs=1e-6)
    assert not off(prepared)


def with_arms(roll: float, hips: str = "") -> str:
    """The biped with arms of shoulders that roll, turned outward by `roll`, and a shape of hips."""
    text = after('<link name="hips">', biped(), "</link>", f"{hips}</link>")
    stick = '<collision><origin xyz="0 0 -0.2"/><geometry><cylinder radius="0.03" length="0.4"/>'
    mesh = '<collision><geometry><mesh filename="package://x/arm.stl"/></geometry></collision>'
    text = without(text, mesh, f"{stick}</geometry></collision>")
    for place, turn in ((0.1, roll), (-0.1, -roll)):
        old = f'<origin xyz="0 {1.6 * place} 0.25"/><axis xyz="0 1 0"/>'
        new = f'<origin xyz="0 {1.6 * place} 0.25" rpy="{turn} 0 0"/><axis xyz="1 0 0"/>'
        text = without(text, old, new)
    return text


BOX = '<collision><geometry><box size="0.2 0.5 0.1"/></geometry></collision>'


@pytest.mark.parametrize(
    ("roll", "hips", "lowest", "highest"),
    [
        (1.57, "", -0.2, -0.19),
        (1.57, BOX, -0.18, -0.1),  # so wide that hanging arms would touch it
        (2.6, "", 0.15, 0.2),  # they point up
    ],
)
def test_arms_that_are_stretched_out_hang_at_home_clear_of_the_rest(
    roll: float, hips: str, lowest: float, highest: float, tmp_path: Path
) -> None:
    prepared = prepared_of(with_arms(roll, hips), tmp_path, "urdf")
    data = at_home(prepared.model)
    assert not prepared.touching
    for side, outward in (("u", 1.0), ("v", -1.0)):
        arm = data.body(f"{side}6")
        assert lowest < arm.xipos[2] - arm.xpos[2] < highest
        assert outward * (arm.xipos[1] - arm.xpos[1]) > 0.02


def test_arms_of_a_loop_stay_where_they_are(tmp_path: Path) -> None:
    mimic = '<mimic joint="ju6" multiplier="1"/></joint>'
    text = after('<joint name="jv6"', with_arms(1.57), "</joint>", mimic)
    prepared = prepared_of(text, tmp_path, "urdf")
    assert prepared.model.neq == 1
    arm = at_home(prepared.model).body("u6")
    assert abs(arm.xipos[2] - arm.xpos[2]) < 0.01


def _moved(prepared: Prepared) -> np.ndarray:
    """Positions 0.3 s after all targets have moved by 0.1 rad, in the air."""
    guided = Guided(prepared.model, prepared.home, lift=1.0)
    for _ in guided.run(0.3, prepared.ctrl + 0.1):
        pass
    return guided.data.qpos.copy()


def test_a_servo_behind_a_gear_gets_the_target_of_its_joint(tmp_path: Path) -> None:
    def made(kp: float, kv: float, gear: float):
        low, high = sorted((-50.0 / gear, 60.0 / gear))
        least, most = sorted((-3.0 * gear, 2.0 * gear))
        servos = "".join(
            f'<position joint="{j}" kp="{kp}" kv="{kv}" forcerange="{low} {high}" gear="{gear}" '
            f'ctrlrange="{least} {most}" armature="{0.02 / gear**2}"/>'
            for j in JOINTS
        )
        return prepared_of(quadruped(actuators=f"<actuator>{servos}</actuator>"), tmp_path)

    plain, geared = made(80.0, 4.0, 1.0), made(20.0, 1.0, -2.0)
    assert geared.model.actuator_gear[:, 0] == pytest.approx(1.0)
    assert geared.ctrl == pytest.approx(plain.ctrl, abs=1e-6)
    assert geared.model.actuator_ctrlrange == pytest.approx(plain.model.actuator_ctrlrange)
    assert geared.model.actuator_forcerange == pytest.approx(plain.model.actuator_forcerange)
    assert geared.robot.servos == plain.robot.servos
    assert _moved(geared) == pytest.approx(_moved(plain), abs=1e-6)


def test_a_velocity_servo_beside_a_position_servo_is_damping(tmp_path: Path) -> None:
    def made(of_joint: str):
        servos = "".join(of_joint.format(joint=joint) for joint in JOINTS)
        sensors = '<sensor><actuatorfrc actuator="v_pa"/></sensor>' if "v_" in of_joint else ""
        text = quadruped(actuators=f"<actuator>{servos}</actuator>{sensors}")
        return prepared_of(text, tmp_path)

    position = '<position joint="{joint}" kp="80" kv="KV" forcerange="-50 50"/>'
    velocity = '<velocity name="v_{joint}" joint="{joint}" kv="4" gear="0.5" ctrlrange="-3 3"/>'
    alone = made(position.replace("KV", "2"))
    for pair in (velocity + position, position + velocity):
        both = made(pair.replace("KV", "1"))
        assert both.model.nu == 12
        assert "12 actuators beside a position servo" in "\n".join(both.notes)
        assert both.robot.servos == alone.robot.servos
        assert _moved(both) == pytest.approx(_moved(alone), abs=1e-4)


def test_a_short_name_of_a_side_does_not_catch_the_names_of_the_feet(tmp_path: Path) -> None:
    text = biped().replace('"ju', '"l').replace('"jv', '"r')
    sides = gait(prepared_of(text, tmp_path, "urdf")).mirror
    assert sides == {"left_(.*)": "right_(.*)", "l(.*)": "r(.*)"}
    assert next(iter(sides)) == "left_(.*)"  # the first that fits counts


def test_names_of_sides_are_whole_words(tmp_path: Path) -> None:
    text = re.sub('"ju([0-9])', r'"left-joint-\1', biped())
    sides = gait(
        prepared_of(re.sub('"jv([0-9])', r'"right-joint-\1', text), tmp_path, "urdf")
    ).mirror
    assert sides == {"left-(.*)": "right-(.*)", "left_(.*)": "right_(.*)"}


def test_a_prefix_of_one_side_alone_does_not_catch_all_names(tmp_path: Path) -> None:
    text = re.sub('"jv([0-9])', r'"r_joint_\1', re.sub('"ju([0-9])', r'"joint_\1', biped()))
    sides = gait(prepared_of(text, tmp_path, "urdf")).mirror
    assert sides == {"left_(.*)": "right_(.*)", "joint_(.*)": "r_joint_(.*)"}


def test_legs_follow_their_steps_although_the_motors_are_weak(tmp_path: Path) -> None:
    prepared = prepared_of(quadruped(actuators=MOTORS.replace('gear="20"', 'gear="8"')), tmp_path)
    model, rate = prepared.model, 2.0 * np.pi * gait(prepared).frequency
    guided = Guided(model, prepared.home, lift=1.0)
    hips = [model.actuator(name).id for name in ("pb", "qb", "rb", "sb")]
    ctrl, angles = targets(model, prepared.home), []
    for _ in range(round(8.0 * np.pi / rate / model.opt.timestep)):
        now = ctrl.copy()
        now[hips] += 0.03 * np.sin(rate * guided.data.time)
        next(guided.run(model.opt.timestep, now))
        angles.append(guided.data.joint("pb").qpos[0])
    last = np.array(angles[len(angles) // 2 :])
    assert 0.7 < np.ptp(last) / 0.06 < 1.3


def _prepared_biped(folder: Path) -> mujoco.MjSpec:
    """Without the ellipsoids of inertias, which reach below its soles."""
    spec = prepared_of(biped(), folder, "urdf").spec
    for look in [geom for geom in spec.geoms if geom.group == 2]:
        spec.delete(look)
    return spec


def test_actions_are_larger_where_hips_swing_more_slowly_than_the_robot_steps(
    tmp_path: Path,
) -> None:
    spec = _prepared_biped(tmp_path)

    def scale(hips: float) -> tuple[float, float, float, str]:
        """Of a knee, whose servo remains; how slow a hip is; both hips' scale; a hip's servo."""
        for side in "uv":
            spec.actuator(f"j{side}1").set_to_position(kp=hips, kv=4.0)
        prepared = prepared_of(spec.to_xml(), tmp_path)
        figures = gait(prepared)
        moved = inertias(prepared.model, prepared.home)["ju1"]
        slow = moved * (1.7 * 2.0 * np.pi * figures.frequency) ** 2 / hips
        kind = next(servo.kind for servo in prepared.robot.servos if servo.joint == "ju1")
        return figures.action_scale["ju3"], slow, figures.action_scale["ju1"], kind

    stiff, soft, weak = scale(900.0), scale(80.0), scale(8.0)
    assert stiff[1] < 1.0
    assert 1.5 < soft[1] < 4.0
    assert soft[0] == pytest.approx(stiff[0] * soft[1], rel=0.1)
    assert soft[2] > 2.0 * stiff[2]
    assert weak[1] > 4.0
    assert (stiff[3], soft[3], weak[3]) == ("position", "position", "motor")


def test_actions_do_not_tip_stiff_feet(tmp_path: Path) -> None:
    spec = _prepared_biped(tmp_path)
    for joint in ("ju1", "jv1", "ju4", "jv4"):
        spec.actuator(joint).set_to_position(kp=1000.0, kv=10.0)
    prepared = prepared_of(spec.to_xml(), tmp_path)
    scales, (foot, _) = gait(prepared).action_scale, prepared.robot.feet
    assert scales["ju1"] >= 0.1
    assert 0.0 < 1000.0 * scales["ju4"] < 0.5 * foot.length * prepared.robot.mass * 9.81


def test_weak_servos_of_legs_are_replaced_and_rotors_have_inertia(tmp_path: Path) -> None:
    def made(kp: float):
        servos = MOTORS.replace("<motor", f'<position kp="{kp}" kv="1" forcerange="-20 20"')
        return prepared_of(
            quadruped(actuators=re.sub('ctrlrange="[^"]*" gear="[^"]*"', "", servos)), tmp_path
        )

    strong, weak = made(60.0), made(4.0)
    assert {servo.kind for servo in strong.robot.servos} == {"position"}
    assert strong.model.actuator("mpb").gainprm[0] == 60.0
    rotor = strong.model.dof_armature[strong.model.joint("pb").dofadr[0]]
    assert 0.0 < rotor < 0.05
    assert is_good(weak, "stands")
    follows = next(servo for servo in weak.robot.servos if servo.joint == "pb")
    assert follows.kind == "motor"
    assert follows.stiffness > 4.0 * 4.0
    assert follows.torque == 20.0


def test_a_joint_that_a_linkage_holds_gets_no_servo(tmp_path: Path) -> None:
    strut = """<body name="{n}s" pos="0.1 0 0"><joint name="{n}s" type="ball"/>
    <geom type="capsule" size="0.005" fromto="0 0 0 0.02 0 -0.2" mass="0.05" contype="0"
    conaffinity="0"/></body>"""
    text, ends = quadruped(actuators=re.sub('<motor name="m.c"[^>]*>', "", MOTORS)), ""
    for n in "pqrs":
        shank = f'<body name="{n}2"'
        text = text.replace(shank, f'{strut.format(n=n)}{shank} euler="0 -0.9 0"')
        ends += f'<connect body1="{n}s" body2="{n}2" anchor="0.02 0 -0.2" solref="0.005 1"/>'
    text = text.replace("</mujoco>", f"<equality>{ends}</equality></mujoco>")
    text = text.replace('range="-2.6 -0.3"', 'range="-1.7 0.6"')
    prepared = prepared_of(text, tmp_path)
    assert prepared.robot.legs[0].joints == ("pa", "pb")
    driven = {servo.joint for servo in prepared.robot.servos if servo.torque}
    assert driven == {joint for joint in JOINTS if joint[1] != "c"}
    assert is_good(prepared, "stands", "loops")


def test_a_leg_whose_linkage_moves_the_foot_can_bend(tmp_path: Path) -> None:
    foot = '<geom type="sphere" size="0.02" pos="0 0 -0.2" />'
    tarsus = """<body name="{n}3" pos="0 0 -0.2"><joint name="{n}d" axis="0 1 0" armature="0.05"/>
    <inertial mass="0.1" pos="0 0 -0.1" diaginertia="1e-4 1e-4 1e-4"/>
    <geom type="sphere" size="0.02" pos="0 0 -0.2"/></body>"""
    text, follows = quadruped(), ""
    for n in "pqrs":
        text = text.replace(foot, tarsus.format(n=n), 1)
        follows += f'<joint joint1="{n}d" joint2="{n}c" polycoef="0 -2 0 0 0" solref="0.005 1"/>'
    text = text.replace("</mujoco>", f"<equality>{follows}</equality></mujoco>")
    prepared = prepared_of(text, tmp_path)
    figures = gait(prepared)
    data = at_home(model := prepared.model)
    height, bend = data.site("FL_sole").xpos[2], {"pb": 0.0} | figures.bend
    for name, angle in (("pb", bend["pb"]), ("pc", bend["pc"]), ("pd", -2.0 * bend["pc"])):
        data.joint(name).qpos += angle
    mujoco.mj_kinematics(model, data)
    assert data.site("FL_sole").xpos[2] - height == pytest.approx(figures.swing_height, rel=0.1)


@pytest.mark.parametrize("stiffness", [50, 1500])
def test_loops_close_within_ranges_and_by_bending_springs_little(
    stiffness: int, tmp_path: Path
) -> None:
    foot = '<geom type="sphere" size="0.02" pos="0 0 -0.2" />'
    tarsus = """<body name="{n}3" pos="0 0 -0.2"><joint name="{n}d" axis="0 1 0" armature="0.05"
    range="-1 1.6"/><inertial mass="0.1" pos="0 0 -0.1" diaginertia="1e-4 1e-4 1e-4"/>
    <body name="{n}4"><joint name="{n}e" axis="0 1 0" stiffness="{k}" damping="5"/>
    <inertial mass="0.1" pos="0 0 -0.1" diaginertia="1e-4 1e-4 1e-4"/>
    <geom type="sphere" size="0.02" pos="0 0 -0.2"/></body></body>"""
    text, tendons, loops = quadruped(), "", ""
    for n in "pqrs":
        text = text.replace(foot, tarsus.format(n=n, k=stiffness), 1)
        joints = {"c": 2, "d": 1, "e": 1}
        parts = "".join(f'<joint joint="{n}{j}" coef="{coef}"/>' for j, coef in joints.items())
        tendons += f'<fixed name="{n}">{parts}</fixed>'
        loops += f'<tendon tendon1="{n}" polycoef="0 0 0 0 0" solref="0.005 1"/>'
    parts = f"<tendon>{tendons}</tendon><equality>{loops}</equality></mujoco>"
    text = text.replace('mass="0.1"', 'mass="0.4"', 1)  # of the left front alone
    prepared = prepared_of(text.replace("</mujoco>", parts), tmp_path)
    for left, right, sign in (("pa", "qa", -1.0), ("pb", "qb", 1.0), ("rc", "sc", 1.0)):
        angle, image = home_of(prepared, left, right)
        assert angle == pytest.approx(sign * image, abs=1e-6)
        target, image = (prepared.ctrl[prepared.model.actuator(n).id] for n in (left, right))
        assert target == pytest.approx(sign * image, abs=1e-6)
    for knee, tarsus_at, spring_at in ((-0.7, 1.4, 0.0), (-1.2, 1.6, 0.8)):
        data = at_home(prepared.model)
        data.joint("pc").qpos, data.joint("pd").qpos, data.joint("pe").qpos = knee, 0.0, 0.0
        assert np.abs(close_loops(data, prepared.robot)).max() < 1e-6
        assert data.joint("pd").qpos[0] == pytest.approx(tarsus_at, abs=0.01)
        assert data.joint("pe").qpos[0] == pytest.approx(spring_at, abs=0.01)


def test_the_physics_step_is_fine_enough_for_a_robot_that_falls(tmp_path: Path) -> None:
    trunk = 'size="0.2 0.08 0.05" contype="0" conaffinity="0"'  # touches nothing at home
    stiff = 'size="0.2 0.08 0.05" priority="1" solref="-1e6 -100" solimp="0.99 0.999 0.001"'
    text = quadruped()
    assert prepared_of(text, tmp_path).model.opt.timestep == 0.01
    assert prepared_of(without(text, trunk, stiff), tmp_path).model.opt.timestep <= 0.004


def test_a_motor_that_drives_a_knee_by_a_gear_acts_on_the_knee(tmp_path: Path) -> None:
    gear = """<body name="{n}g" pos="0 0.03 0"><joint name="{n}g" axis="0 1 0" armature="0.005"/>
    <geom type="sphere" size="0.01" mass="0.05" contype="0" conaffinity="0"/></body>"""
    text, gears = re.sub('joint="(.)c" ctrl', r'joint="\1g" ctrl', quadruped()), ""
    for n in "pqrs":
        text = text.replace(shank := f'<body name="{n}2"', f"{gear.format(n=n)}{shank}")
        gears += f'<joint joint1="{n}c" joint2="{n}g" polycoef="0 -0.5 0 0 0"/>'
    text = text.replace("</mujoco>", f"<equality>{gears}</equality></mujoco>")
    limited = '<default><motor ctrllimited="true" forcelimited="false"/></default><worldbody>'
    prepared = prepared_of(text.replace("<worldbody>", limited), tmp_path)
    assert prepared.robot.legs[0].joints == ("pa", "pb", "pc")
    torques = {servo.joint: servo.torque for servo in prepared.robot.servos}
    assert (torques["pb"], torques["pc"], torques["pg"]) == (20.0, pytest.approx(80.0), 0.0)
    assert {prepared.model.actuator(i).name for i in range(prepared.model.nu)} == {*JOINTS}
    knee, motor = home_of(prepared, "pc", "pg")
    assert knee == pytest.approx(-0.5 * motor, abs=0.02)
    assert not off(prepared)
    assert any(note.endswith("what they drive: pc, qc, rc, sc") for note in prepared.notes)


def test_a_joint_of_a_leg_that_follows_another_gets_no_servo(tmp_path: Path) -> None:
    text = biped()
    for side in "uv":
        mimic = f'<mimic joint="j{side}3" multiplier="-0.5"/></joint>'
        text = after(f'<joint name="j{side}4"', text, "</joint>", mimic)
    prepared = prepared_of(text, tmp_path, "urdf")
    knee, ankle = home_of(prepared, "ju3", "ju4")
    assert ankle == pytest.approx(-0.5 * knee, abs=0.03)
    assert "ju4" not in gait(prepared).action_scale
    assert is_good(prepared, "stands")


def test_fingers_that_a_keyframe_leaves_apart_are_closed(tmp_path: Path) -> None:
    finger = """<body name="{n}" pos="0.2 {y} 0.1"><joint name="{n}" axis="0 0 1" range="-1 1"/>
    <geom type="capsule" size="0.01" fromto="0 0 0 0.05 0 0" mass="0.05" contype="0"
    conaffinity="0"/></body>"""
    fingers = finger.format(n="f", y=0.02) + finger.format(n="g", y=-0.02)
    text = quadruped(
        actuators=MOTORS.replace("</actuator>", '<position joint="f" kp="5"/></actuator>'),
        extra=f"""<equality><joint joint1="g" joint2="f" polycoef="0 -1 0 0 0"/></equality>
        <keyframe><key qpos="0 0 0.4 1 0 0 0 {"0 0.7 -1.4 " * 4} 0.4 0"/></keyframe>""",
    )
    end = text.rindex("</body>")
    prepared = prepared_of(f"{text[:end]}{fingers}{text[end:]}", tmp_path)
    one, other = home_of(prepared, "f", "g")
    assert other == pytest.approx(-one, abs=1e-3)
    assert [servo.torque for servo in prepared.robot.servos if servo.joint == "g"] == [0.0]
    assert is_good(prepared, "stands", "loops")


def test_the_solver_of_the_trainings_stands_with_a_model_made_for_another(tmp_path: Path) -> None:
    text = quadruped()
    option = '<option cone="elliptic" impratio="100" solver="PGS" noslip_iterations="5"/>'
    prepared = prepared_of(text.replace("<worldbody>", f"{option}<worldbody>"), tmp_path)
    assert (prepared.model.opt.impratio, prepared.model.opt.noslip_iterations) == (1.0, 0)
    assert prepared.model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    assert prepared.model.opt.solver == mujoco.mjtSolver.mjSOL_NEWTON
    assert is_good(prepared, "stands")


def test_a_gait_is_at_the_scale_of_the_robot(tmp_path: Path) -> None:
    prepared = prepared_of(quadruped(), tmp_path)
    figures = gait(prepared)
    assert figures.offsets in ((0.5, 0.0, 0.0, 0.5), (0.0, 0.5, 0.5, 0.0))
    assert set(figures.bend) == {f"{n}{j}" for n in "pqrs" for j in "bc"}
    speed = (9.81 * prepared.hip_height) ** 0.5
    assert figures.lin_vel_x[1] == pytest.approx(0.6 * speed, abs=0.05)
    bent = 0.18 * 9.81 * prepared.robot.mass * prepared.hip_height  # by the weight, N m
    stiffness = prepared.model.actuator("pb").gainprm[0]
    assert figures.action_scale["pb"] == pytest.approx(bent / stiffness, abs=0.01)
    assert figures.action_scale["pc"] == 0.33
    data = at_home(prepared.model)
    for name, angle in figures.bend.items():
        data.joint(name).qpos[0] += angle
    mujoco.mj_kinematics(prepared.model, data)
    lifted = data.site("FL_sole").xpos[2] - 0.02
    assert lifted == pytest.approx(figures.swing_height, abs=0.01)


WHEELS = "".join(
    f"<body pos='{x} {y} -1'><joint axis='0 1 0'/><geom size='0.3' mass='1'/></body>"
    for x in (-1, 1)
    for y in (-1, 1)
)
ONE_LEG = "<body pos='0 0 -1'><joint axis='0 1 0' range='-9 9'/><geom size='0.3' mass='1'/></body>"
TRUNK = (
    "<mujoco><worldbody><body><freejoint/><geom size='1' mass='1'/>%s</body></worldbody></mujoco>"
)
MASSLESS = re.compile('<inertial mass="0[^>]*>')
LOOP = '<equality><connect name="rod" body1="p2" body2="p0" anchor="0.1 0.1 0.1"/></equality>'
ITSELF = '<asset><model name="m" file="robot.xml"/></asset>'
HUGE = '<asset><hfield name="h" nrow="90000" ncol="90000" size="1 1 1 1"/></asset>'
CHANGES = [
    ('name="pb" axis="0 1 0" range="-1.5 2.5"', 'name="pb" type="ball"', "make hinges of pb"),
    ('"radian"', '"degree"', "is its unit right"),
    ('name="p2" pos="0 0 -0.2"', 'name="p2" pos="0 0 -200"', "meters"),
    ('"0.1 0.2 0.2"', '"nan 1 1"', "inertia of middle is not finite"),
    ('mass="10"', 'mass="0"', "mass of middle is 0.0001 of"),
    ('mass="10"', 'mass="1e300"', "body middle has body_mass"),
    ('"0.6" pos="0 0 0"', '"0.6" pos="0 0 nan"', "p0 has body_ipos .*nan"),
    ('range="-0.8 0.8"', 'range="nan 1"', "jnt pa has jnt_range"),
    ('<geom type="box"', "<body/>" * 1100 + '<geom type="box"', "1114 b"),
]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<mujoco><worldbody/></mujoco>", "no joint that could be driven"),
        ("<mujoco><worldbody>", "cannot be read"),
        (bare()[:400], "its end is missing"),
        (TRUNK % WHEELS, "turn without end .* as wheels do.*writing_a_task"),
        (TRUNK % ONE_LEG, "no legs"),
        (bare(extra=LOOP), "loops: the constraint rod is off by .* keyframe"),
        (bare(extra=ITSELF), "MuJoCo crashes"),
        (bare(extra=HUGE), "4 GiB are not enough"),
        (bare(world='<body name="other"><joint/><geom size="0.1"/></body>'), "--base other"),
        (quadruped(actuators=MOTORS.replace('gear="40"', 'gear="4"')), "saturates pc"),
        (quadruped(actuators=MOTORS.replace('gear="40"', 'gear="0"')), "motor of pc has no torque"),
        (MASSLESS.sub("", bare()), "mass of p0, p1, p2 is 0.03.* of the robot.*<inertial>"),
        (without(quadruped(), 'name="pc"', 'name="pc" stiffness="1e9"'), "not stable at 1 ms"),
        *((without(bare(), old, new), what) for old, new, what in CHANGES),
    ],
)
def test_what_is_wrong_is_said(text: str, what: str, tmp_path: Path) -> None:
    try:
        found = off(prepared_of(text, tmp_path))
        said = "\n".join(f"{row}: {found[row]}" for row in found)
    except ConfigError as error:
        said = str(error)
    assert re.search(what, said), said


@pytest.mark.parametrize("quarter", [1, 2, 3])
def test_a_robot_that_looks_elsewhere_is_turned(quarter: int, tmp_path: Path) -> None:
    weld = '<child link="hips"/><origin xyz="0 0 0"'
    text = without(biped(), weld, f'{weld} rpy="0 0 {quarter * np.pi / 2}"')
    prepared = prepared_of(text, tmp_path, "urdf")
    data = at_home(prepared.model)
    assert any("to look along x" in note for note in prepared.notes)
    sole, ankle = data.site("left_sole").xpos, data.body(prepared.robot.feet[0].body).xpos
    assert sole[1] > 0.05
    assert sole[0] > ankle[0] + 0.01
    assert is_good(prepared, "stands")


def test_only_what_the_robot_needs_must_be_there(tmp_path: Path) -> None:
    ground = '<geom type="hfield" hfield="h" material="m"/><body name="box"><geom size="1"/></body>'
    assets = (
        '<asset><hfield name="h" file="gone.png" size="1 1 1 1"/>'
        '<texture name="t" type="2d" file="gone.png"/><material name="m" texture="t"/></asset>'
    )
    prepared = prepared_of(bare(world=ground, extra=assets), tmp_path)
    assert len(prepared.robot.legs) == 4
    assert prepared.spec.body("box") is None


ARM = """<mujoco><compiler angle="radian"/><worldbody><body name="a"><joint name="a" axis="0 0 1"/>
<geom type="capsule" size="0.03" fromto="0 0 0.05 0 0 0.2" mass="1"/>
<body name="b" pos="0 0 0.25"><joint name="b" axis="0 1 0" range="-2 2"/>
<geom type="capsule" size="0.03" fromto="0 0 0.05 0 0 0.25" mass="1"/>
<body name="c" pos="0 0 0.3"><joint name="c" axis="0 1 0" range="-2.5 2.5"/>
<geom type="capsule" size="0.03" fromto="0 0 0.05 0 0 0.2" mass="0.5"/>
<body name="d" pos="0 0 0.25"><joint name="d" axis="1 0 0" range="-2 2"/>
<geom size="0.03" mass="0.1"/>
<body name="left" pos="0 0.02 0.05"><joint name="left" type="slide" axis="0 1 0" range="0 0.03"/>
<geom size="0.01" mass="0.02"/></body>
<body name="right" pos="0 -0.02 0.05">
<joint name="right" type="slide" axis="0 -1 0" range="0 0.03"/>
<geom size="0.01" mass="0.02"/></body></body></body></body></body></worldbody></mujoco>"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "new <name> --model robot.xml`"),
        ("spot robots/spot.xml", "new spot --model robots/spot.xml`"),
        ("--model spot.urdf", "new <name> --model spot.urdf`"),
        ("spot --model spot.xml --project a --output b", "say one of them"),
    ],
)
def test_a_mistaken_command_says_what_to_type(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        new(words.split())


def test_an_arm_is_bent_at_home_although_its_first_link_touches_its_base(tmp_path: Path) -> None:
    base = '<worldbody><body name="base"><geom type="cylinder" size="0.05 0.06"/>'
    on_a_base = ARM.replace("<worldbody>", base).replace("</worldbody>", "</body></worldbody>")
    prepared = prepared_of(on_a_base, tmp_path)
    assert prepared.touching == (("base", "a"),)
    assert np.abs(prepared.home[1:3]).max() > 0.3
    with pytest.raises(ConfigError, match="--end base: no hinge or slide moves"):
        prepare(read(tmp_path / "robot.xml"), end="base")


def test_a_second_arm_is_held_against_its_weight(tmp_path: Path) -> None:
    arm = ARM[ARM.index('<body name="a">') : ARM.index("</worldbody>")]
    other = re.sub('name="(.+?)"', r'name="\1_2"', arm[: arm.index('<body name="d"')])
    other = other.replace('axis="0 1 0"', 'axis="1 0 0"') + "</body>" * 3
    other = without(other, 'name="b_2" pos', 'name="b_2" euler="0.6 0 0" pos')
    text = ARM.replace(arm, f'<body name="torso">{arm}{other}</body>')
    prepared = prepared_of(text, tmp_path)
    assert prepared.robot.arms[0].joints == ("a", "b", "c", "d")
    ctrl, home = prepared.ctrl[prepared.model.actuator("b_2").id], home_of(prepared, "b_2")[0]
    assert abs(ctrl - home) > 0.01
    assert is_good(prepared, "stands")


def test_a_jaw_that_closes_on_the_last_link_is_no_joint_of_the_arm(tmp_path: Path) -> None:
    hand, end = ARM.index('<geom size="0.03" mass="0.1"/>'), "</body>" * 4 + "</worldbody></mujoco>"
    fixed = '<geom type="box" size="0.01 0.005 0.05" pos="0 -0.01 0.05" mass="0.1"/>'
    jaw = """<body name="jaw" pos="0 0.03 0.02"><joint name="jaw" axis="1 0 0" range="-0.1 1.5"/>
    <geom type="box" size="0.01 0.005 {0}" pos="0 -0.02 {0}" mass="0.05"/></body>"""
    robot = robot_of(ARM[:hand] + fixed + jaw.format(0.04) + end, tmp_path)
    assert robot.arms[0].joints == ("a", "b", "c", "d")
    assert robot.arms[0].beside == ("jaw",)
    assert robot.tool[1:] == pytest.approx([0.0, 0.1], abs=0.01)
    longer = robot_of(ARM[:hand] + fixed + jaw.format(0.1) + end, tmp_path)
    assert longer.arms[0].joints[-1] == "jaw"
    folded = jaw.format(0.04).replace("-0.02 0.04", "-0.02 -0.04")  # back along the arm
    assert robot_of(ARM[:hand] + folded + end, tmp_path).arms[0].joints[-1] == "jaw"


def test_an_arm_gets_a_task_in_which_it_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    robot = robot_of(ARM, tmp_path)
    assert robot.arms[0].joints == ("a", "b", "c", "d")
    assert robot.arms[0].beside == ("left", "right")
    assert robot.tool == pytest.approx([0.0, 0.0, 0.05], abs=1e-6)
    assert new(["arm", "--model", "robot.xml"]) == 0
    assert len((tmp_path / "tasks/arm/reach.py").read_text().splitlines()) <= 60
    env = simtrain.make_env("arm-reach", num_envs=2, seed=0)
    assert env.num_actions == 4
    observations, *_ = env.step(torch.zeros(2, 4))
    assert observations["actor"].isfinite().all()


def test_new_writes_tasks_that_can_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model_file(quadruped(), tmp_path)
    assert new(["unknown-dog", "--model", "robot.xml"]) == 0
    assert "uv run train unknown-dog-velocity-flat" in capsys.readouterr().out
    lines = (tmp_path / "tasks/unknown-dog/velocity.py").read_text().splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 100
    for name in ("unknown-dog-velocity-flat", "unknown-dog-velocity-rough"):
        env = simtrain.make_env(name, num_envs=2, seed=0)
        observations, *_ = env.step(torch.zeros(2, env.num_actions))
        assert observations["actor"].isfinite().all()


def test_a_head_beside_the_middle_leaves_the_task_symmetric(tmp_path: Path) -> None:
    load = '<body name="head" pos="0.1 0.05 0.1"><geom size="0.03" mass="1.5"/></body>'
    text = quadruped().replace('<geom type="box"', load + '<geom type="box"')
    prepared = prepared_of(text, tmp_path)
    names = [actuator.name for actuator in prepared.spec.actuators]
    ctrl = dict(zip(names, prepared.ctrl, strict=True))
    assert ctrl["pb"] == ctrl["qb"] != prepared.home[8]
    assert ctrl["pa"] == -ctrl["qa"]


def test_defaults_of_the_model_neither_hide_the_ground_nor_need_its_materials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    looks = 'material="gone" type="mesh" group="3" priority="2" friction="0.3" solref="0.1 1"'
    default = f'<default><geom contype="0" conaffinity="0" {looks}/></default>'
    text = quadruped(bits='contype="1" conaffinity="1" material=""', extra=default)
    model_file(text.replace('size="0.2 0.08', 'material="" size="0.2 0.08'), tmp_path)
    assert new(["dog", "--model", "robot.xml"]) == 0
    env = simtrain.make_env("dog-velocity-rough", num_envs=2, seed=0)
    assert env.model.geom("terrain").contype[0] == 1
    model = mujoco.MjModel.from_xml_path("tasks/dog/scene.xml")
    floor = model.geom("floor")
    assert (floor.group, floor.priority, floor.friction[0], floor.solref[0]) == (0, 0, 1.0, 0.02)
    data = at_home(model)
    height = data.qpos[2]
    mujoco.mj_step(model, data, 100)
    assert data.qpos[2] == pytest.approx(height, abs=0.05)


def test_a_name_that_looks_like_markup_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = prepared_of(quadruped().replace('"p2"', '"[/b]"'), tmp_path)
    show(prepared, check(prepared), "dog")
    shown = capsys.readouterr().out
    assert "foot on _/b_" in shown
    assert "'[/b]' is" in shown


def test_one_of_two_legs_can_carry_the_robot(tmp_path: Path) -> None:
    text = biped().replace("-0.1 2.2 90", "-0.1 2.2 20")  # weak knees
    prepared = prepared_of(text, tmp_path, "urdf")
    model = prepared.model
    for name in ("ju1", "ju3", "jv1", "jv3"):
        number, joint = model.actuator(name).id, model.joint(name)
        assert 2.0 * abs(prepared.ctrl[number] - prepared.home[joint.qposadr[0]]) < 0.101
