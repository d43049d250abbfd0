import math

import mujoco
import numpy as np
import pytest
import torch
from walker import HINGES, joints, value, walker_env, walker_task

from simtrain import EventTermCfg, mdp
from simtrain.env.model import check_task
from simtrain.env.names import check_term
from simtrain.errors import ConfigError
from simtrain.mdp.observations import joint_pos_rel
from simtrain.mdp.rotations import principal_axes, rotate

N = 2000
OFFSETS = {"x": (-0.1, 0.1), "y": (0.0, 0.02), "z": (-0.3, -0.1)}
EVENTS = {
    "friction": (
        mdp.randomize_field,
        {
            "field": "geom_friction",
            "geoms": ".*_foot",
            "ranges": {"sliding": (0.4, 1.2)},
            "operation": "abs",
            "shared": True,
        },
    ),
    "mass": (
        mdp.randomize_field,
        {
            "field": ("body_mass", "body_inertia"),
            "bodies": (".*_leg", "base"),
            "ranges": (0.8, 1.4),
        },
    ),
    "center": (
        mdp.randomize_field,
        {"field": "body_ipos", "bodies": "base", "ranges": OFFSETS, "operation": "add"},
    ),
    "gains": (
        mdp.randomize_actuator_gains,
        {"joints": HINGES, "stiffness": (0.9, 1.1), "damping": (0.5, 1.5)},
    ),
    "bias": (mdp.randomize_encoder_bias, {"joints": HINGES, "bias": (-0.05, 0.05)}),
}
FIELDS = {
    "friction": ["geom_friction"],
    "mass": ["body_mass", "body_inertia", "body_invweight0", "dof_invweight0"],
    "center": ["body_ipos", "body_invweight0"],
    "gains": ["actuator_gainprm", "actuator_biasprm"],
    "bias": ["actuator_biasprm"],
}


def _env(*names, num_envs=N, mode="startup"):
    events = {name: EventTermCfg(EVENTS[name][0], mode, **EVENTS[name][1]) for name in names}
    return walker_env(num_envs, events=events)


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
    env = _env("mass", "center", num_envs=3)
    weights = env.sim.expand("body_invweight0")
    model = walker_env().model
    for i in range(3):
        for field in ("body_mass", "body_inertia", "body_ipos"):
            getattr(model, field)[:] = env.sim.expand(field)[i].numpy()
        mujoco.mj_setConst(model, mujoco.MjData(model))
        expected = torch.tensor(model.body_invweight0, dtype=torch.float32)
        torch.testing.assert_close(weights[i], expected, rtol=1e-4, atol=1e-6)


def test_centres_of_mass_move_along_each_axis():
    env = _env("center")
    position = env.sim.expand("body_ipos")[:, env.model.body("base").id]
    nominal = torch.tensor(env.model.body("base").ipos, dtype=torch.float32)
    offsets = (position - nominal).unbind(1)
    for offset, bounds in zip(offsets, OFFSETS.values(), strict=True):
        _is_uniform(offset, *bounds)


def test_gains_scale_stiffness_and_damping_of_each_servo():
    env = _env("gains")
    gain, bias = env.sim.expand("actuator_gainprm"), env.sim.expand("actuator_biasprm")
    for servo, kp in enumerate((50.0, 100.0)):
        _is_uniform(gain[:, servo, 0] / kp, 0.9, 1.1)
        _is_uniform(bias[:, servo, 2] / -5.0, 0.5, 1.5)
    torch.testing.assert_close(bias[:, :, 1], -gain[:, :, 0])
    assert not bias[:, :, 0].any()


def test_encoder_bias_survives_a_change_of_gains():
    env = _env("bias", "gains")
    read = joint_pos_rel(env, joints(env), biased=True)(env)
    truth = value(env, joint_pos_rel, joints=HINGES)
    bias = read - truth
    for column in bias.unbind(1):
        _is_uniform(column, -0.05, 0.05)
    env.events.startup()
    env.sim.forward()
    again = joint_pos_rel(env, joints(env), biased=True)(env) - truth
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


def test_values_differ_from_reset_to_reset_but_stay_within_their_bounds():
    env = _env("mass", num_envs=500, mode="reset")
    mass, base = env.sim.expand("body_mass"), env.model.body("base").id
    first = mass[:, base].clone()
    for _ in range(5):
        env.reset()
    assert not torch.allclose(mass[:, base], first)
    assert mass[:, base].min() >= 0.8 * 4.0 - 1e-5
    assert mass[:, base].max() <= 1.4 * 4.0 + 1e-5


def test_the_same_seed_gives_the_same_values():
    values = []
    for _ in range(2):
        torch.manual_seed(7)
        env = _env(*EVENTS, num_envs=4)
        values.append([env.sim.expand(f).clone() for fields in FIELDS.values() for f in fields])
    assert all(torch.equal(a, b) for a, b in zip(*values, strict=True))


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


def test_columns_that_are_not_named_keep_their_values():
    drawn = _drawn("jnt_range", joints="left_hinge", ranges={"upper": (0.5, 0.9)})[:, 1]
    assert (drawn[:, 0] == -1.0).all()
    _is_uniform(drawn[:, 1], 0.5, 0.9)


def test_gravity_is_drawn_by_axis():
    gravity = _drawn("opt.gravity", ranges={"z": (-0.2, 0.2), "x": (0.5, 0.6)}, operation="add")
    _is_uniform(gravity[:, 0], 0.5, 0.6)
    assert not gravity[:, 1].any()
    _is_uniform(gravity[:, 2], -10.01, -9.61)


def test_poses_turn_about_their_own_axes():
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
    for matrix, moments, quaternion in zip(matrices, values, turn, strict=True):
        axes = rotate(quaternion, torch.eye(3)).T  # the columns are the axes
        torch.testing.assert_close(axes @ moments.diag() @ axes.T, matrix, rtol=1e-4, atol=1e-5)


def test_constants_are_set_once_a_reset(monkeypatch):
    env = _env("mass", "center", num_envs=4, mode="reset")
    masks = []
    set_const = env.sim.set_const
    monkeypatch.setattr(env.sim, "set_const", lambda m, defer: (masks.append(m), set_const(m)))
    mask = torch.tensor([True, False, True, False])
    env.events.reset(mask)
    assert len(masks) == 1
    assert torch.equal(masks[0], mask)


MISTAKES = {
    "bounds the wrong way round": (
        {"field": "dof_armature", "joints": HINGES, "ranges": (2.0, 1.0)},
        r"--env\.events\.draw: the range is 2\.0 1\.0; the lower bound comes first",
    ),
    "a field that there is not": (
        {"field": "dof_armatur", "joints": HINGES, "ranges": (1.0, 2.0)},
        r"no field 'dof_armatur' can be drawn \(did you mean 'dof_armature'",
    ),
    "names of another kind": (
        {"field": "dof_armature", "bodies": "base", "ranges": (1.0, 2.0)},
        r"dof_armature needs joints=\.\.\., and nothing else; given: bodies",
    ),
    "a column that there is not": (
        {"field": "geom_friction", "geoms": "floor", "ranges": {"slide": (1.0, 2.0)}},
        r"no column 'slide' \(did you mean 'sliding'\?\); it has sliding, torsional, rolling",
    ),
    "a factor of zeros": (
        {"field": "dof_frictionloss", "joints": HINGES, "ranges": (1.0, 2.0)},
        r"dof_frictionloss is 0 in the model, .* use abs or add",
    ),
    "a range that is not there": (
        {"field": "jnt_range", "joints": "right_hinge", "ranges": (0.5, 1.0), "operation": "add"},
        r"jnt_range bounds nothing where jnt_limited is false",
    ),
    "what cannot move": (
        {"field": "geom_pos", "geoms": "floor", "ranges": (0.0, 1.0), "operation": "add"},
        r"geom 'floor' is fixed to the world",
    ),
    "logarithms of negative numbers": (
        {
            "field": "dof_armature",
            "joints": HINGES,
            "ranges": (-1.0, 1.0),
            "distribution": "log_uniform",
        },
        r"log_uniform needs numbers above 0",
    ),
    "a mass below nothing": (
        {"field": "body_mass", "bodies": "base", "ranges": (-2.0, -1.0), "operation": "abs"},
        r"body_mass could be -2; it must not be negative",
    ),
    "less than nothing left": (
        {"field": "body_mass", "bodies": "left_leg", "ranges": (-1.5, 0.0), "operation": "add"},
        r"body_mass could be -0.5; it must not be negative",
    ),
    "words for numbers": (
        {"field": "body_mass", "bodies": "base", "ranges": ("a", "b")},
        r"the range is 'a' 'b'; it takes numbers",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_drawn_is_told_before_training(mistake):
    params, message = MISTAKES[mistake]
    task = walker_task(events={"draw": EventTermCfg(mdp.randomize_field, "reset", params=params)})
    with pytest.raises(ConfigError, match=message):
        check_task(task)


def test_a_simple_body_keeps_its_centre_of_mass():
    model = (
        '<mujoco><worldbody><body name="b"><freejoint/><geom size="1"/></body></worldbody></mujoco>'
    )
    params = {"field": "body_ipos", "bodies": "b", "ranges": (0.0, 1.0), "operation": "add"}
    event = EventTermCfg(mdp.randomize_field, "reset", params=params)
    with pytest.raises(ConfigError, match=r'body \'b\' only if it has simple="false"'):
        check_term("event", event, mujoco.MjModel.from_xml_string(model), 0.02, leading=2)
