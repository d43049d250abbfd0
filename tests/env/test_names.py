"""Names and patterns as indices into MuJoCo's arrays."""

import mujoco
import pytest
import torch
from tiny_task import tiny_model

from simtrain.env.names import find_base, match_values, resolve_params
from simtrain.errors import ConfigError


@pytest.fixture(scope="module")
def model():
    return tiny_model().compile()


def find(model, kind, pattern):
    return resolve_params({kind: pattern}, model, "cpu")[kind]


def test_joints_come_in_the_models_order_with_their_entries_of_qpos_and_qvel(model):
    joints = find(model, "joints", "left_hinge")
    assert (joints.names, len(joints)) == (("left_hinge",), 1)
    assert (joints.ids, joints.qpos, joints.qvel) == (slice(2, 3), slice(8, 9), slice(7, 8))
    several = find(model, "joints", ("right_.*", "left_slide", "right_hinge"))
    assert several.names == ("left_slide", "right_slide", "right_hinge")
    torch.testing.assert_close(several.qpos, torch.tensor([7, 9, 10]))
    root = find(model, "joints", "root")
    assert (root.qpos, root.qvel) == (slice(0, 7), slice(0, 6))


def test_a_sensors_data_spans_its_dimension(model):
    assert find(model, "sensors", "left_tip_pos").data == slice(1, 4)
    torch.testing.assert_close(find(model, "sensors", "left_slide_.*").data, torch.tensor([0, 4]))


@pytest.mark.parametrize(
    ("kind", "pattern", "ids"),
    [
        ("bodies", "left_.*", slice(2, 4)),
        ("geoms", "box", slice(0, 1)),
        ("sites", ".*", slice(0, 1)),
        ("actuators", "turn|drive", slice(1, 3)),
        ("place", "left_cart", slice(2, 3)),  # a body
        ("place", "left_tip", slice(0, 1)),  # a site
    ],
)
def test_other_kinds_are_found_by_pattern(model, kind, pattern, ids):
    found = find(model, kind, pattern)
    assert found.ids == ids
    assert getattr(found, "are_sites", None) in (None, pattern == "left_tip")


@pytest.mark.parametrize(
    ("kind", "pattern", "says"),
    [
        ("joints", "left", "no joint matches 'left'"),  # a pattern must match a whole name
        ("joints", "left_hing", "did you mean 'left_hinge'.*; there are root, left_slide, left_h"),
        ("joints", "(", r"'\(' is not a regular expression"),
        ("sites", ("left_tip", "right_tip"), "no site matches 'right_tip'"),
        ("place", "left_tipp", r"no body or site matches 'left_tipp' .did you mean 'left_tip'"),
        ("frame", ".*_cart", "name one body or site"),
    ],
)
def test_what_matches_nothing_is_an_error(model, kind, pattern, says):
    with pytest.raises(ConfigError, match=says):
        find(model, kind, pattern)


def test_parameters_are_resolved_by_the_end_of_their_names(model):
    given = {"cart_bodies": "left_cart", "joints_limit": "root", "std": 0.5, "joints": None}
    resolved = resolve_params(given, model, "cpu")
    assert resolved["cart_bodies"].names == ("left_cart",)
    assert resolved == given | {"cart_bodies": resolved["cart_bodies"]}


def test_values_by_pattern_leave_the_rest_at_the_default():
    names = ("left_hip", "right_hip", "knee")
    assert match_values({".*_hip": 2, "right_.*": 3.0}, names, 1.0, "scale") == [2.0, 3.0, 1.0]
    assert match_values(0.5, names, 1.0, "scale") == [0.5, 0.5, 0.5]
    for pattern in ("ankle", "("):
        with pytest.raises(ConfigError, match=r"^scale: ") as error:
            match_values({pattern: 1.0}, names, 1.0, "scale")
        assert repr(pattern) in str(error.value)


BESIDE = """
<mujoco><worldbody> <site name="hook" pos="3 0 2"/>
  <body name="cube" pos="0 1 0"><freejoint/> <geom size="0.1"/></body>
  <body name="robot">{root} <geom size="0.1"/>
    <body name="arm"><joint name="elbow"/> <geom size="0.1"/> <site name="hand" pos="1 0 0"/></body>
  </body>
</worldbody>
<tendon><spatial name="rope"><site site="hook"/><site site="hand"/></spatial></tendon>
<actuator>{actuator}</actuator></mujoco>
"""


@pytest.mark.parametrize(
    "actuator",
    [
        '<motor joint="elbow"/>',
        '<motor site="hand"/>',
        '<adhesion body="arm" ctrlrange="0 1"/>',
        '<motor tendon="rope"/>',
    ],
)
def test_the_base_is_the_free_body_that_carries_actuators(actuator):
    model = mujoco.MjModel.from_xml_string(BESIDE.format(root="<freejoint/>", actuator=actuator))
    base = find_base(model)
    assert model.body(base.body).name == "robot"
    assert (base.position, base.quaternion) == (slice(7, 10), slice(10, 14))
    assert (base.linear, base.angular) == (slice(6, 9), slice(9, 12))


@pytest.mark.parametrize(
    ("xml", "says"),
    [
        (BESIDE.format(root="", actuator='<motor joint="elbow"/>'), "the robot is fixed; cube mov"),
        ("<mujoco/>", "the model has no free joint"),
    ],
)
def test_a_model_without_a_floating_robot_has_no_base(xml, says):
    with pytest.raises(ConfigError, match=says):
        find_base(mujoco.MjModel.from_xml_string(xml))
