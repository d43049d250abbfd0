"""The motion of a trained policy, recorded from its task without noise, pushes and exploration."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from simtrain.env.env import Env
from simtrain.env.model import compile_model, evaluation_task
from simtrain.env.randomness import seed_everything
from simtrain.errors import ConfigError
from simtrain.motion.clip import MotionClip, check_robot, clip_of
from simtrain.sim import choose_engine
from simtrain.training.saved_policy import SavedPolicy
from simtrain.view.playback import hold_commands, why_ended


@torch.inference_mode()
def record_motion(
    saved: SavedPolicy,
    name: str,
    command: Sequence[str],
    *,
    seconds: float,
    skip: float,
    seed: int,
) -> MotionClip:
    """The motion of a policy from `skip` seconds on, at its control rate.

    The commands in `command` are constant, see `hold_commands`; the others are drawn. The motion
    begins above the origin and faces along x. ConfigError if the episode ends sooner, or if a
    command is invalid.
    """
    cfg = evaluation_task(saved.config.env)
    cfg.episode_length_s = max(cfg.episode_length_s, 2.0 * (skip + seconds))
    model = compile_model(cfg)
    check_robot(model, f"the model of {saved.config.task}")
    seed_everything(seed)
    env = Env(cfg, 1, choose_engine("mujoco", "cpu"))
    hold_commands(env, command)
    obs = env.reset()
    act = saved.policy(obs, env.num_actions)
    first, last = round(skip / env.step_dt), round((skip + seconds) / env.step_dt)
    states = np.zeros((last + 1, model.nq))
    for step in range(last + 1):
        states[step] = env.bind("qpos")[0].numpy()
        obs, _, dones, _ = env.step(act(obs, env.is_fresh))
        if bool(dones):
            text = f"the episode ended after {step * env.step_dt:.2f} s by {why_ended(env, 0)}"
            raise ConfigError(f"{text}; record less, or with another --seed")
    return clip_of(model, name, 1.0 / env.step_dt, _from_origin(states[first:]))


def _from_origin(qpos: np.ndarray) -> np.ndarray:
    """The same motion, moved and turned so that it begins above the origin and faces along x."""
    moved = qpos.copy()
    rotation = Rotation.from_quat(qpos[:, 3:7], scalar_first=True)
    heading = Rotation.from_euler("z", -rotation[0].as_euler("ZYX")[0])
    moved[:, :3] -= qpos[0, :3] * (1.0, 1.0, 0.0)
    moved[:, :3] = heading.apply(moved[:, :3])
    moved[:, 3:7] = (heading * rotation).as_quat(scalar_first=True)
    return moved
