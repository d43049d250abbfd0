"""Delay lines: each row of numbers is returned some pushes after it was put in."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from simtrain.env.control.cfg import DelayCfg


class DelayLine:
    """Delays the columns of some terms, in each environment by a lag of its own.

    Terms whose delays are equal come together, as the measurements in a robot's one message do.
    All of its memory is declared by rows, so that one environment's does not depend on others'.
    """

    def __init__(
        self,
        env: Any,
        name: str,
        delays: Sequence[DelayCfg],
        sizes: Sequence[int],
        initial: Tensor | None = None,
    ) -> None:
        """Delay `sizes` columns by each of `delays`.

        The first pushes of an episode return `initial`, ``(columns,)``; if it is None, the first
        values that were put in.
        """
        device, columns = env.device, sum(sizes)
        longest = max(delay.delay_max_lag for delay in delays)
        self._ring: Tensor = env.buffer(f"{name}.ring", (longest + 1, columns), reset=None)
        # In this episode so far.
        self._pushes: Tensor = env.buffer(f"{name}.pushes", dtype=torch.long)
        self._initial = initial
        settings = [
            (d.delay_min_lag, d.delay_max_lag, d.delay_hold_prob, d.delay_update_period)
            for d in delays
        ]
        kinds = list(dict.fromkeys(settings))
        parts = torch.tensor([kinds.index(setting) for setting in settings])
        self._parts = parts.repeat_interleave(torch.tensor(sizes)).to(device)
        lowest, highest, hold, period = torch.tensor(kinds).to(device).unbind(1)
        self._lowest, self._count = lowest.long(), highest - lowest + 1
        self._hold, self._period = hold, period.long().clamp(min=1)
        self._varies = any(highest > lowest for lowest, highest, *_ in kinds)
        self._lags = self._lowest.expand(env.num_envs, -1)
        if self._varies:
            self._lags = env.buffer(f"{name}.lags", (len(kinds),), reset=None, dtype=torch.long)

    def push(self, values: Tensor) -> Tensor:
        """Put in `values`, ``(num_envs, columns)``; return the delayed ones, of that shape."""
        pushes, length = self._pushes.unsqueeze(1), self._ring.shape[1]
        if self._varies:
            self._draw(pushes)
        slot = pushes.remainder(length).unsqueeze(2).expand(-1, 1, values.shape[1])
        self._ring.scatter_(1, slot, values.unsqueeze(1))
        lags = self._lags if self._initial is not None else torch.minimum(self._lags, pushes)
        slots = (pushes - lags).remainder(length).index_select(1, self._parts)
        out = self._ring.gather(1, slots.unsqueeze(1)).squeeze(1)
        if self._initial is not None:
            early = (lags > pushes).index_select(1, self._parts)
            out = torch.where(early, self._initial, out)
        self._pushes += 1
        return out

    def _draw(self, pushes: Tensor) -> None:
        """Draw the lags anew whose time has come, in place; numbers are drawn for all."""
        lot, chance = torch.rand(2, *self._lags.shape, device=self._lags.device)
        lags = self._lowest + (lot * self._count).long()
        due = (pushes.remainder(self._period) == 0) & (chance >= self._hold)
        torch.where(due | (pushes == 0), lags, self._lags, out=self._lags)
