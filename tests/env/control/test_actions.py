"""From actions to ``ctrl``: joints, tendons, sites, any actuators, and inverse kinematics."""

import mujoco
import numpy as np
import pytest
import torch
from machine import ARM, machine_env, machine_task
from tiny_task import tiny_model, tiny_task

from simtrain import (
    ActionTermCfg,
    ActuatorActionCfg,
    DifferentialIKActionCfg,
    JointEffortActionCfg,
    JointPositionActionCfg,
    JointVelocityActionCfg,
    RelativeJointPositionActionCfg,
    SiteEffortActionCfg,
    TendonEffortActionCfg,
    TendonLengthActionCfg,
)
from simtrain.env.control.actions import Actions
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.model import check_task
from simtrain.errors import ConfigError


def _applied(action, keyframe=None, model=None, **cfgs):
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
    assert _applied(action, a=JointEffortActionCfg(joints, **settings)) == ctrl


def test_a_zero_action_of_a_position_actuator_holds_the_initial_position():
    cfg = JointPositionActionCfg("left_hinge", scale=0.5, offset=0.25)
    assert _applied([0.0], "bent", a=cfg)[1] == pytest.approx(0.2 + 0.25)
    assert _applied([1.0], "bent", a=cfg)[1] == pytest.approx(0.2 + 0.25 + 0.5)
    cfg.use_default_offset = False
    assert _applied([0.0], "bent", a=cfg)[1] == pytest.approx(0.25)
    # A keyframe's own targets go before its positions.
    spec = tiny_model()
    spec.key("bent").ctrl = [0.0, 0.7, 0.0, 0.0]
    turn = JointPositionActionCfg("left_hinge")
    assert _applied([0.0], "bent", spec.compile(), a=turn)[1] == pytest.approx(0.7)


def test_a_servo_behind_a_gear_holds_its_joint_and_is_no_target_of_positions():
    spec = tiny_model()
    spec.actuator("turn").gear[0] = -3.0
    push, turn = JointEffortActionCfg("left_slide"), JointPositionActionCfg("left_hinge")
    model = spec.compile()
    assert _applied([0.5], "bent", model, a=push)[1] == pytest.approx(-3.0 * 0.2)
    assert Actions(tiny_task(actions={"a": push}, keyframe="bent"), model, "cpu").held == {
        "left_hinge": pytest.approx(0.2)
    }
    with pytest.raises(ConfigError, match=r"needs a gear of 1, and .turn. has -3"):
        _applied([0.5], "bent", model, a=turn)


def test_terms_share_the_action_vector_in_their_order_and_other_servos_hold_still():
    ctrl = _applied(
        [0.1, 0.2, 0.3],
        turn=JointPositionActionCfg("left_hinge"),
        drive=JointVelocityActionCfg("right_slide"),
        push=JointEffortActionCfg("left_slide"),
    )
    assert ctrl == pytest.approx([0.3, 0.1, 0.2, 9.0])
    push = JointEffortActionCfg("left_slide")
    assert _applied([0.5], "bent", a=push) == [0.5, pytest.approx(0.2), 9.0, 9.0]


YAW, PITCH, REACH, WHEEL, CABLE, THRUST = range(6)


def _ctrl(env, *actions):
    for action in actions:
        env.step(torch.tensor([action]))
    return env.bind("ctrl")[0]


def test_tendons_sites_and_any_actuators_are_driven():
    env = machine_env(
        actions={
            "pull": TendonLengthActionCfg("cable", scale=0.5),
            "fly": SiteEffortActionCfg("rotor", scale=2.0, offset=0.5),
            "raw": ActuatorActionCfg("wheel", scale={"wheel": 3.0}),
        }
    )
    # A zero action holds the tendon's length, twice the cart's 0.5; servos without an action hold.
    held = [0.2, 0.7, 0.1]
    assert _ctrl(env, [0.0, 0.0, 0.0]).tolist() == pytest.approx([*held, 0.0, 1.0, 0.5])
    before = env.bind("qvel")[0, 5].item()
    assert _ctrl(env, [1.0, 1.0, 1.0]).tolist() == pytest.approx([*held, 3.0, 1.5, 2.5])
    assert env.bind("qvel")[0, 5] - before == pytest.approx(2.5 * env.step_dt)  # it weighs 1 kg


def test_relative_positions_start_from_where_joints_are():
    env = machine_env(actions={"move": RelativeJointPositionActionCfg(("yaw", "reach"), scale=0.1)})
    for _ in range(3):
        where = env.bind("qpos")[0, [YAW, REACH]].clone()
        ctrl = _ctrl(env, [1.0, -1.0])
        torch.testing.assert_close(ctrl[[YAW, REACH]], where + torch.tensor([0.1, -0.1]))


class NoActuators(ActionTerm):
    dim = 1

    def apply(self, actions, ctrl): ...


class NoActuatorsCfg(ActionTermCfg):
    def build(self, model, start, device):
        return NoActuators()


@pytest.mark.parametrize(
    ("cfg", "says"),
    [
        (NoActuatorsCfg(delay_max_lag=1), "it has a delay, but its term names no `actuators`"),
        (
            TendonEffortActionCfg("cable"),
            "needs a motor actuator on tendon 'cable', but 'cable' is a p",
        ),
        (SiteEffortActionCfg("tip"), "needs an actuator on site 'tip': no actuator drives it"),
        (TendonLengthActionCfg("cabel"), r"no tendon matches 'cabel' \(did you mean 'cable'"),
        (DifferentialIKActionCfg("top", ARM), r"the model has no site 'top' \(did you mean 'tip'"),
        (
            DifferentialIKActionCfg("tip", (*ARM, "lift")),
            "needs exactly one actuator on joint 'lift'",
        ),
        (DifferentialIKActionCfg("rotor", ARM), "'yaw' does not move the site 'rotor'"),
        (DifferentialIKActionCfg("tip", ARM, frame="hnd"), "the model has no body 'hnd'"),
        (ActionTermCfg(), "ActionTermCfg needs a method `build`"),
        (
            JointPositionActionCfg("yaw", rate_limit={"yew": 1.0}),
            "rate_limit: nothing is called 'yew'.*did you mean 'yaw'",
        ),
    ],
)
def test_what_an_action_cannot_be_is_told(cfg, says):
    with pytest.raises(ConfigError, match=f"--env.actions.it: .*{says}"):
        check_task(machine_task(actions={"it": cfg}))


@pytest.mark.parametrize(("frame", "dim"), [(None, 6), ("hand", 6), ("hand", 3)])
def test_targets_by_inverse_kinematics_are_those_of_mujocos_jacobian(frame, dim):
    settings = {"position_scale": 0.1, "rotation_scale": 0.2, "damping": 0.3}
    ik = DifferentialIKActionCfg("tip", ARM, frame=frame, orientation=dim == 6, **settings)
    env = machine_env(actions={"ik": ik})
    action = np.array([1.0, -1.0, 0.5, 0.2, 0.3, -1.0])[:dim]
    data = mujoco.MjData(env.model)
    data.qpos[:] = env.bind("qpos")[0]
    mujoco.mj_forward(env.model, data)
    jacobians = np.zeros((2, 3, env.model.nv))
    mujoco.mj_jacSite(env.model, data, *jacobians, env.model.site("tip").id)
    full = jacobians.reshape(6, -1)[:dim, :3]
    scaled = (action * np.repeat([0.1, 0.2], 3)[:dim]).reshape(-1, 3)
    wanted = (scaled @ data.body(frame or "world").xmat.reshape(3, 3).T).ravel()
    step = full.T @ np.linalg.solve(full @ full.T + 0.3**2 * np.eye(dim), wanted)
    np.testing.assert_allclose(_ctrl(env, action.tolist())[:3], data.qpos[:3] + step, atol=1e-5)


def test_targets_speed_up_and_slow_down_within_their_limits_and_do_not_overshoot():
    limits = {"rate_limit": 1.5, "acceleration_limit": {"y.*": 5.0}}
    env = machine_env(actions={"yaw": JointPositionActionCfg("yaw", **limits)})
    start, dt = env.initial_targets[YAW].item(), env.step_dt
    targets = np.array([_ctrl(env, [1.0])[YAW].item() - start for _ in range(60)])
    rates = np.diff([0.0, *targets]) / dt
    assert np.abs(np.diff([0.0, *rates])).max() <= 5.0 * dt + 1e-3
    assert (rates.max(), targets.max()) == pytest.approx((1.5, 1.0), abs=1e-4)
    assert targets[-1] == pytest.approx(1.0, abs=1e-4)
    assert (rates > -1e-3).all()
    env.reset()  # from rest at the start
    assert _ctrl(env, [-1.0])[YAW] - start == pytest.approx(-5.0 * dt**2, abs=1e-6)


class Wave(ActionTerm):
    """A force that grows with every physics step of a control step."""

    dim, actuators = 1, (WHEEL,)

    def declare(self, env):
        self.told = env.num_envs, env.step_dt, env.physics_dt
        self.force = env.buffer("force", (1,))

    def apply(self, actions, ctrl):
        self.force.copy_(actions)

    def substep(self, ctrl):
        ctrl[:, WHEEL : WHEEL + 1] = self.force
        self.force += 1.0


class WaveCfg(ActionTermCfg):
    def build(self, model, start, device):
        return Wave()


def test_an_action_may_act_at_every_physics_step_and_learns_of_its_environment():
    env = machine_env(2, actions={"wave": WaveCfg()})
    assert env._actions.terms["wave"].told == (2, 0.02, 0.005)  # type: ignore[attr-defined]
    env.step(torch.tensor([[1.0], [10.0]]))
    inertia = env.model.dof_armature[3] + env.model.body("wheel").inertia[1]
    expected = torch.tensor([1.0 + 2 + 3 + 4, 10.0 + 11 + 12 + 13]) * 0.005 / inertia
    torch.testing.assert_close(env.bind("qvel")[:, 3], expected.float())
    # And as late as any other.
    late = machine_env(1, actions={"wave": WaveCfg(delay_min_lag=2, delay_max_lag=2)})
    late.step(torch.ones(1, 1))
    assert late.bind("qvel")[0, 3] == pytest.approx((1.0 + 2.0) * 0.005 / inertia)
