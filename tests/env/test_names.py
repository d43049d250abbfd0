import mujoco
import pytest
import torch
from tiny_task import tiny_model

from simtrain.env.names import (
    find_actuators,
    find_base,
    find_bodies,
    find_frame,
    find_geoms,
    find_joints,
    find_places,
    find_sensors,
    find_sites,
    match_values,
    resolve_params,
)
from simtrain.errors import ConfigError


@pytest.fixture(scope="module")
def model():
    return tiny_model().compile()


def test_a_name_is_a_slice_of_one(model):
    joints = find_joints(model, "left_hinge", "cpu")
    assert joints.names == ("left_hinge",)
    assert (joints.ids, joints.qpos, joints.qvel) == (slice(2, 3), slice(8, 9), slice(7, 8))
    assert len(joints) == 1


def test_consecutive_entries_are_a_slice_and_others_a_tensor(model):
    assert find_joints(model, "left_.*", "cpu").qpos == slice(7, 9)
    torch.testing.assert_close(find_joints(model, ".*_slide", "cpu").qpos, torch.tensor([7, 9]))


def test_a_free_joint_has_seven_positions_and_six_velocities(model):
    root = find_joints(model, "root", "cpu")
    assert (root.qpos, root.qvel) == (slice(0, 7), slice(0, 6))


def test_entries_come_in_the_models_order_whatever_the_order_of_patterns(model):
    joints = find_joints(model, ("right_.*", "left_slide", "right_hinge"), "cpu")
    assert joints.names == ("left_slide", "right_slide", "right_hinge")


def test_a_sensors_data_spans_its_dimension(model):
    assert find_sensors(model, "left_tip_pos", "cpu").data == slice(1, 4)
    torch.testing.assert_close(
        find_sensors(model, "left_slide_.*", "cpu").data, torch.tensor([0, 4])
    )


@pytest.mark.parametrize(
    ("find", "pattern", "ids"),
    [
        (find_bodies, "left_.*", slice(2, 4)),
        (find_geoms, "box", slice(0, 1)),
        (find_sites, ".*", slice(0, 1)),
        (find_actuators, "turn|drive", slice(1, 3)),
    ],
)
def test_other_kinds_are_found_by_pattern(model, find, pattern, ids):
    assert find(model, pattern, "cpu").ids == ids


def test_a_pattern_must_match_a_whole_name(model):
    with pytest.raises(ConfigError, match="no joint matches 'left'"):
        find_joints(model, "left", "cpu")


def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(model):
    with pytest.raises(ConfigError) as error:
        find_joints(model, "left_hing", "cpu")
    message = str(error.value)
    assert "did you mean 'left_hinge'" in message
    assert "root, left_slide, left_hinge, right_slide, right_hinge" in message


def test_a_pattern_that_is_no_regular_expression_is_told(model):
    with pytest.raises(ConfigError, match=r"'\(' is not a regular expression for joint names"):
        find_joints(model, "(", "cpu")


def test_one_pattern_of_several_that_matches_nothing_is_an_error(model):
    with pytest.raises(ConfigError, match="no site matches 'right_tip'"):
        find_sites(model, ("left_tip", "right_tip"), "cpu")


def test_parameters_are_resolved_by_the_end_of_their_names(model):
    given = {"joints": "root", "cart_bodies": "left_cart", "joints_limit": "root", "std": 0.5}
    resolved = resolve_params(given, model, "cpu")
    assert resolved["joints"].qpos == slice(0, 7)
    assert resolved["cart_bodies"].names == ("left_cart",)
    assert (resolved["joints_limit"], resolved["std"]) == ("root", 0.5)
    assert given["joints"] == "root"


def test_values_by_pattern_leave_the_rest_at_the_default():
    names = ("left_hip", "right_hip", "knee")
    assert match_values({".*_hip": 2, "right_.*": 3.0}, names, 1.0, "scale") == [2.0, 3.0, 1.0]
    assert match_values(0.5, names, 1.0, "scale") == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("pattern", ["ankle", "("])
def test_a_pattern_of_values_that_fits_no_name_is_an_error(pattern):
    with pytest.raises(ConfigError, match="scale: ") as error:
        match_values({pattern: 1.0}, ("hip", "knee"), 1.0, "scale")
    assert repr(pattern) in str(error.value)


BESIDE = """
<mujoco><worldbody>
  <body name="cube" pos="0 1 0"><freejoint/> <geom size="0.1"/></body>
  <body name="robot">{root} <geom size="0.1"/>
    <body name="arm"><joint name="elbow"/> <geom size="0.1"/> <site name="hand"/></body>
  </body>
</worldbody><actuator>{actuator}</actuator></mujoco>
"""


@pytest.mark.parametrize(
    "actuator",
    ['<motor joint="elbow"/>', '<motor site="hand"/>', '<adhesion body="arm" ctrlrange="0 1"/>'],
)
def test_the_base_is_the_free_body_that_carries_actuators(actuator):
    model = mujoco.MjModel.from_xml_string(BESIDE.format(root="<freejoint/>", actuator=actuator))
    base = find_base(model)
    assert model.body(base.body).name == "robot"
    assert (base.position, base.quaternion) == (slice(7, 10), slice(10, 14))
    assert (base.linear, base.angular) == (slice(6, 9), slice(9, 12))


def test_a_robot_that_is_fixed_has_no_base_though_an_object_is_free():
    xml = BESIDE.format(root="", actuator='<motor joint="elbow"/>')
    with pytest.raises(ConfigError, match="the robot is fixed; cube moves freely"):
        find_base(mujoco.MjModel.from_xml_string(xml))


def test_a_place_is_a_body_or_a_site(model):
    body, site = (find_places(model, name, "cpu") for name in ("left_cart", "left_tip"))
    assert (body.are_sites, body.names) == (False, ("left_cart",))
    assert (site.are_sites, site.names) == (True, ("left_tip",))
    with pytest.raises(
        ConfigError, match=r"no body or site matches 'left_tipp' .did you mean 'left_tip'"
    ):
        find_places(model, "left_tipp", "cpu")
    with pytest.raises(ConfigError, match="name one body or site"):
        find_frame(model, ".*_cart", "cpu")


def test_a_model_without_a_free_joint_has_no_base():
    fixed = mujoco.MjModel.from_xml_string("<mujoco/>")
    with pytest.raises(ConfigError, match="the model has no free joint"):
        find_base(fixed)
