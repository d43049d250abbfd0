"""Observations by rays, from sites to geoms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import InitVar, dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch

from simtrain.env.reading import read_as
from simtrain.errors import ConfigError
from simtrain.limits import Count, Limits, Positive
from simtrain.mdp.rotations import about_vertical
from simtrain.sim.engine import Rays

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Entities

Alignment = Literal["site", "yaw", "world"]
_TOLERANCE = 1e-4  # of a reflected ray's start, m, and direction


@read_as("given")
@dataclass(eq=False, repr=False)
class _RayCast(ABC):
    """Distances from sites to geoms, along rays; derived classes define their pattern.

    Rays turn with the site (`alignment` ``site``), with its x axis about the vertical (``yaw``), or
    not (``world``). They hit simulated and visible geoms of the `geom_groups` (MuJoCo's, 0 to 5;
    None for all), but not those of the site's body, up to a distance of `max_distance`, m.
    """

    env: InitVar[Env]
    sites: Entities
    max_distance: Positive = 5.0
    alignment: Alignment = "yaw"
    geom_groups: Annotated[tuple[int, ...] | None, Limits(0, 5)] = None

    def __post_init__(self, env: Env) -> None:
        starts, directions = self._pattern()
        self._starts, self._directions = starts.to(env.device), directions.to(env.device)
        bodies = [int(env.model.site(name).bodyid[0]) for name in self.sites.names]
        excluded = tuple(body for body in bodies for _ in range(len(starts)))
        groups = None if self.geom_groups is None else tuple(self.geom_groups)
        points, directions = (env.scratch((len(excluded), 3)) for _ in range(2))
        self._rays = Rays(points, directions, env.scratch((len(excluded),)), excluded, groups)

    @classmethod
    def mirror(cls, reflection: Any, params: Any) -> list[tuple[int, float]]:
        """Rays take the place of those that they fall on when the pattern is reflected."""
        sites, factors = params["sites"], torch.tensor(reflection.vector)
        pattern: Any = cls._pattern
        rays = torch.cat(pattern(SimpleNamespace(**params)), dim=1)
        distances, images = torch.cdist(rays * factors.repeat(2), rays).min(dim=1)
        if distances.max() > _TOLERANCE:
            raise ConfigError("the pattern of its rays is not symmetric")
        places = [place for place, _ in reflection.partners(sites)]
        frames = reflection.frames[sites.ids]
        compared = {"site": (slice(3), slice(3)), "yaw": (slice(2), 0)}.get(params["alignment"])
        if compared is not None:
            errors = (frames * torch.outer(factors, factors) - frames[places])[:, *compared].abs()
            if (wrong := errors.flatten(1).amax(dim=1) > _TOLERANCE).any():
                name = sites.names[int(wrong.nonzero()[0])]
                raise ConfigError(f"the site {name!r} is not oriented like its mirror image")
        return [(place * len(rays) + ray, 1.0) for place in places for ray in images.tolist()]

    @abstractmethod
    def _pattern(self) -> tuple[Tensor, Tensor]:
        """Starts and directions in the frame of a site, ``(rays, 3)`` each, on the host."""

    def _cast(self, env: Env) -> Tensor:
        """Distances now, m. Shape: ``(num_envs, sites, rays)``."""
        position = env.bind("site_xpos")[:, self.sites.ids].unsqueeze(2)
        starts, directions = self._starts, self._directions
        if self.alignment != "world":
            rotation = env.bind("site_xmat")[:, self.sites.ids].view(env.num_envs, -1, 3, 3)
            if self.alignment == "yaw":
                rotation = about_vertical(torch.atan2(rotation[..., 1, 0], rotation[..., 0, 0]))
            starts, directions = starts @ rotation.mT, directions @ rotation.mT
        shape = (env.num_envs, len(self.sites), len(self._starts), 3)
        self._rays.points.view(shape).copy_(starts + position)
        self._rays.directions.view(shape).copy_(directions.expand(shape))
        env.sim.cast(self._rays)
        distances = self._rays.distances
        distances = distances.masked_fill(distances < 0.0, torch.inf).clamp_(max=self.max_distance)
        return distances.view(shape[:-1])


@dataclass(eq=False, repr=False)
class ray_grid(_RayCast):
    """Distance of geoms below a grid of points around sites, m: `height_scan` for any geoms.

    The grid has `size` along x and y, and points with a distance of `resolution`, m, at the height
    of its site. Rays start at `height` above the grid; distances of hits above it are negative.
    """

    size: tuple[float, float] = (1.6, 1.0)
    resolution: Positive = 0.2
    height: float = 0.0

    def _pattern(self) -> tuple[Tensor, Tensor]:
        sides = [torch.linspace(-n / 2, n / 2, round(n / self.resolution) + 1) for n in self.size]
        places = torch.cartesian_prod(*sides, torch.tensor([self.height]))
        return places, torch.tensor([0.0, 0.0, -1.0]).expand_as(places)

    def __call__(self, env: Env) -> Tensor:
        """Sites in order, each as in `height_scan`. Shape: ``(num_envs, sites x points)``."""
        return self._cast(env).flatten(1) - self.height


@dataclass(eq=False, repr=False)
class ray_ring(_RayCast):
    """Distance of geoms from points on a ring around sites, m.

    The ring has a `radius`, m, and `count` points, the first one on the x axis. Rays point outwards
    and up by `elevation`, degrees: -90 for straight down, 0 for a horizontal scan.
    """

    radius: float = 0.1
    count: Count = 8
    elevation: float = -90.0

    def _pattern(self) -> tuple[Tensor, Tensor]:
        angles = torch.arange(self.count) * (2.0 * math.pi / self.count)
        outwards = torch.stack((angles.cos(), angles.sin(), torch.zeros(self.count)), dim=1)
        up = torch.tensor([0.0, 0.0, math.sin(math.radians(self.elevation))])
        return self.radius * outwards, outwards * math.cos(math.radians(self.elevation)) + up

    def __call__(self, env: Env) -> Tensor:
        """Sites in order, each with its points. Shape: ``(num_envs, sites x count)``."""
        return self._cast(env).flatten(1)


@dataclass(eq=False, repr=False)
class ray_pinhole(_RayCast):
    """Depth images of cameras that look along the x axis of sites, z up, m.

    Depth is measured along the axis, up to `max_distance` along the ray. `width` and `height` are
    in pixels, `fovy` is the vertical field of view, degrees.
    """

    alignment: Alignment = "site"
    width: Count = 32
    height: Count = 24
    fovy: Positive = 45.0

    def _pattern(self) -> tuple[Tensor, Tensor]:
        pixel = 2.0 * math.tan(math.radians(self.fovy) / 2.0) / self.height
        sides = [(n - 1) / 2.0 - torch.arange(n) for n in (self.height, self.width)]
        up, left = (torch.cartesian_prod(*sides) * pixel).unbind(1)
        directions = torch.stack((torch.ones_like(up), left, up), dim=1)
        directions /= directions.norm(dim=1, keepdim=True)
        return torch.zeros_like(directions), directions

    def __call__(self, env: Env) -> Tensor:
        """Pixels from the top left. Shape: ``(num_envs, sites, rows, columns)``."""
        depth: Tensor = self._cast(env) * self._directions[:, 0]
        return depth.view(env.num_envs, -1, self.height, self.width)
