"""Kinds of tiles for a `TerrainCfg`: heights as functions of the place.

Each is ``(x, y, difficulty, random, **params)`` and returns heights in m of the shape of `x`. The
middle of the tile is at (0, 0), where environments start. Difficulty goes from 0 to 1, and with it
a parameter that is a pair from its first value to its second. Only random heights may differ from 0
at the tile's edge. `platform_width` is the side of a flat platform in the middle, m; an `inverted`
pyramid is a pit: robots walk up from the middle instead of down.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

Range = tuple[float, float]  # a value at difficulty 0 and at difficulty 1


class _Tile:
    """The nodes of a tile, how hard it is, and the generator of its random heights."""

    def __init__(
        self, x: np.ndarray, y: np.ndarray, difficulty: float, random: np.random.Generator
    ) -> None:
        self.x, self.y, self.difficulty, self.random = x, y, difficulty, random
        self.size = -2.0 * float(x.min())  # length of its side, which has the middle at 0
        # Equal distances from the middle form a square.
        self.from_middle: np.ndarray = np.maximum(np.abs(x), np.abs(y))
        self.from_edge = self.size / 2.0 - self.from_middle

    def value(self, bounds: Range) -> float:
        """The value between `bounds` that belongs to the difficulty."""
        return bounds[0] + self.difficulty * (bounds[1] - bounds[0])

    def run(self, platform_width: float) -> float:
        """Distance from the edge of the tile to that of the platform."""
        return (self.size - platform_width) / 2.0


def _kind(heights: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A function of a `_Tile` and parameters as one of ``(x, y, difficulty, random, **params)``."""

    @functools.wraps(heights)
    def function(
        x: np.ndarray, y: np.ndarray, difficulty: float, random: Any, *args: Any, **params: Any
    ) -> np.ndarray:
        return heights(_Tile(x, y, difficulty, random), *args, **params)

    given = list(inspect.signature(function, follow_wrapped=False).parameters.values())[:4]
    own = list(inspect.signature(heights).parameters.values())[1:]
    function.__signature__ = inspect.Signature(given + own)  # type: ignore[attr-defined]
    return function


@_kind
def flat(tile: _Tile) -> np.ndarray:
    """Height 0."""
    return np.zeros_like(tile.x)


@_kind
def pyramid_slope(
    tile: _Tile, slope: Range = (0.0, 0.4), platform_width: float = 2.0, inverted: bool = False
) -> np.ndarray:
    """A square pyramid with a platform on top, or a pit; `slope` is rise over run."""
    height: np.ndarray = tile.value(slope) * np.minimum(tile.from_edge, tile.run(platform_width))
    return -height if inverted else height


@_kind
def pyramid_stairs(
    tile: _Tile,
    step_height: Range = (0.02, 0.15),
    step_width: float = 0.3,
    platform_width: float = 2.0,
    inverted: bool = False,
) -> np.ndarray:
    """Stairs that lead down from a platform on all four sides, or up from the bottom of a pit."""
    # A node exactly on an edge belongs to the step above it, whatever its rounding.
    edge = np.floor(tile.from_edge / step_width + 1e-6)
    steps = np.minimum(edge, np.floor(tile.run(platform_width) / step_width + 1e-6))
    height: np.ndarray = tile.value(step_height) * steps
    return -height if inverted else height


@_kind
def random_boxes(
    tile: _Tile,
    box_height: Range = (0.02, 0.12),
    box_width: float = 0.4,
    platform_width: float = 1.0,
) -> np.ndarray:
    """Square boxes, `box_width` wide, with tops uniformly distributed in +- `box_height`, m."""
    place = np.stack((tile.x - tile.x.min(), tile.y - tile.y.min()))
    i, j = np.floor(place / box_width + 1e-6).astype(int)
    tops = tile.random.uniform(-1.0, 1.0, size=(i.max() + 1, j.max() + 1))
    height = tile.value(box_height) * tops[i, j]
    return np.where(tile.from_middle <= platform_width / 2, 0.0, height)


@_kind
def waves(tile: _Tile, amplitude: Range = (0.02, 0.15), num_waves: int = 4) -> np.ndarray:
    """Whole waves along both sides of the tile: amplitude x sin kx sin ky, m."""
    k = 2.0 * np.pi * num_waves / tile.size
    height: np.ndarray = tile.value(amplitude) * np.sin(k * tile.x) * np.sin(k * tile.y)
    return height


@_kind
def random_rough(tile: _Tile, noise: Range = (0.01, 0.06)) -> np.ndarray:
    """Every node at a height of its own, uniformly distributed in +- `noise`, m."""
    return tile.value(noise) * tile.random.uniform(-1.0, 1.0, size=tile.x.shape)
