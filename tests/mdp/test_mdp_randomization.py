import math

import mujoco
import numpy as np
import pytest
import torch
from walker import HINGES, joints, value, walker_env

from simtrain import EventTermCfg, mdp
from simtrain.errors import ConfigError
from simtrain.mdp.observations import joint_pos_rel

N = 2000
EVENTS = {
    "friction": (mdp.randomize_friction, {"geoms": ".*_foot", "friction": (0.4, 1.2)}),
    "mass": (mdp.randomize_mass, {"bodies": (".*_leg", "base"), "scale": (0.8, 1.4)}),
    "center": (
        mdp.randomize_center_of_mass,
        {"bodies": "base", "offset": ((-0.1, 0.1), (0.0, 0.02), (-0.3, -0.1))},
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
    for offset, bounds in zip(offsets, EVENTS["center"][1]["offset"], strict=True):
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
    env = _env(name, num_envs=5)
    before = {field: env.sim.expand(field).clone() for field in FIELDS[name]}
    for field in before:
        assert len(torch.unique(before[field].flatten(1), dim=0)) == 5, field
    mask = torch.tensor([False, True, False, True, False])
    for term in env.events.terms:
        term(mask)
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


def test_bounds_the_wrong_way_round_are_told():
    with pytest.raises(ConfigError, match=r"lower bound 2.0 is above the upper bound 1.0"):
        value(walker_env(), mdp.randomize_friction, geoms=".*_foot", friction=(2.0, 1.0))
