"""Features of training, one file each: work, state in ``resume.pt`` and output.

The worker lists them in the order in which they act.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simtrain.env.nan_guard import Failures


@dataclass
class Iteration:
    """The results of one iteration, over all ranks; features may add to them."""

    number: int
    """Iterations trained so far."""
    env_steps: int
    """Environment steps so far, over all ranks."""
    metrics: dict[str, float]
    """TensorBoard tag -> value."""
    is_last: bool
    """Whether training ends after this iteration; the same on all ranks."""
    is_stopped: bool = False
    """Whether the user or the system asked to stop on any rank."""
    warnings: tuple[str, ...] = ()
    """New warnings of all ranks."""
    failures: Failures | None = None
    """Simulations of this rank that failed."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase on this rank since the previous iteration; empty without a timer."""


class Feature(AbstractContextManager["Feature"]):
    """Base class of features: construct, `set_state` if resumed, enter, call, exit."""

    phase = "logging"
    """The phase of an iteration to which its time is added."""
    main_rank_only = False
    """Whether only rank 0 has this feature."""

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Release what the feature holds; does nothing by default."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Act on a finished iteration; all ranks that have the feature call it together."""

    def state(self) -> dict[str, Any]:
        """Tensors and plain values that the next iterations depend on, the same on all ranks.

        ``resume.pt`` contains them under the name of the feature's class.
        """
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""
