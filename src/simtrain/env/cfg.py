"""A task as data: `TaskCfg` and the configurations of its terms. Imports neither torch nor MuJoCo.

A term is a function and its parameters, keywords that can be changed from the command line:

  RewardTermCfg(mdp.track_lin_vel_xy_exp, weight=2.0, std=0.5)  # --env.rewards.track.std 0.25

A parameter called ``joints``, ``bodies``, ``geoms``, ``sites``, ``sensors``, ``actuators``,
``tendons`` or ``pairs`` (or ending with ``_joints`` and so on) is a name, a regular expression that
must match a whole name, or a tuple of these. It is resolved when the environment is built, and the
function receives an index (see `simtrain.env.names`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Suppress

from simtrain.algorithms.cfg import PpoCfg
from simtrain.env.control.cfg import ActionTermCfg, ActuatorCfg, DelayCfg, Range
from simtrain.env.reading import Mirror, MirrorRule
from simtrain.limits import (
    Count,
    Factor,
    Limits,
    NumEnvs,
    NumSteps,
    Repetitions,
    Seed,
    without_arrays,
)

ModelSource = Annotated[
    Path | Callable[[], Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda arguments: Path(arguments[0]),
        is_instance=lambda value: isinstance(value, Path) or callable(value),
        str_from_instance=lambda value: [
            str(value) if isinstance(value, Path) else f"{value.__module__}.{value.__qualname__}"
        ],
    ),
]
Params = Annotated[dict[str, Any], tyro.conf.arg(name="")]
EventMode = Literal["startup", "reset", "step", "interval"]
Reduce = Literal["mean", "last", "max"]
History = Annotated[int, Limits(0, 1000)]
SecondsRange = Annotated[tuple[float, float], Limits(0.0, 1e9, ordered=True)]
Iterations = Annotated[int, Limits(1, 10_000)]
Tiles = Annotated[int, Limits(1, 1000)]


@dataclass(init=False)
class TermCfg:
    """A function ``(env, **params)``, or a class that is made once so and called with ``(env)``.

    A class can keep state, which it declares with `env.buffer`, and can have a ``reset(mask)``.
    """

    func: Suppress[Callable[..., Any]]
    params: Params

    def __init__(self, func: Callable[..., Any], *values: Any, **more: Any) -> None:
        """Set the settings of the term, by position or name, and the parameters of its function.

        Parameters are passed by name or as ``params``. Raises TypeError if a setting without a
        default is missing.
        """
        own = [setting for setting in fields(self) if setting.name not in ("func", "params")]
        names = [setting.name for setting in own if not setting.kw_only]
        kind, given = type(self).__name__, dict(more.pop("params", None) or {})
        if len(values) > len(names):
            raise TypeError(f"{kind} takes no more than {1 + len(names)} values without a name")
        more |= zip(names, values, strict=False)
        for setting in own:
            if setting.default is MISSING and setting.name not in more:
                raise TypeError(f"{kind} needs {setting.name}")
            setattr(self, setting.name, more.pop(setting.name, setting.default))
        self.func = func
        self.params = {name: without_arrays(value) for name, value in (given | more).items()}


@dataclass
class UniformNoiseCfg:
    """Uniform noise between two bounds."""

    n_min: float = -1.0
    """Lower bound."""
    n_max: float = 1.0
    """Upper bound."""


@dataclass
class GaussianNoiseCfg:
    """Normally distributed noise."""

    std: float = 1.0
    """Standard deviation."""
    mean: float = 0.0
    """Mean."""


@dataclass(init=False, kw_only=True)
class ObservationTermCfg(TermCfg, DelayCfg):
    """A part of an observation group; its function returns ``(num_envs, size)`` or an image.

    The value goes through noise, bias, clip, scale, delay and history, in this order. An image is
    of shape ``(num_envs, channels, rows, columns)``, alone in its group; history adds channels.
    """

    noise: UniformNoiseCfg | GaussianNoiseCfg | None = None
    """Noise added to the value, drawn anew at every step."""
    bias: UniformNoiseCfg | GaussianNoiseCfg | None = None
    """Offset added to the value, drawn at the start of an episode."""
    clip: Range | None = None
    """Bounds of the value."""
    scale: float | tuple[float, ...] | None = None
    """Factor: one for all entries or one for each."""
    history_length: History = 0
    """Number of stacked steps, oldest first; 0 for the present value only."""
    mirror: Suppress[MirrorRule | None] = None
    """How the value is mirrored, for a function of your own; ready-made functions declare it."""


@dataclass
class ObservationGroupCfg:
    """An observation group with settings; a group without settings is a mapping of its terms."""

    terms: Annotated[dict[str, ObservationTermCfg], tyro.conf.arg(name="")]
    """The terms by name."""
    concatenate: bool = True
    """Concatenate the terms; False makes each term a separate group, <group>.<term>."""
    history_length: History = 0
    """Number of stacked steps of every term, oldest first; 0 uses the setting of each term."""


@dataclass(init=False)
class RewardTermCfg(TermCfg):
    """A part of the reward, a rate per second; its function returns ``(num_envs,)``.

    The reward of a step is the sum over terms of weight x value x step duration.
    """

    weight: float
    """Factor; negative for a penalty."""


@dataclass(init=False, kw_only=True)
class TerminationTermCfg(TermCfg):
    """A reason for an episode to end; its function returns a boolean ``(num_envs,)``."""

    time_out: bool = False
    """Whether the episode is truncated and has not failed, so that PPO bootstraps its value."""


@dataclass(init=False)
class EventTermCfg(TermCfg):
    """A change of environments; its function is ``(env, mask, **params)``.

    ``mask`` is boolean, ``(num_envs,)``: the environments to change. The function must not change
    the others.
    """

    mode: EventMode
    """When: once before training, at every reset, at every step, or repeatedly (interval)."""
    interval_range_s: SecondsRange = field(default=(10.0, 10.0), kw_only=True)
    """Shortest and longest time between two events, in seconds, drawn per environment; for mode
    ``interval``."""
    after_steps: Annotated[int, Limits(0, 10**12)] = field(default=0, kw_only=True)
    """Control steps of every environment before the first event; not for mode ``startup``."""


@dataclass(init=False)
class CommandTermCfg(TermCfg):
    """A goal for the policy; `func` is a class derived from `CommandTerm`."""

    resampling_time_range: SecondsRange
    """Shortest and longest time until a new command is drawn, in seconds."""


@dataclass(init=False)
class CurriculumTermCfg(TermCfg):
    """A change of the task during training; its function is ``(env, mask, **params)``.

    It is called for the environments that are about to be reset, and returns a tensor to log, or
    None. A class can also have ``observe(env)``, which is called at every step, before resets.
    """


@dataclass(init=False, kw_only=True)
class MetricTermCfg(TermCfg):
    """A number for the evaluation of policies; its function returns ``(num_envs,)``.

    Evaluations report its mean over the steps of an episode, its last value, or its largest value,
    which shows whether an event happened at any time.
    """

    reduce: Reduce = "mean"
    """Value of an episode: the mean, the last or the largest of its values."""


@dataclass(init=False)
class SubTerrainCfg(TermCfg):
    """A kind of tile: a function such as `mdp.pyramid_stairs`, or a similar one of your own."""

    proportion: Factor = 1.0
    """Fraction of the columns of the terrain, relative to the other kinds."""


@dataclass
class TerrainCfg:
    """A grid of tiles in one height field, which replaces the model's floor."""

    sub_terrains: dict[str, SubTerrainCfg] = field(default_factory=dict)
    num_levels: Tiles = 8
    """Tiles along x, from the easiest to the hardest."""
    num_columns: Tiles = 10
    """Tiles along y, each column of one kind."""
    tile_size: Annotated[float, Limits(1e-2, 1e4)] = 8.0
    """Side length of a tile, m."""
    resolution: Annotated[float, Limits(1e-3, 1e3)] = 0.1
    """Distance between the nodes of the height field, m."""
    border_width: Annotated[float, Limits(0.0, 1e4)] = 5.0
    """Width of the flat border around all tiles, m."""
    max_initial_level: Annotated[int, Limits(0, 1000)] | None = None
    """Hardest level that environments start at; None for the last."""
    seed: Seed = 0
    """Seed of the tiles' random heights, the same on all ranks."""


@dataclass
class SimCfg:
    """Settings of the physics; None keeps the setting of the model."""

    integrator: Literal["Euler", "implicitfast", "implicit", "RK4"] | None = None
    """MuJoCo's integrator."""
    solver: Literal["PGS", "CG", "Newton"] | None = None
    """MuJoCo's constraint solver."""
    iterations: Iterations | None = None
    """Maximum number of solver iterations."""
    ls_iterations: Iterations | None = None
    """Maximum number of line-search iterations."""
    max_contacts: Repetitions | None = None
    """Maximum number of contacts in each environment, for the warp engine; None estimates it."""
    max_constraints: Annotated[int, Limits(1, 10**7)] | None = None
    """Maximum number of constraint rows in each environment, for the warp engine; None estimates
    it."""


@dataclass
class TaskCfg:
    """A task: a model, observations, actions, rewards and so on.

    `model` is the path of an MJCF file or a function that returns an ``mujoco.MjSpec``.
    """

    model: ModelSource
    """MJCF file of the robot and its world."""
    timestep: Annotated[float, Limits(1e-6, 100.0)]
    """Seconds of a physics step."""
    decimation: Annotated[int, Limits(1, 10_000)]
    """Physics steps per control step."""
    episode_length_s: Annotated[float, Limits(1e-6, 1e7)]
    """Maximum length of an episode, s."""
    terrain: TerrainCfg | None = None
    """Terrain that replaces the model's floor."""
    keyframe: str | None = None
    """Keyframe of the model in which episodes start; None for MuJoCo's default state."""
    actuators: dict[str, ActuatorCfg] = field(default_factory=dict)
    actions: dict[str, ActionTermCfg] = field(default_factory=dict)
    observations: dict[str, dict[str, ObservationTermCfg] | ObservationGroupCfg] = field(
        default_factory=dict
    )
    rewards: dict[str, RewardTermCfg] = field(default_factory=dict)
    terminations: dict[str, TerminationTermCfg] = field(default_factory=dict)
    events: dict[str, EventTermCfg] = field(default_factory=dict)
    commands: dict[str, CommandTermCfg] = field(default_factory=dict)
    curricula: dict[str, CurriculumTermCfg] = field(default_factory=dict)
    metrics: dict[str, MetricTermCfg] = field(default_factory=dict)
    symmetry: Suppress[Mirror | None] = None
    """Symmetry of the robot, for ``--ppo.symmetry``."""
    sim: SimCfg = field(default_factory=SimCfg)
    num_envs: Suppress[NumEnvs] = 1024
    """Default of --num-envs if physics runs on the CPU."""
    num_envs_on_gpu: Suppress[NumEnvs | None] = None
    """Default of --num-envs on each GPU, if physics runs on GPUs; None for the same."""
    num_steps_per_env: Suppress[NumSteps] = 24
    max_iterations: Suppress[Count] = 1000
    ppo: Suppress[PpoCfg] = field(default_factory=PpoCfg)

    def observation_terms(self) -> dict[str, dict[str, ObservationTermCfg]]:
        """The terms of each entry of `observations`, unchanged."""
        groups = self.observations.items()
        return {n: g.terms if isinstance(g, ObservationGroupCfg) else g for n, g in groups}

    def observation_groups(self) -> dict[str, dict[str, ObservationTermCfg]]:
        """The observation groups after the settings of `observations` are applied."""
        groups = self.observation_terms()
        for name, group in self.observations.items():
            if isinstance(group, ObservationGroupCfg):
                terms = {
                    n: replace(term, history_length=group.history_length or term.history_length)
                    for n, term in groups.pop(name).items()
                }
                apart = {f"{name}.{n}": {n: term} for n, term in terms.items()}
                groups |= {name: terms} if group.concatenate else apart
        return groups
