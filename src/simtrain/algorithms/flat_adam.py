"""Adam over all parameters in one tensor, and all gradients in another: one all-reduce."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from simtrain.launch.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank


class FlatAdam(torch.optim.Adam):
    """Fused Adam, or AdamW; its rate and moments stay in place, its state is that of the usual one.

    Every parameter and its ``.grad`` become views into float32 `parameters` and `gradients`. A step
    whose gradients are not finite changes nothing, on all ranks, and is counted.
    """

    def __init__(
        self,
        networks: Sequence[Iterable[nn.Parameter]],
        rank: Rank,
        timer: PhaseTimer = NO_TIMER,
        *,
        learning_rate: float,
        kind: str = "adam",
        extra: int = 0,
    ) -> None:
        """Make the views; `kind` is adam or adamw.

        `extra` further numbers travel in the same all-reduce, at the end of `gradients`.
        """
        groups = [[p for p in network if p.requires_grad] for network in networks]
        sizes = [sum(p.numel() for p in group) for group in groups]
        single = [p for group in groups for p in group]
        self._shapes = [p.shape for p in single]
        self._rank, self._timer = rank, timer
        self.gradients = torch.zeros(sum(sizes) + extra, device=rank.device)
        *self._networks, self.extra = self.gradients.split([*sizes, extra])
        self.parameters = nn.Parameter(torch.cat([p.detach().flatten() for p in single]))
        self.parameters.grad = self.gradients[: sum(sizes)]
        vector_to_parameters(self.parameters.data, single)
        for parameter, gradient in zip(single, self._split(self.parameters.grad), strict=True):
            parameter.grad = gradient
        zero = torch.zeros((), device=rank.device)
        self.lr: Tensor = torch.full_like(zero, learning_rate)
        is_w = kind == "adamw"
        super().__init__(
            [self.parameters],
            lr=self.lr,
            weight_decay=1e-2 if is_w else 0.0,
            fused=True,
            decoupled_weight_decay=is_w,
        )
        # Adam would make these at its first step; a state is loaded into them at any time.
        flat = self.parameters.data
        averages = {"exp_avg": torch.zeros_like(flat), "exp_avg_sq": torch.zeros_like(flat)}
        self._moments = {"step": zero.clone(), **averages}
        self.state[self.parameters] = self._moments
        # With this, fused Adam leaves parameters and moments as they are where it is 1.
        self.found_inf: Tensor = zero.clone()
        self.skipped: Tensor = zero.clone()
        self._sums_equal = rank.world_size == 1 or _equal_sums(rank)
        """Whether equal numbers have equal sums on all ranks, to the last bit. Ranks apply equal
        gradients to equal parameters, one by one; only the norms in between are sums."""

    def average(self) -> None:
        """Average gradients, and the `extra` numbers, over all ranks, in place."""
        if self._rank.world_size > 1:
            all_reduce(self.gradients, self._rank, self._timer, then="optimizer")
            self.gradients /= self._rank.world_size

    def clip_and_step(self, max_norm: float | None) -> None:
        """Change the parameters, in place, by gradients of at most `max_norm` for each network."""
        norms = self.norms()
        if not self._sums_equal:
            self._rank.broadcast(norms)
        if max_norm is not None:
            factors = (max_norm / (norms + 1e-6)).clamp_(max=1.0)
            for part, factor in zip(self._networks, factors.unbind(), strict=True):
                part.mul_(factor)
        # The gradients are the same on all ranks, and so are the results.
        self.found_inf.copy_(~norms.sum().isfinite())
        self.skipped += self.found_inf
        self.step()

    def norms(self) -> Tensor:
        """The norm of each network's gradients."""
        return torch.stack([torch.linalg.vector_norm(part) for part in self._networks])

    def tensors(self) -> list[Tensor]:
        """The state that a step changes and the next one reads, parameters first; not copies."""
        return [self.parameters.data, self.lr, self.skipped, *self._moments.values()]

    def state_dict(self) -> dict[str, Any]:
        """The state of an optimizer of the single parameters."""
        (group,) = super().state_dict()["param_groups"]
        step, *averages = self._moments.values()
        # Each has its own count of steps: an optimizer that goes on from it counts in place.
        single = {
            i: {"step": step.clone(), "exp_avg": mean, "exp_avg_sq": square}
            for i, (mean, square) in enumerate(zip(*map(self._split, averages), strict=True))
        }
        group |= {"lr": float(group["lr"]), "fused": None, "params": list(single)}
        return {"state": single, "param_groups": [group]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, in place; RuntimeError if shapes differ."""
        (group,) = state_dict["param_groups"]
        # A state from before the first step has no moments.
        single = [state_dict["state"][i] for i in group["params"] if state_dict["state"]]
        for name, moment in self._moments.items():
            if not single:
                moment.zero_()
            else:
                values = torch.cat([part[name].flatten() for part in single])
                moment.copy_(values if moment.ndim else values[0])
        self.lr.fill_(group["lr"])

    def _split(self, flat: Tensor) -> list[Tensor]:
        """Views of a number for each parameter's entry, in the shapes of the parameters."""
        parts = flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


def all_reduce(tensor: Tensor, rank: Rank, timer: PhaseTimer, then: str) -> None:
    """Sum `tensor` over all ranks, in place; `then` is the phase that follows."""
    if rank.world_size > 1:
        timer.begin("all_reduce")
        rank.all_reduce(tensor)
        timer.begin(then)


def _equal_sums(rank: Rank) -> bool:
    """Whether PyTorch adds the entries of a large tensor in one order on the devices of all ranks.

    This depends on the GPU's model, or on the CPU's instructions and the number of threads.
    """
    kind: tuple[str, int] = torch.backends.cpu.get_cpu_capability(), rank.threads
    if rank.device.type == "cuda":
        kind = torch.cuda.get_device_name(rank.device), 0
    return len(set(rank.all_gather_object(kind))) == 1
