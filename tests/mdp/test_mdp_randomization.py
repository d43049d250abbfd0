import math

import mujoco
import numpy as np
import pytest
import torch
from walker import HINGES, made, value, walker_env, walker_model, walker_task

from simtrain import EventTermCfg, mdp
from simtrain.env.model import check_task
from simtrain.env.names import check_term
from simtrain.errors import ConfigError
from simtrain.mdp.rotations import principal_axes, rotate

N = 2000
OFFSETS = {"x": (-0.1, 0.1), "y": (0.0, 0.02), "z": (-0.3, -0.1)}


def _field(field, **params):
    return mdp.randomize_field, {"field": field, **params}


EVENTS = {
    "friction": _field(
        "geom_friction",
        geoms=".*_foot",
        ranges={"sliding": (0.4, 1.2)},
        operation="abs",
        shared=True,
    ),
    "mass": _field(("body_mass", "body_inertia"), bodies=(".*_leg", "base"), ranges=(0.8, 1.4)),
    "center": _field("body_ipos", bodies="base", ranges=OFFSETS, operation="add"),
    "gains": (
        mdp.randomize_actuator_gains,
        {"joints": HINGES, "stiffness": (0.9, 1.1), "damping": (0.5, 1.5)},
    ),
    "bias": (mdp.randomize_encoder_bias, {"joints": HINGES, "bias": (-0.05, 0.05)}),
    "motors": (
        mdp.randomize_motors,
        {
            "joints": HINGES,
            "friction": (0.01, 0.03),
            "armature": (0.8, 1.25),
            "strength": (0.5, 1.5),
        },
    ),
}
FIELDS = {
    "friction": ["geom_friction"],
    "mass": ["body_mass", "body_inertia", "body_invweight0", "dof_invweight0"],
    "center": ["body_ipos", "body_invweight0"],
    "gains": ["actuator_gainprm", "actuator_biasprm"],
    "bias": ["actuator_biasprm"],
    "motors": ["dof_frictionloss", "dof_armature", "dof_invweight0", "actuator_forcerange"],
}
TORQUE = 20.0  # of the left servo; the right one has no limit


def _walker() -> mujoco.MjSpec:
    spec = walker_model()
    spec.actuator("left_servo").forcelimited = True
    spec.actuator("left_servo").forcerange = [-TORQUE, 0.5 * TORQUE]
    spec.joint("left_hinge").frictionloss = 0.1
    return spec


def _env(*names, num_envs=N, mode="startup"):
    events = {name: EventTermCfg(EVENTS[name][0], mode, **EVENTS[name][1]) for name in names}
    return walker_env(num_envs, events=events, model=_walker)


def _is_uniform(values, low, high):
    width = high - low
    assert values.min() >= low - 1e-6
    assert values.max() <= high + 1e-6
    assert values.mean() == pytest.approx((low + high) / 2, abs=0.03 * width)
    assert values.std() == pytest.approx(width / math.sqrt(12), rel=0.05)


def test_friction_is_one_draw_for_all_feet():
    env = _env("friction")
    friction = env.sim.expand("geom_friction")
    left, right = (env.model.geom(name).id for name in ("left_foot", "right_foot"))
    _is_uniform(friction[:, left, 0], 0.4, 1.2)
    assert torch.equal(friction[:, left], friction[:, right])
    box = env.model.geom("box").id
    torch.testing.assert_close(friction[:, box], torch.tensor([1.0, 0.005, 0.0001]).expand(N, 3))


def test_mass_and_inertia_scale_alike_body_by_body():
    env = _env("mass")
    mass, inertia = env.sim.expand("body_mass"), env.sim.expand("body_inertia")
    scales = mass[:, 1:] / torch.tensor(env.model.body_mass[1:], dtype=torch.float32)
    for scale in scales.unbind(1):
        _is_uniform(scale, 0.8, 1.4)
    assert abs(np.corrcoef(scales.T.numpy())[0, 1]) < 0.1
    nominal = torch.tensor(env.model.body_inertia[1:], dtype=torch.float32)
    torch.testing.assert_close(inertia[:, 1:], nominal * scales.unsqueeze(2))


def test_what_follows_from_masses_is_recomputed():
    env, model = _env("mass", "center", num_envs=3), walker_env().model
    for i in range(3):
        for field in ("body_mass", "body_inertia", "body_ipos"):
            getattr(model, field)[:] = env.sim.expand(field)[i].numpy()
        mujoco.mj_setConst(model, mujoco.MjData(model))
        expected = torch.tensor(model.body_invweight0, dtype=torch.float32)
        weights = env.sim.expand("body_invweight0")[i]
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)


def test_gains_scale_stiffness_and_damping_of_each_servo():
    env = _env("gains")
    gain, bias = env.sim.expand("actuator_gainprm"), env.sim.expand("actuator_biasprm")
    for servo, kp in enumerate((50.0, 100.0)):
        _is_uniform(gain[:, servo, 0] / kp, 0.9, 1.1)
        _is_uniform(bias[:, servo, 2] / -5.0, 0.5, 1.5)
    torch.testing.assert_close(bias[:, :, 1], -gain[:, :, 0])
    assert not bias[:, :, 0].any()


def test_friction_and_strength_of_motors_follow_their_torque_limits():
    env = _env("motors")
    left, right = (int(env.model.joint(name).dofadr[0]) for name in ("left_hinge", "right_hinge"))
    loss, armature = env.sim.expand("dof_frictionloss"), env.sim.expand("dof_armature")
    limits = env.sim.expand("actuator_forcerange")
    _is_uniform((loss[:, left] - 0.1) / TORQUE, 0.01, 0.03)
    assert not loss[:, right].any()
    assert not loss[:, :6].any()
    for dof in (left, right):
        _is_uniform(armature[:, dof] / 0.1, 0.8, 1.25)
    _is_uniform(-limits[:, 0, 0] / TORQUE, 0.5, 1.5)
    assert torch.equal(limits[:, 0, 1], -0.5 * limits[:, 0, 0])
    assert not limits[:, 1].any()
    for other in (loss[:, left], limits[:, 0, 1], armature[:, right]):
        assert abs(np.corrcoef(armature[:, left].numpy(), other.numpy())[0, 1]) < 0.1


def test_encoder_bias_survives_a_change_of_gains():
    env = _env("bias", "gains")
    read = made(env, mdp.joint_pos_rel, joints=HINGES, biased=True)
    truth = value(env, mdp.joint_pos_rel, joints=HINGES)
    bias = read(env) - truth
    for column in bias.unbind(1):
        _is_uniform(column, -0.05, 0.05)
    env.events.startup()
    env.sim.forward()
    again = read(env) - truth
    assert not torch.allclose(again, bias)
    _is_uniform(again, -0.05, 0.05)


@pytest.mark.parametrize("name", EVENTS)
def test_no_environment_sees_anothers_randomization(name):
    env = _env(name, num_envs=5, mode="reset")
    before = {field: env.sim.expand(field).clone() for field in FIELDS[name]}
    for field in before:
        assert len(torch.unique(before[field].flatten(1), dim=0)) == 5, field
    mask = torch.tensor([False, True, False, True, False])
    env.events.reset(mask)
    for field, values in before.items():
        now = env.sim.expand(field)
        assert torch.equal(now[~mask], values[~mask]), field
        assert (now != values)[mask].flatten(1).any(dim=1).all(), field


def _drawn(field, num_envs=N, **params):
    """The values of a field after a draw, ``(num_envs, ...)``."""
    event = EventTermCfg(mdp.randomize_field, "startup", field=field, **params)
    return walker_env(num_envs, events={"draw": event}).sim.expand(field)


def test_distributions_have_their_quantiles_within_the_bounds():
    params = {"joints": "left_hinge", "ranges": (0.1, 0.9), "operation": "abs"}
    quantiles = torch.tensor([0.1587, 0.5, 0.8413])
    expected = {
        "uniform": 0.1 + 0.8 * quantiles,
        "log_uniform": 0.1 * 9.0**quantiles,
        "gaussian": 0.5 + 0.8 / 6 * torch.tensor([-1.0, 0.0, 1.0]),
    }
    for distribution, values in expected.items():
        drawn = _drawn("dof_armature", 20_000, distribution=distribution, **params)[:, 6]
        assert 0.1 - 1e-6 <= drawn.min() < 0.15
        assert 0.85 < drawn.max() <= 0.9 + 1e-6
        torch.testing.assert_close(drawn.quantile(quantiles), values, rtol=0.03, atol=0.0)


def test_operations_are_about_the_models_own_values():
    ranges = (0.2, 0.3)
    for operation, low, high in (("abs", 0.2, 0.3), ("add", 0.3, 0.4), ("scale", 0.02, 0.03)):
        drawn = _drawn("dof_armature", joints=HINGES, ranges=ranges, operation=operation)
        _is_uniform(drawn[:, 7], low, high)
        assert not drawn[:, :6].any()  # of the base
        assert abs(np.corrcoef(drawn[:, 6:].T.numpy())[0, 1]) < 0.1


def test_columns_are_drawn_by_name_and_others_keep_their_values():
    drawn = _drawn("jnt_range", joints="left_hinge", ranges={"upper": (0.5, 0.9)})[:, 1]
    assert (drawn[:, 0] == -1.0).all()
    _is_uniform(drawn[:, 1], 0.5, 0.9)
    gravity = _drawn("opt.gravity", ranges={"z": (-0.2, 0.2), "x": (0.5, 0.6)}, operation="add")
    _is_uniform(gravity[:, 0], 0.5, 0.6)
    assert not gravity[:, 1].any()
    _is_uniform(gravity[:, 2], -10.01, -9.61)
    center = _drawn("body_ipos", bodies="base", ranges=OFFSETS, operation="add")[:, 1]
    nominal = walker_env().model.body("base").ipos.tolist()
    for column, start, (low, high) in zip(center.T, nominal, OFFSETS.values(), strict=True):
        _is_uniform(column, start + low, start + high)
    turned = _drawn("body_quat", 3, bodies="left_leg", ranges={"yaw": (0.4, 0.4)}, operation="add")
    expected = torch.tensor([math.cos(0.2), 0.0, 0.0, math.sin(0.2)]).expand(3, 4)
    torch.testing.assert_close(turned[:, 2], expected)


def _pseudo_inertia(mass, inertia, center, axes):
    """In the body's frame, of one environment."""
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, axes)
    rotation = rotation.reshape(3, 3)
    about_center = rotation @ np.diag(inertia) @ rotation.T
    moments = 0.5 * np.trace(about_center) * np.eye(3) - about_center
    result = np.zeros((4, 4))
    result[:3, :3] = moments + mass * np.outer(center, center)
    result[3, :3] = result[:3, 3] = mass * center
    result[3, 3] = mass
    return result


def test_pseudo_inertia_is_changed_by_an_upper_triangular_matrix():
    ranges = {"alpha": (-0.3, 0.3), "d": (-0.4, 0.4), "s": (-0.5, 0.5), "t": (-0.1, 0.1)}
    event = EventTermCfg(mdp.randomize_pseudo_inertia, "startup", bodies="base", **ranges)
    env = walker_env(200, events={"load": event})
    fields = ("body_mass", "body_inertia", "body_ipos", "body_iquat")
    body = env.model.body("base").id
    drawn = [env.sim.expand(field)[:, body].double().numpy() for field in fields]
    before = _pseudo_inertia(*(getattr(env.model, field)[body] for field in fields))
    root = np.linalg.cholesky(before[::-1, ::-1])[::-1, ::-1]  # upper triangular
    for values in zip(*drawn, strict=True):
        after = _pseudo_inertia(*values)
        assert np.linalg.eigvalsh(after).min() > 0.0
        change = np.linalg.cholesky(after[::-1, ::-1])[::-1, ::-1] @ np.linalg.inv(root)
        assert abs(math.log(change[3, 3])) <= 0.3 + 1e-4
        change /= change[3, 3]
        assert np.abs(np.log(np.diag(change)[:3])).max() <= 0.4 + 1e-4
        assert np.abs(change[[0, 0, 1], [1, 2, 2]]).max() <= 0.5 + 1e-3
        assert np.abs(change[:3, 3]).max() <= 0.1 + 1e-4
    assert np.ptp(drawn[0]) > 0.5
    assert np.abs(drawn[3] - drawn[3][0]).max() > 0.1


def test_principal_axes_are_those_of_eigh():
    matrices = torch.randn(50, 3, 3, dtype=torch.float64).float()
    matrices = matrices @ matrices.mT
    matrices[0], matrices[1] = torch.eye(3), torch.zeros(3, 3)
    values, turn = principal_axes(matrices)
    torch.testing.assert_close(values.sort().values, torch.linalg.eigvalsh(matrices))
    axes = rotate(turn.unsqueeze(1), torch.eye(3).expand(50, 3, 3)).mT  # the columns are the axes
    torch.testing.assert_close(axes @ values.diag_embed() @ axes.mT, matrices, rtol=1e-4, atol=1e-5)


ARMATURE = {"field": "dof_armature", "joints": HINGES, "ranges": (1.0, 2.0)}
MASS = {"field": "body_mass", "bodies": "base"}
FLOOR = {"geoms": "floor", "ranges": (0.0, 1.0), "operation": "add"}
UNLIMITED = {"field": "jnt_range", "joints": "right_hinge", "ranges": (0.5, 1.0)}
LOGARITHMS = {"ranges": (-1.0, 1.0), "distribution": "log_uniform"}
SLIDING = {"field": "geom_friction", "geoms": "floor", "ranges": {"slide": (1.0, 2.0)}}
MISTAKES = [
    ({**ARMATURE, "ranges": (2.0, 1.0)}, r"--env\.events\.draw\.ranges is 2\.0 1\.0; the first"),
    ({**ARMATURE, "field": "dof_armatur"}, r"no field 'dof_armatur' can be drawn \(did you mean"),
    ({**MASS, "field": "dof_armature", "ranges": (1.0, 2.0)}, r"needs joints=.* given: bodies"),
    (
        SLIDING,
        r"no column 'slide' \(did you mean 'sliding'\?\); there are sli",
    ),
    ({**ARMATURE, "field": "dof_frictionloss"}, "is 0 in the model; .* use abs or add"),
    ({**UNLIMITED, "operation": "add"}, "jnt_range has no effect where jnt_limited is false"),
    ({"field": "geom_pos", **FLOOR}, "geom 'floor' is fixed to the world"),
    ({**ARMATURE, **LOGARITHMS}, "log_uniform needs numbers above 0"),
    ({**MASS, "ranges": (-2.0, -1.0), "operation": "abs"}, "body_mass could be -2; it must not"),
    ({**MASS, "ranges": (-4.5, 0.0), "operation": "add"}, "body_mass could be -0.5; it must not"),
    ({**MASS, "ranges": (1.0, 2.0), "operation": "set"}, "it must be abs, add"),
]


@pytest.mark.parametrize(("params", "message"), MISTAKES)
def test_what_cannot_be_drawn_is_told_before_training(params, message):
    task = walker_task(events={"draw": EventTermCfg(mdp.randomize_field, "reset", params=params)})
    with pytest.raises(ConfigError, match=message):
        check_task(task)


def test_friction_below_zero_is_told_before_training():
    event = EventTermCfg(mdp.randomize_motors, "reset", joints=HINGES, friction=(-0.1, 0.1))
    with pytest.raises(ConfigError, match=r"friction could be -0\.1; it must not be negative"):
        check_task(walker_task(events={"draw": event}))


def test_a_simple_body_keeps_its_centre_of_mass():
    body = '<body name="b"><freejoint/><geom size="1"/></body>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    params = {"field": "body_ipos", "bodies": "b", "ranges": (0.0, 1.0), "operation": "add"}
    event = EventTermCfg(mdp.randomize_field, "reset", params=params)
    with pytest.raises(ConfigError, match=r'body \'b\' only if it has simple="false"'):
        check_term("event", event, model, 0.02, leading=2)
