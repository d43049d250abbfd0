"""From a step's actions to ``ctrl``: targets, their delays, and actuators, before physics steps."""

from typing import Any

from torch import Tensor

from simtrain.env.actions import Actions
from simtrain.env.cfg import TaskCfg
from simtrain.env.control.actuators import Actuators
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.control.delay import DelayLine
from simtrain.env.names import as_index
from simtrain.errors import call_term


class Control:
    """What actuators are told. Where a task needs nothing else, targets are ``ctrl`` itself."""

    def __init__(self, cfg: TaskCfg, actions: Actions, env: Any) -> None:
        self._actions, self._ctrl = actions, env.bind("ctrl")
        for name, term in actions.terms.items():
            with env.scope(f"actions.{name}"):
                call_term(f"actions.{name}", term.declare, env)
        self._terms = {
            name: term
            for name, term in actions.terms.items()
            if type(term).substep is not ActionTerm.substep
        }
        self._actuators = Actuators(cfg.actuators, env)
        delays = {n: c for n, c in cfg.actions.items() if c.delay_max_lag}
        self._delay: DelayLine | None = None
        if delays:
            of = [actions.terms[name].actuators for name in delays]
            ids = [i for actuators in of for i in actuators]
            self._delayed = as_index(ids, env.device)
            sizes, initial = [len(actuators) for actuators in of], actions.initial[self._delayed]
            self._delay = DelayLine(env, "actions", list(delays.values()), sizes, initial)
        self._targets = self._ctrl
        if self._delay is not None or len(self._actuators):
            self._targets = env.buffer("targets", (env.model.nu,), reset=None)
        self.by_substep = bool(self._terms) or self._targets is not self._ctrl
        """Whether physics runs step by step, with `substep` before each."""

    def apply(self, actions: Tensor) -> None:
        """Take the actions of a control step, ``(num_envs, actions)``."""
        self._actions.apply(actions, self._targets)

    def substep(self) -> None:
        """Write ``ctrl`` for the next physics step, in place."""
        for name, term in self._terms.items():
            call_term(f"actions.{name}", term.substep, self._targets)
        if self._targets is self._ctrl:
            return
        self._ctrl.copy_(self._targets)
        if self._delay is not None:
            self._ctrl[:, self._delayed] = self._delay.push(self._targets[:, self._delayed])
        self._actuators.apply(self._ctrl)
