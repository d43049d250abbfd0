"""Find mistakes in a task before any simulation is built."""

from __future__ import annotations

from typing import get_args

import mujoco

from simtrain.env.actions import Actions
from simtrain.env.cfg import EventMode, TaskCfg
from simtrain.env.model import compile_model, find_keyframe, initial_state
from simtrain.env.terms import check_term
from simtrain.errors import ConfigError

EVENT_MODES = get_args(EventMode)


def check_task(cfg: TaskCfg) -> mujoco.MjModel:
    """Compile the model and resolve every name in the task against it; the model.

    Raises:
        ConfigError: what was wrong, where, and what is allowed.
    """
    for name, value in (
        ("timestep", cfg.timestep),
        ("decimation", cfg.decimation),
        ("episode-length-s", cfg.episode_length_s),
    ):
        if not value > 0:
            raise ConfigError(f"--env.{name} is {value}; it must be greater than 0")
    model = compile_model(cfg)
    start = initial_state(model, find_keyframe(model, cfg.keyframe))
    if not cfg.actions:
        raise ConfigError("the task has no actions")
    if Actions(cfg.actions, model, start, "cpu").dim == 0:
        raise ConfigError("the task's actions drive no joint")
    if "actor" not in cfg.observations:
        raise ConfigError("the task has no observation group 'actor'")
    for group, terms in cfg.observations.items():
        if not terms:
            raise ConfigError(f"observations.{group} has no terms")
        for name, term in terms.items():
            check_term(f"observations.{group}.{name}", term, model)
            if term.history_length < 0:
                raise ConfigError(f"observations.{group}.{name}: history_length is negative")
    if not cfg.rewards:
        raise ConfigError("the task has no rewards")
    for kind in ("rewards", "terminations", "commands", "metrics"):
        for name, term in getattr(cfg, kind).items():
            check_term(f"{kind}.{name}", term, model)
    for name, event in cfg.events.items():
        if event.mode not in EVENT_MODES:
            raise ConfigError(
                f"events.{name}: the mode is {event.mode!r}; it must be one of "
                f"{', '.join(EVENT_MODES)}"
            )
    for kind in ("events", "curricula"):
        for name, term in getattr(cfg, kind).items():
            check_term(f"{kind}.{name}", term, model, leading=2)
    return model
