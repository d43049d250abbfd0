"""The task as policies are judged and shown in it: without noise, pushes and curricula."""

from __future__ import annotations

import copy

from simtrain.env.cfg import TaskCfg


def undisturbed(cfg: TaskCfg) -> TaskCfg:
    """A copy of a task without observation noise, interval events and curricula.

    So pushes are gone, commands have their full ranges, and on a terrain environments start at
    every level. What is drawn at the start and at resets stays.
    """
    calm = copy.deepcopy(cfg)
    for group in calm.observations.values():
        for term in group.values():
            term.noise = None
    calm.events = {name: e for name, e in calm.events.items() if e.mode != "interval"}
    calm.curricula = {}
    if calm.terrain is not None:
        calm.terrain.max_initial_level = None
    return calm
