"""Terrain: a grid of tiles in one height field, one model for all environments.

Tiles stand in rows of one level of difficulty (along x) and columns of one kind (along y), around
the origin of the world; a flat border surrounds them. Every environment starts on the tile of its
level and column, and may walk on to others. The heights of a tile come from a function such as
those in `simtrain.mdp.terrain`.
"""

from __future__ import annotations

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.env.cfg import TerrainCfg
from simtrain.env.names import check_parameters, check_positive
from simtrain.errors import ConfigError, flag

NAME = "terrain"
"""Name of the height field and of its geom."""
_BASE = 1.0  # thickness below the lowest point, m
_SPAWN = 0.5  # environments start above the highest point within this distance of the middle, m


def add_terrain(cfg: TerrainCfg, spec: mujoco.MjSpec) -> None:
    """Give `spec` the terrain, in place, instead of the planes that are fixed to its world."""
    material = ""
    for geom in spec.worldbody.geoms:
        if geom.type == mujoco.mjtGeom.mjGEOM_PLANE:
            material = geom.material
            spec.delete(geom)
    heights = make_heights(cfg)
    rows, columns = heights.shape
    low, high = float(heights.min()), float(heights.max())
    depth = max(high - low, 1e-3)
    size_x, size_y = (columns - 1) * cfg.resolution, (rows - 1) * cfg.resolution
    spec.add_hfield(
        name=NAME,
        size=[size_x / 2, size_y / 2, depth, _BASE],
        nrow=rows,
        ncol=columns,
        userdata=((heights - low) / depth).ravel().tolist(),
    )
    geom = spec.worldbody.add_geom(
        name=NAME, type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname=NAME, pos=[0.0, 0.0, low]
    )
    if material:
        geom.material = material


def make_heights(cfg: TerrainCfg) -> np.ndarray:
    """Heights of all tiles and the border, m, float32, ``(nodes along y, nodes along x)``.

    The same for the same configuration. MuJoCo's order: rows of the height field go along y.
    """
    nodes = _nodes(cfg)
    border = round(cfg.border_width / cfg.resolution)
    heights = np.zeros(
        (cfg.num_columns * nodes + 1 + 2 * border, cfg.num_levels * nodes + 1 + 2 * border),
        dtype=np.float32,
    )
    along = np.arange(nodes) * cfg.resolution - cfg.tile_size / 2
    y, x = np.meshgrid(along, along, indexing="ij")
    random = np.random.default_rng(cfg.seed)
    kinds = _kinds(cfg)
    for column in range(cfg.num_columns):
        kind = cfg.sub_terrains[kinds[column]]
        for level in range(cfg.num_levels):
            difficulty = level / max(cfg.num_levels - 1, 1)
            tile = kind.func(x, y, difficulty, random, **kind.params)
            top, left = border + column * nodes, border + level * nodes
            heights[top : top + nodes, left : left + nodes] = tile
    return heights


class Terrain:
    """Where every environment lives on the terrain, and how high the ground is."""

    def __init__(
        self, cfg: TerrainCfg, model: mujoco.MjModel, num_envs: int, device: torch.device
    ) -> None:
        """Read the heights from the model, and spread the environments over columns and levels."""
        self.num_levels = cfg.num_levels
        self.tile_size = cfg.tile_size
        """Length of a tile's side, m."""
        field = model.hfield(NAME).id
        rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
        start = int(model.hfield_adr[field])
        data = model.hfield_data[start : start + rows * columns].reshape(rows, columns)
        depth, low = float(model.hfield_size[field, 2]), float(model.geom(NAME).pos[2])
        heights = data * depth + low
        self.half_size: tuple[float, float] = tuple(model.hfield_size[field, :2].tolist())
        """Half the lengths along x and y, m; the terrain is centred at the world's origin."""
        self._tiles = torch.as_tensor(_tile_origins(cfg, heights), device=device)
        self._lookup = _Lookup(heights, self.half_size, cfg.resolution, device)

        everyone = torch.arange(num_envs, device=device)
        self.columns = everyone * cfg.num_columns // num_envs
        """Each environment's column, long, ``(num_envs,)``."""
        first = cfg.num_levels - 1 if cfg.max_initial_level is None else cfg.max_initial_level
        self.levels = torch.randint(first + 1, (num_envs,), device=device)
        """Each environment's level, long, ``(num_envs,)``."""
        self.origins = self._tiles[self.levels, self.columns]
        """Where each environment starts, in the middle of its tile, m, ``(num_envs, 3)``."""

    def height(self, points: Tensor) -> Tensor:
        """Heights of the ground at `points`, ``(..., 2)`` in the world, m. Shape: ``(...)``.

        Interpolated bilinearly between the nodes; beyond the border that of the border. (MuJoCo
        divides each square between four nodes into two triangles; the two agree on its edges.)
        """
        return self._lookup(points)

    def move(self, mask: Tensor, change: Tensor) -> None:
        """Change the levels of the environments in `mask` by `change`, long, in place.

        An environment that masters the last level continues at a random one.
        """
        levels = (self.levels + change).clamp_(min=0)
        anywhere = torch.randint_like(levels, self.num_levels)
        levels = torch.where(levels < self.num_levels, levels, anywhere)
        torch.where(mask, levels, self.levels, out=self.levels)
        self.origins.copy_(self._tiles[self.levels, self.columns])


class _Lookup:
    """Bilinear interpolation on a regular grid, with one read of memory a point."""

    def __init__(
        self,
        heights: np.ndarray,
        half_size: tuple[float, float],
        resolution: float,
        device: torch.device,
    ) -> None:
        # In each square h(u, v) = a + b u + c v + d u v, for u and v from 0 to 1 along x and y.
        a = heights[:-1, :-1]
        b, c = heights[:-1, 1:] - a, heights[1:, :-1] - a
        d = heights[1:, 1:] - a - b - c
        squares = torch.as_tensor(np.stack((a, b, c, d), axis=-1), dtype=torch.float32)
        self._rows, self._columns = squares.shape[:2]
        self._squares = squares.reshape(-1, 4).to(device)
        self._half_x, self._half_y = half_size
        self._resolution = resolution

    def __call__(self, points: Tensor) -> Tensor:
        u = ((points[..., 0] + self._half_x) / self._resolution).clamp_(0.0, self._columns)
        v = ((points[..., 1] + self._half_y) / self._resolution).clamp_(0.0, self._rows)
        column, row = u.floor().clamp_(max=self._columns - 1), v.floor().clamp_(max=self._rows - 1)
        u, v = u - column, v - row
        square = (row.long() * self._columns + column.long()).flatten()
        a, b, c, d = self._squares.index_select(0, square).view(*u.shape, 4).unbind(-1)
        return torch.addcmul(torch.addcmul(a, b, u), torch.addcmul(c, d, u), v)


def _tile_origins(cfg: TerrainCfg, heights: np.ndarray) -> np.ndarray:
    """Middles of the tiles on the highest ground about them, float32, ``(levels, columns, 3)``."""
    nodes, reach = _nodes(cfg), round(_SPAWN / cfg.resolution)
    border = round(cfg.border_width / cfg.resolution)
    origins = np.zeros((cfg.num_levels, cfg.num_columns, 3), dtype=np.float32)
    for level in range(cfg.num_levels):
        for column in range(cfg.num_columns):
            i, j = (border + nodes * k + nodes // 2 for k in (column, level))
            around = heights[i - reach : i + reach + 1, j - reach : j + reach + 1]
            origins[level, column] = (
                (level + 0.5 - cfg.num_levels / 2) * cfg.tile_size,
                (column + 0.5 - cfg.num_columns / 2) * cfg.tile_size,
                around.max(),
            )
    return origins


def _kinds(cfg: TerrainCfg) -> list[str]:
    """The kind of each column; shares of the columns follow the proportions."""
    names = list(cfg.sub_terrains)
    shares = np.cumsum([cfg.sub_terrains[name].proportion for name in names])
    middles = (np.arange(cfg.num_columns) + 0.5) / cfg.num_columns * shares[-1]
    return [names[int(np.searchsorted(shares, middle, side="right"))] for middle in middles]


def _nodes(cfg: TerrainCfg) -> int:
    """Nodes along the side of a tile."""
    return round(cfg.tile_size / cfg.resolution)


def check_terrain(cfg: TerrainCfg) -> None:
    """Raise ConfigError for a terrain that cannot be made."""
    if not cfg.sub_terrains or not any(t.proportion > 0.0 for t in cfg.sub_terrains.values()):
        raise ConfigError("the terrain needs a sub-terrain with a proportion greater than 0")
    for name, tile in cfg.sub_terrains.items():
        check_parameters(flag("env", "terrain", "sub_terrains", name), tile, leading=4)
    check_positive(cfg, ("resolution", "tile_size", "num_levels", "num_columns"), "env", "terrain")
    if cfg.max_initial_level is not None and not 0 <= cfg.max_initial_level < cfg.num_levels:
        raise ConfigError(
            f"--env.terrain.max-initial-level is {cfg.max_initial_level}; "
            f"levels go from 0 to {cfg.num_levels - 1}"
        )
    # Nodes of all tiles must fall on one grid.
    if abs(cfg.tile_size / cfg.resolution - 2 * round(cfg.tile_size / cfg.resolution / 2)) > 1e-6:
        raise ConfigError(
            f"--env.terrain.tile-size is {cfg.tile_size}; it must be an even multiple of "
            f"--env.terrain.resolution, {cfg.resolution}"
        )
