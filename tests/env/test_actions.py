import pytest
import torch
from tiny_task import tiny_env, tiny_model, tiny_task

from simtrain import JointEffortActionCfg, JointPositionActionCfg, JointVelocityActionCfg
from simtrain.env.actions import Actions

PUSH, TURN, DRIVE, TWIST = range(4)


def _ctrl(action, keyframe=None, **cfgs):
    """One environment's ``ctrl``, which is 9 where neither an action nor a servo is."""
    model = tiny_model().compile()
    actions = Actions(tiny_task(actions=cfgs, keyframe=keyframe), model, "cpu")
    assert actions.dim == len(action)
    ctrl = torch.full((1, model.nu), 9.0)
    actions.apply(torch.tensor([action]), ctrl)
    return ctrl[0].tolist()


def test_ctrl_is_offset_plus_scale_times_action():
    cfg = JointEffortActionCfg("right_hinge", scale=2.0, offset=0.5)
    assert _ctrl([3.0], a=cfg) == [9.0, 0.0, 9.0, 6.5]


def test_ctrl_stays_in_the_actuators_range_and_others_are_unlimited():
    assert _ctrl([5.0], a=JointEffortActionCfg("left_slide"))[PUSH] == 1.0
    assert _ctrl([-5.0], a=JointEffortActionCfg("left_slide"))[PUSH] == -1.0
    assert _ctrl([5.0], a=JointEffortActionCfg("right_hinge"))[TWIST] == 5.0


@pytest.mark.parametrize(("clip", "ctrl"), [((-0.5, 0.5), 0.5), ((-3.0, 3.0), 1.0)])
def test_clip_narrows_the_actuators_range_but_does_not_widen_it(clip, ctrl):
    assert _ctrl([5.0], a=JointEffortActionCfg("left_slide", clip=clip))[PUSH] == ctrl


def test_a_zero_action_of_a_position_actuator_holds_the_initial_position():
    cfg = JointPositionActionCfg("left_hinge", scale=0.5, offset=0.25)
    assert _ctrl([0.0], "bent", a=cfg)[TURN] == pytest.approx(0.2 + 0.25)
    assert _ctrl([1.0], "bent", a=cfg)[TURN] == pytest.approx(0.2 + 0.25 + 0.5)
    cfg.use_default_offset = False
    assert _ctrl([0.0], "bent", a=cfg)[TURN] == pytest.approx(0.25)


def test_a_zero_action_asks_for_the_keyframes_own_targets_where_it_has_some():
    spec = tiny_model()
    spec.key("bent").ctrl = [0.0, 0.7, 0.0, 0.0]
    model = spec.compile()
    task = tiny_task(actions={"turn": JointPositionActionCfg("left_hinge")}, keyframe="bent")
    ctrl = torch.zeros(1, model.nu)
    Actions(task, model, "cpu").apply(torch.zeros(1, 1), ctrl)
    assert ctrl[0, TURN] == pytest.approx(0.7)


def test_servos_without_an_action_hold_the_initial_position():
    push = JointEffortActionCfg("left_slide")
    assert _ctrl([0.5], "bent", a=push) == [0.5, pytest.approx(0.2), 9.0, 9.0]


def test_scale_and_offset_can_be_given_by_patterns_of_joints():
    cfg = JointEffortActionCfg(
        ("left_slide", "right_hinge"), scale={"right_.*": 3.0}, offset={"left_.*": -0.5}
    )
    assert _ctrl([1.0, 1.0], a=cfg) == [0.5, 0.0, 9.0, 3.0]


def test_terms_share_the_action_vector_in_their_order():
    ctrl = _ctrl(
        [0.1, 0.2, 0.3],
        turn=JointPositionActionCfg("left_hinge"),
        drive=JointVelocityActionCfg("right_slide"),
        push=JointEffortActionCfg("left_slide"),
    )
    assert ctrl == pytest.approx([0.3, 0.1, 0.2, 9.0])


def test_actions_come_in_the_models_order_of_joints():
    assert _ctrl([0.1, 0.2], a=JointEffortActionCfg(("right_hinge", "left_slide"))) == (
        pytest.approx([0.1, 0.0, 9.0, 0.2])
    )


def test_the_env_holds_ctrl_over_the_step():
    env = tiny_env(num_envs=2)
    env.step(torch.tensor([[0.5], [-1.0]]))
    # Two physics steps of 0.01 s under a constant force on 1 kg, semi-implicit Euler.
    torch.testing.assert_close(env.bind("qvel")[:, 6], torch.tensor([0.01, -0.02]))
    torch.testing.assert_close(env.bind("qpos")[:, 7], torch.tensor([0.00015, -0.0003]))
