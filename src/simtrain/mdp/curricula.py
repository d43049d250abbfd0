"""Changes of the task as training goes on: each is ``(env, mask)``, called before resets.

`mask` holds the environments about to be reset. What a term returns is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from simtrain.errors import ConfigError
from simtrain.mdp.commands import UniformVelocityCommand

if TYPE_CHECKING:
    from simtrain.env.env import Env


class command_ranges:
    """Widen the velocities of a `UniformVelocityCommand` over the first control steps.

    Drawn from the part `start` of its bounds at first, 0 to 1, and from all after `steps`.
    """

    def __init__(self, env: Env, command: str, start: float, steps: int) -> None:
        term = env.commands.terms[command]
        if not isinstance(term, UniformVelocityCommand):
            raise ConfigError(f"command_ranges: {command!r} is no UniformVelocityCommand")
        self._term, self._start, self._steps = term, start, steps
        self._full = torch.stack((term.low[:3], term.high[:3]))

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """Set the command's bounds, in place; the part of them that is drawn from, scalar."""
        part = self._start + (1.0 - self._start) * (env.steps / self._steps).clamp(max=1.0)
        low, high = self._full * part
        self._term.low[:3] = low
        self._term.high[:3] = high
        return part


class terrain_levels:
    """Harder tiles for those that get far, easier ones for those that do not.

    Who has walked half a tile away from the start goes up; who has come less than half as far as
    the present velocity command asks for in a whole episode goes down.
    """

    def __init__(self, env: Env, command: str) -> None:
        if env.terrain is None:
            raise ConfigError("terrain_levels needs a task with a terrain")
        self._terrain = env.terrain
        self._command = command

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """Change the levels and origins in `mask`, in place; the mean level, scalar."""
        terrain = self._terrain
        position = env.bind("qpos")[:, env.base.position]
        walked = torch.linalg.vector_norm(position[:, :2] - terrain.origins[:, :2], dim=1)
        speed = torch.linalg.vector_norm(env.command(self._command)[:, :2], dim=1)
        commanded = speed * env.max_episode_length_s
        up = walked > terrain.tile_size / 2.0
        down = (walked < commanded / 2.0) & ~up
        # The first reset, before anything was walked, changes nothing.
        terrain.move(mask & (env.episode_length_buf > 0), up.long() - down.long())
        return terrain.levels.float().mean()
