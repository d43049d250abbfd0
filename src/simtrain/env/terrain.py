"""Terrain: a grid of tiles in one height field, one model for all environments.

Tiles stand in rows of one level of difficulty (along x) and columns of one kind (along y), around
the origin of the world; a flat border surrounds them. Every environment starts on the tile of its
level and column, and may walk on to others. The heights of a tile come from a function such as
those in `simtrain.mdp.locomotion.terrain`.
"""

import math
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.env.cfg import TerrainCfg
from simtrain.env.names import check_parameters
from simtrain.errors import ConfigError, flag

NAME = "terrain"  # of the height field and of its geom
_SURFACE = ("contype", "conaffinity", "condim", "priority", "friction", "material")  # of a plane
_MOST = 2**24  # nodes: more than a hundred times those of a usual terrain
_BASE = 1.0  # thickness below the lowest point, m
_REACH = 0.4  # of a robot about its base, m: it starts above the highest ground there


def add_terrain(cfg: TerrainCfg, spec: mujoco.MjSpec) -> None:
    """Give `spec` the terrain, in place, instead of the planes that are fixed to its world."""
    surface: dict[str, Any] = {"contype": 1, "conaffinity": 1}
    for geom in spec.worldbody.geoms:
        if geom.type == mujoco.mjtGeom.mjGEOM_PLANE:
            surface = {name: getattr(geom, name) for name in _SURFACE}
            spec.delete(geom)
    heights = make_heights(cfg)
    rows, columns = heights.shape
    low = float(heights.min())
    depth = max(float(heights.max()) - low, 1e-3)
    size = [*((n - 1) * cfg.resolution / 2 for n in (columns, rows)), depth, _BASE]
    data = ((heights - low) / depth).ravel().tolist()
    spec.add_hfield(name=NAME, size=size, nrow=rows, ncol=columns, userdata=data)
    geom = spec.worldbody.add_geom(
        name=NAME, type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname=NAME, pos=[0.0, 0.0, low]
    )
    for name, value in surface.items():  # instead of the model's defaults
        setattr(geom, name, value)


def make_heights(cfg: TerrainCfg) -> np.ndarray:
    """Heights of all tiles and the border, m, float32: rows go along y, as in MuJoCo."""
    nodes, border = _nodes(cfg)
    shape = [count * nodes + 1 + 2 * border for count in (cfg.num_columns, cfg.num_levels)]
    heights = np.zeros(shape, dtype=np.float32)
    along = np.arange(nodes) * cfg.resolution - cfg.tile_size / 2
    y, x = np.meshgrid(along, along, indexing="ij")
    random = np.random.default_rng(cfg.seed)
    # Shares of the columns follow the proportions of the kinds.
    kinds = list(cfg.sub_terrains.values())
    shares = np.cumsum([kind.proportion for kind in kinds])
    middles = (np.arange(cfg.num_columns) + 0.5) / cfg.num_columns * shares[-1]
    for column, index in enumerate(np.searchsorted(shares, middles, side="right")):
        kind = kinds[index]
        for level in range(cfg.num_levels):
            difficulty = level / max(cfg.num_levels - 1, 1)
            tile = kind.func(x, y, difficulty, random, **kind.params)
            top, left = border + column * nodes, border + level * nodes
            heights[top : top + nodes, left : left + nodes] = tile
    return heights


class Terrain:
    """The tile of every environment on the terrain, and the height of the ground.

    `levels` and `columns` are the environments' tiles, long, ``(num_envs,)``, and `origins` the
    places in the middle of them where they start, m, ``(num_envs, 3)``. `tile_size` is the length
    of a tile's side, m; `half_size` are half the lengths along x and y, m, of the whole terrain,
    which is centred at the world's origin.
    """

    def __init__(self, cfg: TerrainCfg, env: Any) -> None:
        self.num_levels, self.tile_size = cfg.num_levels, cfg.tile_size
        device, field = env.device, env.model.hfield(NAME)
        heights = field.data * float(field.size[2]) + float(env.model.geom(NAME).pos[2])
        self.half_size: tuple[float, float] = tuple(field.size[:2].tolist())
        self._resolution = cfg.resolution
        # In each square h(u, v) = a + b u + c v + d u v, for u and v from 0 to 1 along x and y.
        a = heights[:-1, :-1]
        b, c = heights[:-1, 1:] - a, heights[1:, :-1] - a
        squares = np.stack((a, b, c, heights[1:, 1:] - a - b - c), axis=-1)
        # Along x and y, in the first axis.
        self._half_size = torch.tensor(self.half_size, device=device).unsqueeze(1)
        self._zero = torch.zeros((), device=device)
        self._middle = self._half_size / self._resolution + 0.5
        self._row_length = a.shape[1]
        counts = torch.tensor(a.shape[::-1], dtype=torch.float32, device=device)
        self._num_squares = counts.unsqueeze(1)
        self._last_square = self._num_squares - 1.0
        self._squares = torch.as_tensor(squares, dtype=torch.float32).reshape(-1, 4).to(device)
        tops = _highest_about(heights, cfg.resolution)
        self._tops = torch.as_tensor(tops.ravel(), dtype=torch.float32).to(device)
        self._tiles = torch.as_tensor(_tile_origins(cfg, tops), device=device)
        envs = torch.arange(env.num_envs, device=device)
        self.columns = envs * cfg.num_columns // env.num_envs
        first = cfg.num_levels - 1 if cfg.max_initial_level is None else cfg.max_initial_level
        self.levels = torch.randint(first + 1, (env.num_envs,), device=device)
        self.origins = self._tiles[self.levels, self.columns]
        env.declare("terrain.levels", self.levels, None)
        env.declare("terrain.origins", self.origins, None)

    def height(self, points: Tensor) -> Tensor:
        """Heights of the ground at `points`, ``(..., 2)`` in the world, m. Shape: ``(...)``.

        Interpolated bilinearly between the nodes, with one read of memory a point. Beyond the
        border, it is the height of the border; for NaN, that of a corner. (MuJoCo divides each
        square between four nodes into two triangles; the two agree on its edges.)
        """
        places = points.movedim(-1, 0).contiguous().flatten(1)
        places = (places + self._half_size) / self._resolution
        # Unlike clamp, it leaves no NaN, which would be an index outside of the table.
        places = torch.minimum(torch.fmax(places, self._zero), self._num_squares)
        square = torch.minimum(places.floor(), self._last_square)
        column, row = square.long()
        number = torch.add(column, row, alpha=self._row_length)
        a, b, c, d = self._squares.index_select(0, number).unbind(1)
        u, v = places - square
        heights = torch.addcmul(torch.addcmul(a, b, u), torch.addcmul(c, d, u), v)
        return heights.view(points.shape[:-1])

    def highest(self, points: Tensor) -> Tensor:
        """The highest ground within a robot's reach of `points`, ``(n, 2)``, m. Shape: ``(n,)``."""
        places = torch.add(self._middle, points.T, alpha=1.0 / self._resolution)
        places = torch.fmax(places, self._zero)
        column, row = torch.minimum(places, self._num_squares).long()  # of the nearest node
        number = torch.add(column, row, alpha=self._row_length + 1)
        return self._tops.index_select(0, number)

    def move(self, mask: Tensor, change: Tensor) -> None:
        """Change the levels in `mask` by `change`, long, in place; beyond the last, to any."""
        levels = (self.levels + change).clamp_(min=0)
        anywhere = torch.randint_like(levels, self.num_levels)
        levels = torch.where(levels < self.num_levels, levels, anywhere)
        torch.where(mask, levels, self.levels, out=self.levels)
        self.origins.copy_(self._tiles[self.levels, self.columns])


def _highest_about(heights: np.ndarray, resolution: float) -> np.ndarray:
    """For each node the largest height within `_REACH`."""
    from scipy.ndimage import maximum_filter  # only terrains need it

    reach = math.ceil(_REACH / resolution)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    return np.asarray(maximum_filter(heights, footprint=x**2 + y**2 <= reach**2, mode="nearest"))


def _tile_origins(cfg: TerrainCfg, tops: np.ndarray) -> np.ndarray:
    """Middles of the tiles on the highest ground about them, float32, ``(levels, columns, 3)``."""
    nodes, border = _nodes(cfg)
    levels, columns = np.arange(cfg.num_levels), np.arange(cfg.num_columns)
    middles = (border + nodes * n + nodes // 2 for n in (columns, levels))
    x, y = ((n + 0.5 - len(n) / 2) * cfg.tile_size for n in (levels, columns))
    places = *np.meshgrid(x, y, indexing="ij"), tops[np.ix_(*middles)].T
    return np.stack(places, axis=-1).astype(np.float32)


def _nodes(cfg: TerrainCfg) -> tuple[int, int]:
    """Nodes along the side of a tile, and along the width of the border."""
    return round(cfg.tile_size / cfg.resolution), round(cfg.border_width / cfg.resolution)


def check_terrain(cfg: TerrainCfg) -> None:
    """Raise ConfigError for a terrain that cannot be made."""
    if not cfg.sub_terrains or not any(t.proportion > 0.0 for t in cfg.sub_terrains.values()):
        raise ConfigError("the terrain needs a sub-terrain with a proportion greater than 0")
    for name, tile in cfg.sub_terrains.items():
        check_parameters(flag("env", "terrain", "sub_terrains", name), tile, leading=4)
    nodes, border = _nodes(cfg)
    size = (cfg.num_columns * nodes + 2 * border) * (cfg.num_levels * nodes + 2 * border)
    if size > _MOST:
        text = f"the terrain has {size:,} nodes; the maximum is {_MOST:,}"
        raise ConfigError(f"{text}; use fewer tiles or a larger --env.terrain.resolution")
    first, last = cfg.max_initial_level, cfg.num_levels - 1
    if first is not None and not 0 <= first <= last:
        raise ConfigError(f"--env.terrain.max-initial-level is {first}; levels go from 0 to {last}")
    # Nodes of all tiles must fall on one grid.
    if abs(cfg.tile_size / cfg.resolution - 2 * round(cfg.tile_size / cfg.resolution / 2)) > 1e-6:
        multiple = f"an even multiple of --env.terrain.resolution, {cfg.resolution}"
        raise ConfigError(f"--env.terrain.tile-size is {cfg.tile_size}; it must be {multiple}")
