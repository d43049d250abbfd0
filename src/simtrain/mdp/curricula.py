"""Changes of the task as training goes on: each is ``(env, mask)``, called before resets.

`mask` holds the environments about to be reset. What a term returns is logged.
"""

import torch
from torch import Tensor

from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.mdp.commands import UniformVelocityCommand


class command_ranges:
    """Widen a `UniformVelocityCommand`, from `start` times its bounds to all in control `steps`."""

    def __init__(self, env: Env, command: str, start: float, steps: int) -> None:
        term = env.commands.terms[command]
        if not isinstance(term, UniformVelocityCommand):
            raise ConfigError(f"command_ranges: {command!r} is no UniformVelocityCommand")
        self._term, self._start, self._steps = term, start, steps
        self._full = torch.stack((term.low[:3], term.high[:3]))

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """Set the command's bounds, in place; the part of them that is drawn from, scalar."""
        part = self._start + (1.0 - self._start) * (env.steps / self._steps).clamp(max=1.0)
        self._term.low[:3], self._term.high[:3] = self._full * part
        return part


class terrain_levels:
    """Harder tiles for who has walked half a tile away from the start, and easier ones for others.

    These have come less than half as far as the velocity command asks for in a whole episode.
    """

    def __init__(self, env: Env, command: str) -> None:
        if env.terrain is None:
            raise ConfigError("terrain_levels needs a task with a terrain")
        self._terrain, self._command = env.terrain, command

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """Change the levels and origins in `mask`, in place; the mean level, scalar."""
        terrain = self._terrain
        position = env.bind("qpos")[:, env.base.position]
        walked = torch.linalg.vector_norm(position[:, :2] - terrain.origins[:, :2], dim=1)
        speed = torch.linalg.vector_norm(env.command(self._command)[:, :2], dim=1)
        down = walked < speed * (env.max_episode_length_s / 2.0)
        change = down.long().neg_().masked_fill_(walked > terrain.tile_size / 2.0, 1)
        # The first reset, before anything was walked, changes nothing.
        terrain.move(mask & (env.episode_length_buf > 0), change)
        return terrain.levels.float().mean()
