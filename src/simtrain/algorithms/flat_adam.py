"""Adam over all parameters of some networks in one tensor, over ranks, without waiting."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from simtrain.algorithms.flat_gradients import FlatGradients
from simtrain.launch.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank


class FlatAdam(torch.optim.Adam):
    """Fused Adam, or AdamW; its rate and moments stay in place, its state is that of the usual one.

    A step whose gradients are not finite changes nothing, on all ranks, and is counted.
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
        """Make the parameters views; `kind` is adam or adamw, `extra` as in `FlatGradients`."""
        self.gradients = FlatGradients(networks, extra)
        self._rank, self._timer = rank, timer
        parameters = self.gradients.parameters
        zero = torch.zeros((), device=rank.device)
        self.lr: Tensor = torch.full_like(zero, learning_rate)
        is_w = kind == "adamw"
        super().__init__(
            [parameters],
            lr=self.lr,
            weight_decay=1e-2 if is_w else 0.0,
            fused=True,
            decoupled_weight_decay=is_w,
        )
        # Adam would make these at its first step; a state is loaded into them at any time.
        moments = {name: torch.zeros_like(parameters.data) for name in ("exp_avg", "exp_avg_sq")}
        self._moments = {"step": zero.clone(), **moments}
        self.state[parameters] = self._moments
        # With this, fused Adam leaves parameters and moments as they are where it is 1.
        self.found_inf: Tensor = zero.clone()
        self.skipped: Tensor = zero.clone()
        self._ranks_add_alike = rank.world_size == 1 or _add_alike(rank)
        """Whether equal numbers have equal sums on all ranks, to the last bit. Ranks apply equal
        gradients to equal parameters, one by one; only the norms in between are sums."""

    def average(self) -> None:
        """Average gradients, and what travels with them, over all ranks, in place."""
        if self._rank.world_size > 1:
            all_reduce(self.gradients.buffer, self._rank, self._timer, then="optimizer")
            self.gradients.buffer /= self._rank.world_size

    def clip_and_step(self, max_norm: float | None) -> None:
        """Change the parameters, in place, by gradients of at most `max_norm` for each network."""
        norms = self.gradients.norms()
        if not self._ranks_add_alike:
            self._rank.broadcast(norms)
        if max_norm is not None:
            self.gradients.clip(norms, max_norm)
        # The gradients are those of all ranks, and so is what follows from them.
        self.found_inf.copy_(~norms.sum().isfinite())
        self.skipped += self.found_inf
        self.step()

    def tensors(self) -> list[Tensor]:
        """What a step changes and the next depends on, parameters first; not copies."""
        return [self.gradients.parameters.data, self.lr, self.skipped, *self._moments.values()]

    def state_dict(self) -> dict[str, Any]:
        """The state of an optimizer of the single parameters."""
        state = self.gradients.split_state(super().state_dict())
        (group,) = state["param_groups"]
        group |= {"lr": float(group["lr"]), "fused": None}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, in place; RuntimeError if shapes differ."""
        saved = self.gradients.join_state(state_dict)
        for name, moment in self._moments.items():
            # A state from before the first step has none.
            moment.copy_(saved[name]) if saved else moment.zero_()
        self.lr.fill_(state_dict["param_groups"][0]["lr"])


def all_reduce(tensor: Tensor, rank: Rank, timer: PhaseTimer, then: str) -> None:
    """Sum `tensor` over all ranks, in place; `then` is the phase that follows."""
    if rank.world_size > 1:
        timer.begin("all_reduce")
        rank.all_reduce(tensor)
        timer.begin(then)


def _add_alike(rank: Rank) -> bool:
    """Whether PyTorch adds the entries of a large tensor in one order on the devices of all ranks.

    What decides that is the GPU's model, or the CPU's instructions and the number of threads.
    """
    mine: tuple[str, int] = torch.backends.cpu.get_cpu_capability(), rank.threads
    if rank.device.type == "cuda":
        mine = torch.cuda.get_device_name(rank.device), 0
    return len(set(rank.all_gather_object(mine))) == 1
