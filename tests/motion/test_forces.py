"""Torques of motions, computed by hand for a small robot and tried on the G1."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch
from robot import XML, make_robot, standing

from simtrain.api import make_env
from simtrain.errors import ConfigError
from simtrain.motion.clip import clip_of
from simtrain.motion.forces import joint_torques, servo_offsets

SERVOS = XML.replace(
    "<keyframe>",
    """<actuator><position joint="left" kp="2000" kv="40" forcerange="-1000 1000"/>
<position joint="right" kp="2000" kv="40" forcerange="-15 15"/></actuator><keyframe>""",
)
G = 9.81


def _clip(model, qpos):
    return clip_of(model, "motion", 50.0, qpos)


def _masses(model):
    legs = [model.body(name).mass[0] for name in ("left", "right")]
    return model.body_subtreemass[0] - sum(legs), legs[0]


def test_legs_on_the_floor_carry_the_robot_half_each_and_nothing_holds_its_base(model):
    trunk, _ = _masses(model)
    forces, velocities = joint_torques(_clip(model, standing(model)), model)
    assert np.abs(velocities).max() < 1e-6
    assert np.abs(forces[:, :6]).max() < 0.01 * trunk * G
    assert forces[:, 7:] == pytest.approx(-trunk * G / 2, rel=0.01)


def test_in_the_air_legs_carry_only_themselves_and_the_base_is_accelerated(model):
    trunk, leg = _masses(model)
    qpos, time = standing(model, 51), np.arange(51) / 50.0
    qpos[:, 2] += 1.0 + time**2  # 2 m/s² upwards
    forces, velocities = joint_torques(_clip(model, qpos), model)
    inner = slice(8, -8)  # at the ends, velocities have neighbours on one side only
    assert velocities[inner, 2] == pytest.approx(2.0 * time[inner], abs=0.01)
    assert forces[inner, 2] == pytest.approx((trunk + 2 * leg) * (G + 2.0), rel=0.01)
    assert forces[inner, 7:] == pytest.approx(leg * (G + 2.0), rel=0.01)


def test_servos_lead_by_the_torque_and_the_damping_within_their_limits(tmp_path):
    model = make_robot(tmp_path, SERVOS)
    trunk, leg = _masses(model)
    qpos, time = standing(model, 51), np.arange(51) / 50.0
    qpos[:, 2] += 1.0
    qpos[:, 8] += 0.5 * time  # the left leg at 0.5 m/s, in the air
    offsets = servo_offsets(_clip(model, qpos), model, [0, 1])[8:-8]
    assert offsets[:, 0] == pytest.approx((leg * G + 40 * 0.5) / 2000, rel=0.02)
    assert leg * G > 15
    assert offsets[:, 1] == pytest.approx(15 / 2000)
    on_floor = servo_offsets(_clip(model, standing(model)), model, [0, 1])
    assert on_floor[:, 0] == pytest.approx(-trunk * G / 2 / 2000, rel=0.01)


def test_motors_whose_forces_are_computed_otherwise_are_refused(tmp_path):
    model = make_robot(tmp_path, SERVOS)
    model.actuator_biastype[1] = mujoco.mjtBias.mjBIAS_DCMOTOR.value
    with pytest.raises(ConfigError, match="not for dcmotor"):
        servo_offsets(_clip(model, standing(model)), model, [0, 1])


def test_zero_actions_follow_a_motion_of_the_g1_closely_by_feedforward():
    axes = ("x", "y", "z", "roll", "pitch", "yaw")
    none = {f"{name}_range.{axis}": (0.0, 0.0) for name in ("pose", "velocity") for axis in axes}
    errors = []
    for feedforward in (False, True):
        settings = {
            "files": ("g1/motions/walk.npz",),
            "sampling": "uniform",
            "joint_position_range": (0.0, 0.0),
            "feedforward": feedforward,
            **none,
        }
        flags = {f"commands.motion.{name}": value for name, value in settings.items()}
        env = make_env("g1-tracking", 32, flags)
        motion, error = env.commands.terms["motion"], []
        for _ in range(10):
            target = motion.command.chunk(2, dim=1)[0].clone()
            env.step(torch.zeros(32, env.num_actions))
            error.append((env.bind("qpos")[:, 7:] - target).abs().mean())
        errors.append(float(torch.stack(error).mean()))
    assert errors[1] < 0.5 * errors[0]
