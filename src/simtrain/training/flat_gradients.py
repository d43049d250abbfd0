"""All gradients in one buffer, so that averaging them over ranks is a single all-reduce."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


class FlatGradients:
    """One float32 buffer into which every parameter's ``.grad`` is a view.

    Autograd accumulates into the views, so nothing is copied in or out. `extra` further numbers at
    the end of the buffer travel with the gradients in the same all-reduce.
    """

    def __init__(self, networks: Sequence[Iterable[nn.Parameter]], extra: int = 0) -> None:
        """Make the buffer and point the parameters' ``.grad`` into it.

        Args:
            networks: the parameters, by network, all on one device.
            extra: how many numbers travel along.
        """
        groups = [[p for p in network if p.requires_grad] for network in networks]
        sizes = [sum(p.numel() for p in group) for group in groups]
        device = groups[0][0].device
        self.buffer = torch.zeros(sum(sizes) + extra, device=device)
        """Gradients, then the extra numbers."""
        *self.networks, self.extra = self.buffer.split([*sizes, extra])
        for group, part in zip(groups, self.networks, strict=True):
            views = part.split([p.numel() for p in group])
            for parameter, view in zip(group, views, strict=True):
                parameter.grad = view.view_as(parameter)

    def zero(self) -> None:
        """Set all gradients and extra numbers to zero, in place."""
        self.buffer.zero_()

    def clip(self, max_norm: float) -> Tensor:
        """Scale each network's gradients to a norm of at most `max_norm`, in place.

        Returns:
            The sum of the norms before, 0-d: not finite if any gradient is not.
        """
        return torch.stack([_clip(part, max_norm) for part in self.networks]).sum()


def _clip(gradients: Tensor, max_norm: float) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradients)
    gradients.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm
