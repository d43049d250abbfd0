"""Statistics of finished episodes, kept on the device and read once an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from simtrain.env.env import Env


class Episodes:
    """Sums over the episodes that finished since the last `take`, and each environment's latest.

    One row of values an episode: 1, the return, the length in steps, every reward term's weighted
    sum divided by the longest episode's seconds, and which terminations ended it.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self.names = (
            "count",
            "return",
            "length",
            *(f"Episode_Reward/{name}" for name in env.rewards.names),
            *(f"Episode_Termination/{name}" for name in env.terminations.names),
        )
        """What stands in the columns of `take`."""
        self._rewards_end = 3 + len(env.rewards.names)
        self._values = torch.ones(env.num_envs, len(self.names), device=env.device)
        self._latest = torch.zeros_like(self._values)
        # Not the episode length buffer: that one starts at random values in a training run.
        self._lived = torch.zeros(env.num_envs, device=env.device)
        self._sums = torch.zeros(len(self.names), device=env.device)
        self._means = self._latest_means()

    def count_step(self) -> None:
        """Let every episode be a step longer, in place."""
        self._lived += 1.0

    def record(self, dones: Tensor) -> None:
        """Add the episodes that end at this step, `dones` boolean ``(num_envs,)``, in place."""
        env, values = self._env, self._values
        sums = env.rewards.episode_sums
        torch.sum(sums, dim=1, out=values[:, 1])
        values[:, 2] = self._lived
        torch.div(sums, env.max_episode_length_s, out=values[:, 3 : self._rewards_end])
        values[:, self._rewards_end :] = env.terminations.flags
        torch.where(dones.unsqueeze(1), values, self._latest, out=self._latest)
        self._sums.addmv_(values.T, dones.float())
        self._means = self._latest_means()

    def reset(self, mask: Tensor) -> None:
        """Start counting the steps of the environments in `mask` anew, in place."""
        self._lived.masked_fill_(mask, 0.0)

    def latest_means(self) -> dict[str, Tensor]:
        """Means over every environment's latest finished episode (zeros before its first)."""
        return self._means

    def _latest_means(self) -> dict[str, Tensor]:
        means = self._latest.mean(dim=0)
        return dict(zip(self.names[3:], means[3:].unbind(), strict=True))

    def take(self) -> Tensor:
        """The sums since the last call, ``(len(names),)``, and start anew."""
        sums = self._sums.clone()
        self._sums.zero_()
        return sums
