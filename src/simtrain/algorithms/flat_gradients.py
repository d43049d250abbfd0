"""All parameters in one tensor and all gradients in another: one all-reduce, one optimizer step."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class FlatGradients:
    """Every parameter and its ``.grad`` as views into float32 `parameters` and `buffer`."""

    def __init__(self, networks: Sequence[Iterable[nn.Parameter]], extra: int = 0) -> None:
        """Make the views; `extra` further numbers travel in the same all-reduce, at the end."""
        groups = [[p for p in network if p.requires_grad] for network in networks]
        sizes = [sum(p.numel() for p in group) for group in groups]
        every = [p for group in groups for p in group]
        self._shapes = [p.shape for p in every]
        self.buffer = torch.zeros(sum(sizes) + extra, device=every[0].device)
        *self.networks, self.extra = self.buffer.split([*sizes, extra])
        self.parameters = nn.Parameter(torch.cat([p.detach().flatten() for p in every]))
        self.parameters.grad = self.buffer[: sum(sizes)]
        values, gradients = self.split(self.parameters.data), self.split(self.parameters.grad)
        for parameter, value, gradient in zip(every, values, gradients, strict=True):
            parameter.data, parameter.grad = value, gradient

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of `flat`, a number for each parameter's entry, in the shapes of the parameters."""
        parts = flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def split_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The ``state_dict`` of an optimizer of `parameters` as one of the single parameters."""
        (group,) = state["param_groups"]
        places = range(len(self._shapes))
        # Each has its own count of steps: an optimizer that goes on from it counts in place.
        parts = {
            name: self.split(value) if value.ndim else [value.clone() for _ in places]
            for name, value in state["state"][0].items()
        }
        single = {place: {name: parts[name][place] for name in parts} for place in places}
        return {"state": single, "param_groups": [{**group, "params": list(places)}]}

    def join_state(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """The moments of `parameters` from a ``state_dict`` of the single ones, if it has any."""
        single = state["state"]
        if not single:
            return {}
        (group,) = state["param_groups"]
        parts = [single[place] for place in group["params"]]
        if [part["exp_avg"].shape for part in parts] != self._shapes:
            raise RuntimeError("the optimizer's state is of networks of other shapes")
        return {
            name: torch.cat([part[name].flatten() for part in parts]) if first.ndim else first
            for name, first in parts[0].items()
        }

    def norms(self) -> Tensor:
        """The norm of each network's gradients."""
        return torch.stack([torch.linalg.vector_norm(part) for part in self.networks])

    def clip(self, norms: Tensor, max_norm: float) -> None:
        """Scale each network's gradients, of `norms`, to at most `max_norm`, in place."""
        factors = (max_norm / (norms + 1e-6)).clamp_(max=1.0)
        for part, factor in zip(self.networks, factors.unbind(), strict=True):
            part.mul_(factor)
