"""Kinds of tiles for a `TerrainCfg`: heights as functions of the place.

Each is ``(x, y, difficulty, random, **params)`` and returns heights in m of the shape of `x`. The
middle of the tile is at (0, 0), where environments start; difficulty goes from 0 to 1, and a
parameter that is a pair goes from its first value to its second with it. Heights are 0 at the edge
of the tile but for what is random there, so that tiles meet.
"""

from __future__ import annotations

import numpy as np

Range = tuple[float, float]
"""A value at difficulty 0 and at difficulty 1."""


def flat(
    x: np.ndarray, y: np.ndarray, difficulty: float, random: np.random.Generator
) -> np.ndarray:
    """Height 0."""
    return np.zeros_like(x)


def pyramid_slope(
    x: np.ndarray,
    y: np.ndarray,
    difficulty: float,
    random: np.random.Generator,
    slope: Range = (0.0, 0.4),
    platform_width: float = 2.0,
    inverted: bool = False,
) -> np.ndarray:
    """A square pyramid with a platform on top, or the pit of that shape.

    Args:
        x: along the level's axis, m.
        y: across it, m.
        difficulty: from 0 to 1.
        random: unused.
        slope: rise over run.
        platform_width: side of the platform in the middle, m.
        inverted: a pit: robots walk up from the middle instead of down.
    """
    height: np.ndarray = _at(slope, difficulty) * np.minimum(
        _from_edge(x, y), _run(x, platform_width)
    )
    return -height if inverted else height


def pyramid_stairs(
    x: np.ndarray,
    y: np.ndarray,
    difficulty: float,
    random: np.random.Generator,
    step_height: Range = (0.02, 0.15),
    step_width: float = 0.3,
    platform_width: float = 2.0,
    inverted: bool = False,
) -> np.ndarray:
    """Stairs that lead down from a platform on all four sides, or up from the bottom of a pit.

    Args:
        x: along the level's axis, m.
        y: across it, m.
        difficulty: from 0 to 1.
        random: unused.
        step_height: rise of a step, m.
        step_width: going of a step, m.
        platform_width: least side of the platform in the middle, m.
        inverted: a pit: robots walk up from the middle instead of down.
    """
    # A node exactly on an edge belongs to the step above it, whatever its rounding.
    edge = np.floor(_from_edge(x, y) / step_width + 1e-6)
    steps = np.minimum(edge, np.floor(_run(x, platform_width) / step_width + 1e-6))
    height = _at(step_height, difficulty) * steps
    return -height if inverted else height


def random_boxes(
    x: np.ndarray,
    y: np.ndarray,
    difficulty: float,
    random: np.random.Generator,
    box_height: Range = (0.02, 0.12),
    box_width: float = 0.4,
    platform_width: float = 1.0,
) -> np.ndarray:
    """A floor of square boxes whose tops are uniformly distributed in +- `box_height`.

    Args:
        x: along the level's axis, m.
        y: across it, m.
        difficulty: from 0 to 1.
        random: where the heights come from.
        box_height: how far a top may be from 0, m.
        box_width: side of a box, m.
        platform_width: side of the flat platform in the middle, m.
    """
    i, j = (np.floor((axis - axis.min()) / box_width + 1e-6).astype(int) for axis in (x, y))
    tops = random.uniform(-1.0, 1.0, size=(i.max() + 1, j.max() + 1))
    height = _at(box_height, difficulty) * tops[i, j]
    return np.where(_from_middle(x, y) <= platform_width / 2, 0.0, height)


def waves(
    x: np.ndarray,
    y: np.ndarray,
    difficulty: float,
    random: np.random.Generator,
    amplitude: Range = (0.02, 0.15),
    num_waves: int = 4,
) -> np.ndarray:
    """Waves in both directions: amplitude / 2 x (sin kx + sin ky).

    Args:
        x: along the level's axis, m.
        y: across it, m.
        difficulty: from 0 to 1.
        random: unused.
        amplitude: largest height, m.
        num_waves: whole waves along a side of the tile.
    """
    k = 2.0 * np.pi * num_waves / _size(x)
    return _at(amplitude, difficulty) / 2.0 * (np.sin(k * x) + np.sin(k * y))


def random_rough(
    x: np.ndarray,
    y: np.ndarray,
    difficulty: float,
    random: np.random.Generator,
    noise: Range = (0.01, 0.06),
) -> np.ndarray:
    """Every node at a height of its own, uniformly distributed in +- `noise`.

    Args:
        x: along the level's axis, m.
        y: across it, m.
        difficulty: from 0 to 1.
        random: where the heights come from.
        noise: how far a node may be from 0, m.
    """
    return _at(noise, difficulty) * random.uniform(-1.0, 1.0, size=x.shape)


def _at(values: Range, difficulty: float) -> float:
    first, last = values
    return first + difficulty * (last - first)


def _size(x: np.ndarray) -> float:
    """Length of the tile's side, which starts at ``x.min()`` and has the middle at 0, m."""
    return -2.0 * float(x.min())


def _from_middle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Distance from the middle, such that equal distances form a square."""
    distance: np.ndarray = np.maximum(np.abs(x), np.abs(y))
    return distance


def _from_edge(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Distance from the nearest edge of the tile."""
    return _size(x) / 2.0 - _from_middle(x, y)


def _run(x: np.ndarray, platform_width: float) -> float:
    """Distance from the edge of the tile to that of the platform."""
    return (_size(x) - platform_width) / 2.0
