"""An iteration's numbers of all ranks, brought together in one collective.

Ranks may have different names to report: a curriculum that has begun on one of them only, say. They
agree on the names first, and again whenever one of them has a new name; all others find out from a
flag that travels with the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from simtrain.launch.rank import Rank


@dataclass(frozen=True)
class Totals:
    """Numbers over all ranks."""

    sums: dict[str, tuple[float, float]]
    """Name -> sum and count."""
    maxima: dict[str, float]
    """Name -> largest."""


class Reduction:
    """Sums with counts, and maxima, over all ranks; remembers the names that were agreed on."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._sums: list[str] = []
        self._maxima: list[str] = []

    def __call__(
        self, sums: Mapping[str, tuple[float, float]], maxima: Mapping[str, float]
    ) -> Totals:
        """Combine what every rank has; all ranks call it together.

        Args:
            sums: name -> this rank's sum and count; names may differ between ranks.
            maxima: name -> this rank's value; names may differ between ranks.
        """
        rows = self._gather(sums, maxima)
        if rows[:, 0].any():
            everyone = self._rank.all_gather_objects((list(sums), list(maxima)))
            self._sums = sorted({name for names, _ in everyone for name in names})
            self._maxima = sorted({name for _, names in everyone for name in names})
            rows = self._gather(sums, maxima)
        split = 1 + 2 * len(self._sums)
        totals = rows[:, 1:split].sum(dim=0).reshape(-1, 2).tolist()
        largest = rows[:, split:].amax(dim=0).tolist()
        return Totals(
            sums={
                name: (total, count)
                for name, (total, count) in zip(self._sums, totals, strict=True)
                if count
            },
            maxima={
                name: value
                for name, value in zip(self._maxima, largest, strict=True)
                if value != -torch.inf
            },
        )

    def _gather(
        self, sums: Mapping[str, tuple[float, float]], maxima: Mapping[str, float]
    ) -> torch.Tensor:
        """By rank: whether it has a name not agreed on, sums and counts, maxima."""
        new = not (sums.keys() <= set(self._sums) and maxima.keys() <= set(self._maxima))
        row = [float(new)]
        for name in self._sums:
            row += sums.get(name, (0.0, 0.0))
        row += [maxima.get(name, -torch.inf) for name in self._maxima]
        return self._rank.all_gather(row)
