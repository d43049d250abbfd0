"""Reflections of rows of numbers, which environments tell and learning uses."""

from dataclasses import dataclass

from torch import Tensor


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
