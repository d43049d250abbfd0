"""Videos of the policy while it trains, without changing its training by a bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simtrain.config import TrainConfig
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.errors import ConfigError, SimulationError
from simtrain.run.directory import VIDEOS
from simtrain.sim import EngineCfg
from simtrain.training.saved_policy import Policy
from simtrain.view.renderer import Picture
from simtrain.view.video import record


class TrainingVideo:
    """Records the policy on an environment of its own, on the CPU, undisturbed.

    Whatever fails ends in a warning: training goes on without the video.
    """

    def __init__(self, config: TrainConfig, run: Path, say: Callable[[str], None]) -> None:
        """Make the environment, and try whether this machine can draw it.

        Args:
            config: the whole configuration.
            run: the run directory; videos go to ``<run>/videos``.
            say: called with warnings.
        """
        self._config = config
        self._folder = run / VIDEOS
        self._say = say
        self._env: Env | None = None
        self._policy: Policy | None = None
        try:
            with _randomness_kept(config.seed):
                env = Env(evaluation_task(config.env), 1, EngineCfg(threads=1))
            with Picture(env) as picture:
                picture.draw()
            self._folder.mkdir(exist_ok=True)
        except (ConfigError, SimulationError, OSError) as error:
            say(f"warning: training goes on without videos: {error}")
        else:
            self._env = env

    def record(self, iteration: int, actor: dict[str, Tensor]) -> Path | None:
        """Record the policy with these parameters, ``actor_state_dict``; the file, if it worked."""
        if self._env is None:
            return None
        path = self._folder / f"iteration_{iteration}.mp4"
        env, config = self._env, self._config
        actor = {name: value.cpu() for name, value in actor.items()}
        try:
            with _randomness_kept(config.seed):
                if self._policy is None:
                    obs = env.get_observations()
                    self._policy = Policy(config.ppo.actor, obs, env.num_actions, actor)
                self._policy.load(actor)
                note = f"{config.task}, iteration {iteration}"
                record(env, self._policy, path, range(config.video_length), note, (640, 360))
        except (ConfigError, SimulationError, OSError) as error:
            self._say(f"warning: no video of iteration {iteration}: {error}")
            return None
        return path


@contextmanager
def _randomness_kept(seed: int) -> Iterator[None]:
    """Start from `seed` within, and leave the CPU's random generators as they were."""
    ours, numpys, pythons = torch.get_rng_state(), np.random.get_state(), random.getstate()
    # Not torch.manual_seed, which seeds GPUs too.
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(ours)
        np.random.set_state(numpys)
        random.setstate(pythons)
