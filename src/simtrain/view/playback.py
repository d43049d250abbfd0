"""Environments that a policy controls in real time, faster, slower, or step by step."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from simtrain.env.env import Env
from simtrain.errors import ConfigError

Act = Callable[[TensorDict, Tensor], Tensor]
"""A policy: actions for observations, with a mask of episodes that begin, see `Policy`."""
HISTORY_S = 10.0


class Step(NamedTuple):
    """A control step: its end time, and each reward term per second, ``(num_envs, terms)``."""

    time_s: float
    rewards: np.ndarray


class Playback:
    """Does the control steps that are due in real time."""

    def __init__(self, env: Env, act: Act) -> None:
        self.env = env
        self.paused, self.time_s = False, 0.0
        self.speed = 1.0  # simulated seconds a second
        self.history: deque[Step] = deque(maxlen=max(2, round(HISTORY_S / env.step_dt)))
        self.ended = [""] * env.num_envs  # by which terminations the latest episodes ended
        self._act, self._obs, self._due_s = act, env.reset(), 0.0

    def advance(self, passed_s: float) -> None:
        """Do, in place, the steps of `passed_s` more seconds of real time; drop late ones."""
        if self.paused:
            return
        self._due_s += passed_s * self.speed
        start = time.perf_counter()
        while self._due_s >= self.env.step_dt:
            self.step()
            self._due_s -= self.env.step_dt
            if time.perf_counter() - start > passed_s:
                self._due_s = 0.0

    @torch.inference_mode()
    def step(self) -> None:
        """Do one control step, in place, even if paused."""
        env = self.env
        self._obs, _, dones, _ = env.step(self._act(self._obs, env.is_fresh))
        self.time_s += env.step_dt
        self.history.append(Step(self.time_s, env.rewards.rates().cpu().numpy()))
        for index in dones.nonzero().flatten().tolist():
            self.ended[index] = why_ended(env, index)

    @torch.inference_mode()
    def reset(self) -> None:
        """Start new episodes in all environments, in place."""
        self._obs = self.env.reset()
        self.history.clear()
        self.ended = [""] * self.env.num_envs


def why_ended(env: Env, index: int) -> str:
    """Names of the terminations that ended the latest episode of an environment."""
    flags = zip(env.terminations.names, env.terminations.flags[index].tolist(), strict=True)
    return ", ".join(name for name, flag in flags if flag)


def hold_commands(env: Env, words: Sequence[str]) -> None:
    """Set commands to the values of ``--command``, in place; ConfigError for unknown commands.

    Values follow the name of a command. Values before the first name are those of the only command.
    """
    driven = [name for name, term in env.commands.terms.items() if term.is_driven]
    commands: dict[str, list[float]] = {}
    for word in words:
        try:
            value = float(word)
        except ValueError:
            commands[word] = []
            continue
        if not commands and len(driven) != 1:
            names = ", ".join(driven)
            what = f"several commands; name one first: {names}" if driven else "no command"
            raise ConfigError(f"--command is {' '.join(words)}; the task has {what}")
        commands.setdefault(next(reversed(commands), driven[0] if driven else ""), []).append(value)
    terms = [env.commands.terms[name] for name in commands]  # all are there, before one is held
    for term, (name, values) in zip(terms, commands.items(), strict=True):
        if not term.is_driven:
            there = f"it has {', '.join(driven) or 'none'}"
            raise ConfigError(f"--command {name}: the task has no such command to give; {there}")
        entries = term.entries()
        if len(values) != len(entries) or not all(map(math.isfinite, values)):
            given = " ".join(map(str, values)) or "nothing"
            text = f"--command {name} needs {len(entries)} numbers ({', '.join(entries)})"
            raise ConfigError(f"{text}, got {given}")
        env.commands.hold(name, values)
