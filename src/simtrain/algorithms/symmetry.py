"""Mirror images of samples: rsl_rl's `Symmetry`, with the reflection that a task declares.

Mittal et al., "Symmetry considerations for learning task symmetric robot policies", 2024
(https://arxiv.org/abs/2403.04359).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rsl_rl.extensions import Symmetry
from rsl_rl.modules import EmpiricalNormalization
from tensordict import TensorDict
from torch import Tensor, nn

from simtrain.algorithms.cfg import SymmetryCfg


@dataclass(frozen=True)
class MirrorMap:
    """A reflection of rows of numbers: each one's place, long, and sign, both ``(size,)``."""

    index: Tensor
    sign: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        """Reflected `values`, ``(rows, ...)`` with `size` numbers a row; a new tensor."""
        return values.flatten(1)[:, self.index].mul_(self.sign).view_as(values)


@dataclass(frozen=True)
class MirrorMaps:
    """How a task's observations, by group, and its actions are reflected."""

    observations: dict[str, MirrorMap]
    actions: MirrorMap


class MirrorSymmetry(Symmetry):  # type: ignore[misc]
    """rsl_rl's mirrored samples and mirror loss, by a task's maps."""

    def __init__(self, cfg: SymmetryCfg, maps: MirrorMaps) -> None:
        coef = cfg.mirror_loss_coef
        super().__init__(None, self._with_images, cfg.augment, coef > 0.0, coef)
        self.maps = maps

    def mirror_loss(self, means: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The mirror loss, 0-d, and `gradient` by the `means` of actions with the loss's own added.

        `means` are ``(2, samples, actions)``, of samples and mirror images. `gradient` is that of
        other losses, of the images too or of the samples alone; it may be changed.
        """
        error = means[1] - self.maps.actions(means[0])
        own = error * (2.0 * self.mirror_loss_coeff / error.numel())
        if len(gradient) == 1:
            gradient = torch.cat((gradient, own.unsqueeze(0)))
        elif self.use_mirror_loss:
            gradient[1].add_(own)
        return error.square().mean(), gradient

    def _with_images(
        self, env: Any, obs: TensorDict | None, actions: Tensor | None
    ) -> tuple[TensorDict | None, Tensor | None]:
        """Observations and actions, followed by their mirror images, as rsl_rl needs them."""
        if obs is not None:
            images = {group: self.maps.observations[group](x) for group, x in obs.items()}
            obs = torch.cat((obs, TensorDict(images, batch_size=obs.batch_size)))
        if actions is not None:
            actions = torch.cat((actions, self.maps.actions(actions)))
        return obs, actions


class MirroredRows:
    """Rows of numbers and their mirror images behind them, in one buffer."""

    def __init__(
        self, rows: Tensor, maps: Sequence[MirrorMap], normalizer: nn.Module | None = None
    ) -> None:
        """`rows` are ``(samples, size)``, `maps` those of their parts, side by side; `both` has
        twice as many rows. `normalizer` is rsl_rl's, by which the rows are normalized, if any."""
        self._rows = rows
        self.both = rows.repeat(2, 1)
        places = torch.arange(rows.shape[1], device=rows.device).split([len(m.sign) for m in maps])
        parts = zip(places, maps, strict=True)
        self._index = torch.cat([place[part.index] for place, part in parts])
        self._sign = torch.cat([part.sign for part in maps])
        self._normalizer = normalizer if isinstance(normalizer, EmpiricalNormalization) else None

    def fill(self) -> None:
        """Copy the rows, and write their images, in place."""
        own, images = self.both.chunk(2)
        own.copy_(self._rows)
        torch.index_select(own, 1, self._index, out=images)
        images.mul_(self._sign)
        if self._normalizer is not None:
            # Out of the one entry's normalization, and into the other's.
            index, mean = self._index, self._normalizer.get_buffer("_mean")[0]
            std = self._normalizer.get_buffer("_std")[0] + self._normalizer.eps
            images.mul_(std[index] / std).add_((self._sign * mean[index] - mean) / std)
