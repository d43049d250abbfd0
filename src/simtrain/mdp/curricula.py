"""Changes of the task as training goes on: each is ``(env, mask)``, called before resets.

`mask` holds the environments about to be reset. What a term returns is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from simtrain.errors import ConfigError
from simtrain.mdp.commands import UniformVelocityCommand
from simtrain.mdp.robot_state import base_velocity

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env


class command_ranges:
    """Widen a `UniformVelocityCommand`, from `start` times its bounds to all in control `steps`."""

    def __init__(self, env: Env, command: str, start: float, steps: int) -> None:
        term = env.commands.terms[command]
        if not isinstance(term, UniformVelocityCommand):
            raise ConfigError(f"the command {command!r} is no UniformVelocityCommand")
        self._term, self._start, self._steps = term, start, steps
        self._full = torch.stack((term.low[:3], term.high[:3]))

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """Set the command's bounds, in place; the part of them that is drawn from, scalar."""
        part = self._start + (1.0 - self._start) * (env.steps / self._steps).clamp(max=1.0)
        self._term.low[:3], self._term.high[:3] = self._full * part
        return part


class terrain_levels:
    """Harder tiles for who follows the velocity command, and easier ones for who does not.

    What counts is the distance that an episode makes in the direction commanded, of the distance
    commanded: from `promote` on it goes a level up, below `demote` a level down. One that ended by
    failure is measured against what was commanded and the rest of the time at its last command. An
    episode that was told to go less than half a tile changes nothing.
    """

    def __init__(self, env: Env, command: str, promote: float = 0.8, demote: float = 0.5) -> None:
        if env.terrain is None:
            raise ConfigError("terrain_levels needs a task with a terrain")
        self._terrain, self._command = env.terrain, command
        self._promote, self._demote = promote, demote
        self._commanded, self._made = env.buffer("distances", (2,)).unbind(1)

    def observe(self, env: Env) -> None:
        """Add a step's distances, m, in place."""
        command = env.command(self._command)[:, :2]
        speed = torch.linalg.vector_norm(command, dim=1)
        along = (base_velocity(env)[:, :2] * command).sum(dim=1) / speed.clamp(min=1e-6)
        self._commanded.add_(speed, alpha=env.step_dt)
        self._made.add_(along, alpha=env.step_dt)

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """Change the levels and origins in `mask`, in place; the mean level, scalar."""
        speed = torch.linalg.vector_norm(env.command(self._command)[:, :2], dim=1)
        left = (env.max_episode_length - env.episode_length_buf) * env.step_dt
        asked = self._commanded + speed * left * env.terminations.terminated
        up, down = self._made >= self._promote * asked, self._made < self._demote * asked
        change = (up.long() - down.long()) * (asked > self._terrain.tile_size / 2.0)
        self._terrain.move(mask, change)
        return self._terrain.levels.float().mean()
