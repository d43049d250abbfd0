"""Randomization, forces, biases, contacts at physics steps and ray casts on ``cuda:1``."""

from __future__ import annotations

from functools import partial

import mujoco
import pytest
import tiny_task
import torch
from fake_cuda import DEVICE, NoHostTraffic, fake_cuda, fake_env, tensors_elsewhere

from simtrain import (
    EventTermCfg,
    GaussianNoiseCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
)
from simtrain.env.model import check_task

TOUCH = '<sensor><contact name="touch" geom2="box" data="found force" reduce="netforce"/>'
MODEL = tiny_task.MODEL.replace("<sensor>", TOUCH).replace(
    "<body name", '<body simple="false" name'
)
FIELDS = {
    "mass": {"field": ("body_mass", "body_inertia"), "bodies": ".*_cart|box", "ranges": (0.9, 1.1)},
    "pose": {"field": "body_quat", "bodies": "box", "ranges": {"yaw": (0, 1)}, "operation": "add"},
    "friction": {
        "field": "geom_friction",
        "geoms": ".*",
        "ranges": {"sliding": (0.1, 1), "rolling": (0, 1)},
        "operation": "abs",
        "shared": True,
    },
    "armature": {
        "field": "dof_armature",
        "joints": ".*_hinge",
        "ranges": (0.1, 0.2),
        "operation": "abs",
        "distribution": "log_uniform",
    },
    "gravity": {
        "field": "opt.gravity",
        "ranges": {"x": (-1, 1), "z": (0, 1)},
        "operation": "add",
        "distribution": "gaussian",
    },
}


def _force(env, mask):
    env.sim.write("xfrc_applied", 1.0, mask)


@pytest.mark.parametrize("mode", ["reset", "interval", "step"])
def test_what_is_drawn_and_sensed_stays_on_the_gpu(mode):
    draw = partial(EventTermCfg, mode=mode)
    events = {name: draw(mdp.randomize_field, params=params) for name, params in FIELDS.items()}
    inertia = {"bodies": "box|.*_cart", "alpha": (-0.1, 0.1), "s": (-0.1, 0.1), "t": (0.0, 0.1)}
    force = {"bodies": "box", "force_range": {"x": (-1, 1)}, "duration_s": (0.0, 0.1)}
    events["inertia"] = draw(mdp.randomize_pseudo_inertia, params=inertia)
    events["force"] = draw(mdp.apply_body_force, params=force)
    events["wind"] = EventTermCfg(_force, "step", after_steps=2)
    noise = {"noise": UniformNoiseCfg(), "bias": GaussianNoiseCfg()}
    observations = {
        "biased": ObservationTermCfg(mdp.joint_pos, joints=".*_slide", history_length=2, **noise),
        "history": ObservationTermCfg(mdp.foot_contact_history, sensors="touch"),
        "air": ObservationTermCfg(mdp.foot_air_time, sensors="touch", substeps=True),
        "grid": ObservationTermCfg(mdp.ray_grid, sites="left_tip", geom_groups=(0, 2)),
        "ring": ObservationTermCfg(mdp.ray_ring, sites="left_tip", alignment="site"),
    }
    image = {"image": ObservationTermCfg(mdp.ray_pinhole, sites="left_tip")}
    blow = TerminationTermCfg(mdp.illegal_contact, sensors="touch", threshold=1.0, substeps=True)
    cfg = tiny_task.tiny_task(
        model=lambda: mujoco.MjSpec.from_string(MODEL),
        events=events,
        rewards={"alive": RewardTermCfg(mdp.is_alive, weight=1.0)},
        observations={"actor": observations, "image": image},
        terminations={"blow": blow},
    )
    check_task(cfg)
    with fake_cuda():
        env = fake_env(cfg)
        with torch.inference_mode(), NoHostTraffic():
            for _ in range(2):
                obs = env.step(torch.zeros(env.num_envs, env.num_actions, device=DEVICE))[0]
        assert obs["image"].shape == (16, 1, 24, 32)
        assert tensors_elsewhere(env, "env") == []
