"""Kinds of tiles for a `TerrainCfg`: heights as functions of the position.

Each is ``(x, y, difficulty, random, **params)`` and returns heights in m with the shape of `x`. The
middle of the tile is at (0, 0), where environments start. Difficulty is between 0 and 1; a
parameter that is a pair changes with it from its first value to its second. Only random heights may
differ from 0 at the tile's edge. `platform_width` is the side length of a flat platform in the
middle, m. An `inverted` pyramid is a pit: robots walk up from the middle instead of down.
"""

import numpy as np
from numpy.random import Generator

Range = tuple[float, float]  # a value at difficulty 0 and at difficulty 1
Array = np.ndarray


def flat(x: Array, y: Array, difficulty: float, random: Generator) -> Array:
    """Height 0."""
    return np.zeros_like(x)


def pyramid_slope(
    x: Array,
    y: Array,
    difficulty: float,
    random: Generator,
    slope: Range = (0.0, 0.4),
    platform_width: float = 2.0,
    inverted: bool = False,
) -> Array:
    """A square pyramid with a platform on top, or a pit; `slope` is rise over run."""
    height = _value(slope, difficulty) * _from_edge(x, y, platform_width)
    return -height if inverted else height


def pyramid_stairs(
    x: Array,
    y: Array,
    difficulty: float,
    random: Generator,
    step_height: Range = (0.02, 0.15),
    step_width: float = 0.3,
    platform_width: float = 2.0,
    inverted: bool = False,
) -> Array:
    """Stairs that lead down from a platform on all four sides, or up from the bottom of a pit."""
    # A node exactly on an edge belongs to the step above it, whatever its rounding.
    steps = np.floor(_from_edge(x, y, platform_width) / step_width + 1e-6)
    height = _value(step_height, difficulty) * steps
    return -height if inverted else height


def random_boxes(
    x: Array,
    y: Array,
    difficulty: float,
    random: Generator,
    box_height: Range = (0.02, 0.12),
    box_width: float = 0.4,
    platform_width: float = 1.0,
) -> Array:
    """Square boxes, `box_width` wide, with tops uniformly distributed in +- `box_height`, m."""
    i, j = np.floor(np.stack((x - x.min(), y - y.min())) / box_width + 1e-6).astype(int)
    tops = random.uniform(-1.0, 1.0, size=(i.max() + 1, j.max() + 1))
    height = _value(box_height, difficulty) * tops[i, j]
    return np.where(_from_middle(x, y) <= platform_width / 2, 0.0, height)


def waves(
    x: Array,
    y: Array,
    difficulty: float,
    random: Generator,
    amplitude: Range = (0.02, 0.15),
    num_waves: int = 4,
) -> Array:
    """Whole waves along both sides of the tile: amplitude x sin kx sin ky, m."""
    k = 2.0 * np.pi * num_waves / _size(x)
    height: Array = _value(amplitude, difficulty) * np.sin(k * x) * np.sin(k * y)
    return height


def random_rough(
    x: Array, y: Array, difficulty: float, random: Generator, noise: Range = (0.01, 0.06)
) -> Array:
    """A random height at every node, uniformly distributed in +- `noise`, m."""
    return _value(noise, difficulty) * random.uniform(-1.0, 1.0, size=x.shape)


def _value(bounds: Range, difficulty: float) -> float:
    return bounds[0] + difficulty * (bounds[1] - bounds[0])


def _size(x: Array) -> float:
    """Length of the tile's side."""
    return -2.0 * float(x.min())


def _from_middle(x: Array, y: Array) -> Array:
    """Distances from the middle, of which equal ones form a square."""
    distance: Array = np.maximum(np.abs(x), np.abs(y))
    return distance


def _from_edge(x: Array, y: Array, platform_width: float) -> Array:
    """Distances from the tile's edge, but not beyond the platform's."""
    run = (_size(x) - platform_width) / 2.0
    distance: Array = np.minimum(_size(x) / 2.0 - _from_middle(x, y), run)
    return distance
