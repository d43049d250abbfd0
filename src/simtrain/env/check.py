"""Find mistakes in a task before any simulation is built."""

from __future__ import annotations

from typing import get_args

import mujoco

from simtrain.env.actions import Actions
from simtrain.env.cfg import EventMode, Reduce, TaskCfg
from simtrain.env.model import compile_model, find_keyframe, initial_state
from simtrain.env.terms import check_term
from simtrain.errors import ConfigError, flag
from simtrain.metric_tags import EVALUATION_TAGS

EVENT_MODES = get_args(EventMode)


def check_task(cfg: TaskCfg) -> mujoco.MjModel:
    """Compile the model and resolve every name in the task against it; the model.

    Raises:
        ConfigError: what was wrong, where, and what is allowed.
    """
    for name in ("timestep", "decimation", "episode_length_s"):
        value = getattr(cfg, name)
        if not value > 0:
            raise ConfigError(f"{flag('env', name)} is {value}; it must be greater than 0")
    for name in ("iterations", "ls_iterations", "max_contacts", "max_constraints"):
        count = getattr(cfg.sim, name)
        if count is not None and count < 1:
            raise ConfigError(f"{flag('env', 'sim', name)} is {count}; it must be 1 or more")
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
            where = ("env", "observations", group, name)
            check_term(flag(*where), term, model)
            if term.history_length < 0:
                raise ConfigError(
                    f"{flag(*where, 'history_length')} is {term.history_length}; "
                    "it must be 0 or more"
                )
    if not cfg.rewards:
        raise ConfigError("the task has no rewards")
    for kind in ("rewards", "terminations", "commands", "metrics"):
        for name, term in getattr(cfg, kind).items():
            check_term(flag("env", kind, name), term, model)
    for name, metric in cfg.metrics.items():
        if name in EVALUATION_TAGS:
            raise ConfigError(f"a metric of the task is called {name!r}, as one of evaluation is")
        if metric.reduce not in get_args(Reduce):
            raise ConfigError(
                f"{flag('env', 'metrics', name, 'reduce')} is {metric.reduce!r}; it must be one of "
                f"{', '.join(get_args(Reduce))}"
            )
    for name, event in cfg.events.items():
        if event.mode not in EVENT_MODES:
            raise ConfigError(
                f"{flag('env', 'events', name, 'mode')} is {event.mode!r}; it must be one of "
                f"{', '.join(EVENT_MODES)}"
            )
    for kind in ("events", "curricula"):
        for name, term in getattr(cfg, kind).items():
            check_term(flag("env", kind, name), term, model, leading=2)
    return model
