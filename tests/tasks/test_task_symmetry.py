"""The tasks' mirrors against physics: mirrored states and actions lead to mirrored states."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from simtrain import SimCfg, TaskCfg
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.env.names import find_joints
from simtrain.files import find_beside_tasks
from simtrain.motion.clip import MotionClip
from simtrain.sim import EngineCfg
from simtrain.training.reflection import mirror_maps

ENVS, STEPS = 8, 12
TURN = torch.tensor([1.0, -1.0, 1.0])  # of a vector


def _calm_task(name: str) -> TaskCfg:
    """A task without noise, delays and events."""
    cfg = discover().find(name).make()
    for group in cfg.observations.values():
        for term in group.values():
            term.noise, term.delay_max_lag = None, 0
    for action in cfg.actions.values():
        action.delay_max_lag = 0
    cfg.events, cfg.curricula = {}, {}
    # Solved to the end, contacts do not depend on the order in which they are solved.
    cfg.timestep, cfg.decimation, cfg.sim = 0.005, 4, SimCfg()
    return cfg


def _walkers(name: str) -> tuple[Env, Env]:
    """A task with one command, and with its mirror image."""
    envs = []
    for sign, phase in ((1.0, 0.2), (-1.0, 0.7)):
        cfg = _calm_task(name)
        params = cfg.commands["velocity"].params
        command = {"lin_vel_x": 0.5, "lin_vel_y": sign * 0.2, "ang_vel_z": sign * 0.3}
        params |= {bounds: (value, value) for bounds, value in command.items()}
        params |= dict.fromkeys(("rel_heading_envs", "rel_forward_envs", "rel_standing_envs"), 0.0)
        cfg.commands["gait"].params["frequency"] = (1.5, 1.5)
        env = Env(cfg, ENVS, EngineCfg(threads=1))
        env.declared("commands.gait.phase")["commands.gait.phase"].fill_(phase)
        env.commands.terms["gait"].update()
        envs.append(env)
    return envs[0], envs[1]


def _check_mirror(env: Env, image: Env, velocity: float, seen: float, reward: float) -> Tensor:
    """Step a task and its mirror image side by side, put right after each step.

    Bounds: of the difference of velocities relative to the step's change, and of medians of
    columns and of rewards relative to the root mean square. Returns how far each column that the
    policy sees would be off, had all signs been the others.
    """
    maps = mirror_maps(env, env.device)
    reflect = _state_reflection(env)
    velocities, observed, rewards = [], {group: [] for group in maps.observations}, []
    for _ in range(STEPS):
        for field, value in reflect().items():
            image.sim.write(field, value)
        before = env.bind("qvel").clone()
        actions = 0.5 * torch.randn(ENVS, env.num_actions)
        obs, *_ = env.step(actions)
        images, *_ = image.step(maps.actions(actions))
        change = (env.bind("qvel") - before).norm(dim=1)
        velocities.append((reflect()["qvel"] - image.bind("qvel")).norm(dim=1) / change)
        for group, pairs in observed.items():
            pairs.append(torch.stack((maps.observations[group](obs[group]), images[group])))
        rewards.append(torch.stack((env.rewards.values, image.rewards.values)))

    def relative(pairs: list[Tensor], sign: float = 1.0) -> Tensor:
        mirrored, expected = torch.cat(pairs, dim=1)
        size = expected.square().mean(dim=0).sqrt().clamp(min=1e-6)
        return (sign * mirrored - expected).abs().median(dim=0).values / size

    assert torch.cat(velocities).median() < velocity
    for group, pairs in observed.items():
        assert relative(pairs).max() < seen, group
    for name, difference in zip(env.rewards.names, relative(rewards).tolist(), strict=True):
        assert difference < reward, name
    return relative(observed["actor"], sign=-1.0)


def _state_reflection(env: Env) -> Callable[[], dict[str, Tensor]]:
    """A function that gives the mirror image of the state, by MuJoCo's conventions.

    Which joints are partners and their signs were worked out by hand from the models.
    """
    model = env.model
    names = [model.joint(i).name for i in range(1, model.njnt)]
    index, sign = _partners(names)
    assert find_joints(model, tuple(names), "cpu").qpos == slice(7, model.nq)

    def reflect() -> dict[str, Tensor]:
        qpos, qvel = env.bind("qpos").clone(), env.bind("qvel").clone()
        qpos[:, :3] *= TURN
        qpos[:, 3:7] *= torch.tensor([1.0, -1.0, 1.0, -1.0])
        qvel[:, :3] *= TURN
        qvel[:, 3:6] *= -TURN
        qpos[:, 7:], qvel[:, 6:] = qpos[:, 7:][:, index] * sign, qvel[:, 6:][:, index] * sign
        return {"qpos": qpos, "qvel": qvel}

    return reflect


def _partners(names: Sequence[str]) -> tuple[list[int], Tensor]:
    """The places of joints' or bodies' mirror images, and signs of joints."""
    swap = {"FL": "FR", "FR": "FL", "RL": "RR", "RR": "RL", "left": "right", "right": "left"}
    parts = [name.partition("_") for name in names]
    index = [names.index(f"{swap.get(side, side)}{sep}{rest}") for side, sep, rest in parts]
    turned = ("hip_joint", "_roll_joint", "_yaw_joint", "waist_yaw_joint", "waist_roll_joint")
    return index, torch.tensor([-1.0 if name.endswith(turned) else 1.0 for name in names])


def _followers(motion: str, folder: Path) -> tuple[Env, Env]:
    """G1s that follow a motion, each from a frame of its own, and its mirror image."""
    cfg = _calm_task("g1-tracking")
    path = find_beside_tasks(f"g1/motions/{motion}.npz")
    model = mujoco.MjModel.from_xml_path(str(cfg.model))
    (folder / motion).with_suffix(".npz").write_bytes(path.read_bytes())
    image = _mirrored(MotionClip.load(path, model))
    (folder / "image.npz").write_bytes(image.packed())
    cfg.terminations, params = {}, cfg.commands["motion"].params
    params |= {"sampling": "uniform", "joint_position_range": (0.0, 0.0)}
    params |= {"pose_range": {}, "velocity_range": {}}
    envs = []
    for file in (motion, "image"):
        torch.manual_seed(0)
        params["files"] = (str(folder / f"{file}.npz"),)
        envs.append(Env(copy.deepcopy(cfg), ENVS, EngineCfg(threads=1)))
    return envs[0], envs[1]


def _mirrored(clip: MotionClip) -> MotionClip:
    """The motion in a mirror, computed by hand."""
    quat = np.array([1.0, -1.0, 1.0, -1.0], np.float32)
    vector = np.array([1.0, -1.0, 1.0], np.float32)
    joints, sign = _partners(clip.joint_names)
    bodies, _ = _partners(clip.body_names)
    signs = {"joint_pos": sign.numpy(), "joint_vel": sign.numpy(), "body_quat_w": quat}
    signs |= {"body_pos_w": vector, "body_lin_vel_w": vector, "body_ang_vel_w": -vector}
    columns = {name: joints if name.startswith("joint") else bodies for name in signs}
    arrays = {n: getattr(clip, n)[:, columns[n]] * by for n, by in signs.items()}
    return dataclasses.replace(clip, **arrays)


def test_a_mirrored_motion_is_followed_as_the_motion_is_in_a_mirror(tmp_path):
    # Small entries of matrices are least alike.
    turned = _check_mirror(*_followers("turn", tmp_path), velocity=2e-3, seen=0.03, reward=6e-3)
    # Every sign matters, but those of joints that the motion does not move.
    assert (turned > 0.1).float().mean() > 0.95


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("go1-velocity-flat", 0.03),  # its trunk carries its load 2 mm beside the middle
        ("g1-velocity-flat", 2e-3),
    ],
)
def test_a_mirrored_state_steps_to_the_mirrored_next_state(name, bound):
    turned = _check_mirror(*_walkers(name), bound, 3.0 * bound, 3.0 * bound)
    # Every sign matters: turned, it would be far off.
    assert turned.min() > max(0.1, 5.0 * bound)


def test_a_mirrored_cart_and_pole_swing_to_the_other_side():
    cfg = discover().find("cartpole-balance").make()
    env = Env(cfg, 2, EngineCfg(threads=1))
    maps = mirror_maps(env, env.device)
    state = torch.tensor([0.3, 0.2])
    env.sim.write("qpos", torch.stack((state, -state)))
    env.sim.write("qvel", torch.zeros(2, 2))
    env.sim.forward()
    for action in (0.5, -0.3, 1.0):
        actions = torch.tensor([[action]])
        obs, rewards, *_ = env.step(torch.cat((actions, maps.actions(actions))))
        torch.testing.assert_close(maps.observations["actor"](obs["actor"][:1]), obs["actor"][1:])
        torch.testing.assert_close(rewards[0], rewards[1])
        assert (obs["actor"][0, [0, 2, 3, 4]] != obs["actor"][1, [0, 2, 3, 4]]).all()
