"""From actions to ``ctrl``."""

import pytest
import torch
from tiny_task import tiny_model, tiny_task

from simtrain import JointEffortActionCfg, JointPositionActionCfg, JointVelocityActionCfg
from simtrain.env.control.actions import Actions


def _ctrl(action, keyframe=None, model=None, **cfgs):
    """One environment's ``ctrl``, which is 9 where neither an action nor a servo is."""
    model = model or tiny_model().compile()
    actions = Actions(tiny_task(actions=cfgs, keyframe=keyframe), model, "cpu")
    assert actions.dim == len(action)
    ctrl = torch.full((1, model.nu), 9.0)
    actions.apply(torch.tensor([action]), ctrl)
    return ctrl[0].tolist()


@pytest.mark.parametrize(
    ("joints", "settings", "action", "ctrl"),
    [
        ("right_hinge", {"scale": 2.0, "offset": 0.5}, [3.0], [9.0, 0.0, 9.0, 6.5]),
        ("right_hinge", {}, [5.0], [9.0, 0.0, 9.0, 5.0]),  # without limits
        ("left_slide", {}, [5.0], [1.0, 0.0, 9.0, 9.0]),  # the actuator's range
        ("left_slide", {}, [-5.0], [-1.0, 0.0, 9.0, 9.0]),
        ("left_slide", {"clip": (-0.5, 0.5)}, [5.0], [0.5, 0.0, 9.0, 9.0]),
        ("left_slide", {"clip": (-3.0, 3.0)}, [5.0], [1.0, 0.0, 9.0, 9.0]),
        (
            ("right_hinge", "left_slide"),  # in the model's order
            {"scale": {"right_.*": 3.0}, "offset": {"left_.*": -0.5}},
            [1.0, 2.0],
            [0.5, 0.0, 9.0, 6.0],
        ),
    ],
)
def test_ctrl_is_offset_plus_scale_times_action_within_its_limits(joints, settings, action, ctrl):
    assert _ctrl(action, a=JointEffortActionCfg(joints, **settings)) == ctrl


def test_a_zero_action_of_a_position_actuator_holds_the_initial_position():
    cfg = JointPositionActionCfg("left_hinge", scale=0.5, offset=0.25)
    assert _ctrl([0.0], "bent", a=cfg)[1] == pytest.approx(0.2 + 0.25)
    assert _ctrl([1.0], "bent", a=cfg)[1] == pytest.approx(0.2 + 0.25 + 0.5)
    cfg.use_default_offset = False
    assert _ctrl([0.0], "bent", a=cfg)[1] == pytest.approx(0.25)
    # A keyframe's own targets go before its positions.
    spec = tiny_model()
    spec.key("bent").ctrl = [0.0, 0.7, 0.0, 0.0]
    turn = JointPositionActionCfg("left_hinge")
    assert _ctrl([0.0], "bent", spec.compile(), a=turn)[1] == pytest.approx(0.7)


def test_terms_share_the_action_vector_in_their_order_and_other_servos_hold_still():
    ctrl = _ctrl(
        [0.1, 0.2, 0.3],
        turn=JointPositionActionCfg("left_hinge"),
        drive=JointVelocityActionCfg("right_slide"),
        push=JointEffortActionCfg("left_slide"),
    )
    assert ctrl == pytest.approx([0.3, 0.1, 0.2, 9.0])
    push = JointEffortActionCfg("left_slide")
    assert _ctrl([0.5], "bent", a=push) == [0.5, pytest.approx(0.2), 9.0, 9.0]
