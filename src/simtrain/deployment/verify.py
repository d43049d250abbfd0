"""Verification: whether an exported policy behaves outside of simtrain as it does inside.

The policy is evaluated in its task. Then the exported files play the same episodes in plain MuJoCo
(``closed_loop.py``, in processes that import nothing from simtrain), with the same starts, commands
and models, or in another model of the robot. The task's environment gets their states step by step,
to compute its rewards, metrics and terminations. Before that, observations and targets of both are
compared in the same states.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.algorithms.networks import Policy
from simtrain.config.tree import as_plain
from simtrain.deployment.conditions import Condition, load_model, read_interface
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task, without_hardware
from simtrain.env.randomness import forked_randomness
from simtrain.errors import ExportError
from simtrain.sim import EngineCfg
from simtrain.sim.fields import entries_of
from simtrain.training.evaluator import Estimate, Evaluation, FirstEpisodes
from simtrain.training.saved_policy import SavedPolicy

_SEED = 0
_STEPS, _EPISODES = 100, 8  # whose observations and targets are compared
_STATE = ("qpos", "qvel", "sensordata")  # in which they are
_TOLERANCE = 1e-3  # of these; relative where they are larger than 1
_ROUGHLY = 0.02  # of the mean where the ground is seen, m
_MOST_SECONDS, _MOST_MEMORY = 40, 4 * 2**30  # of a step, by the processor; of all steps
_ROUND = 10  # episodes at a time
_MOST, _MARGIN = 40, 0.02  # episodes by default, fewer if the part that is kept is known to this
_LOOP = Path(__file__).with_name("closed_loop.py")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Verification:
    """An exported policy's episodes, paired with those of the policy itself."""

    own: Evaluation
    played: dict[str, Evaluation]
    """Evaluations by condition; empty if there are differences."""
    differences: list[str]
    """Sentences about observations and targets of the exported files that differ."""
    without_hardware: bool
    """Whether delays, biases and motors of the task were left out of both."""

    def kept(self, condition: str) -> Estimate:
        """The kept fraction of the policy's return; if that is negative, 1 minus the loss."""
        return kept(self.own, self.played[condition])


def kept(own: Evaluation, played: Evaluation) -> Estimate:
    """The kept fraction of the return in the episodes `played`, the first of those of `own`."""
    pairs = zip(played.returns, own.returns, strict=False)
    change = Estimate.of_mean([exported - own for exported, own in pairs])
    scale = abs(own.estimates["mean_return"].value) or 1.0
    return Estimate(*(1.0 + x / scale for x in (change.value, change.low, change.high)))


@dataclass(frozen=True)
class _Episodes:
    """The episodes of the policy in its task, and the data to play them elsewhere."""

    evaluation: Evaluation
    job: Arrays
    commands: list[dict[str, Tensor]]
    """The state of the commands at the beginning of every step."""
    first: Arrays
    """States in the first steps, to ``follow``, what is ``seen`` in them, and the ``targets``."""


class Verifier:
    """A policy's episodes in its task, for comparison with those of exported files."""

    def __init__(self, saved: SavedPolicy, episodes: int | None = None) -> None:
        """Play them, 40 by default; ConfigError if the policy does not fit its task."""
        self._margin = _MARGIN if episodes is None else 0.0
        episodes = episodes or _MOST
        of_task = evaluation_task(saved.config.env)
        task = without_hardware(of_task)
        self._is_changed = as_plain(task) != as_plain(of_task)
        engine = EngineCfg(threads=min(len(os.sched_getaffinity(0)), episodes))
        with forked_randomness(_SEED), torch.inference_mode():
            self._env = Env(task, episodes, engine, metrics=True)
            policy = saved.policy(self._env.get_observations(), self._env.num_actions)
            self._own = _play_own(self._env, policy)

    def __call__(
        self,
        folder: Path,
        conditions: Mapping[str, Condition],
        tell: Callable[[str], None] = lambda condition: None,
    ) -> Verification:
        """Play the policy exported to `folder` under `conditions`, as of `find_conditions`.

        Under each, as many episodes are played as the policy's; if no number was given, fewer if
        these give the kept fraction of the return to ± 0.02. `tell` is called with each condition.
        Delays and DC motors are left out of both. ExportError if the files fail to run.
        """
        env, own, played = self._env, self._own, {}
        about = read_interface(folder)
        settings = {
            "fields": [field for field, _ in entries_of(env.sim.state(), "data")],
            "discardvisual": load_model(folder, about).ngeom != env.model.ngeom,
            "steps": env.max_episode_length,
            "seconds_of_step": _MOST_SECONDS,
            "memory": _MOST_MEMORY,
        }
        with forked_randomness(_SEED), torch.inference_mode(), TemporaryDirectory() as scratch:
            loop = _ClosedLoop(folder.resolve(), Path(scratch), own.job, settings)
            differences = _differences(loop, env, own, about)
            for name, condition in conditions.items():
                if not differences:
                    played[name] = self._play(loop, condition, name, tell)
        return Verification(own.evaluation, played, differences, self._is_changed)

    def _play(
        self, loop: _ClosedLoop, condition: Condition, name: str, tell: Callable[[str], None]
    ) -> Evaluation:
        """The episodes under a condition, in rounds, until the kept fraction is accurate enough."""
        episodes, results = self._env.num_envs, []
        most = f", {episodes} at most" if self._margin else f" of {episodes}"
        for first in range(0, episodes, _ROUND):
            rows = np.arange(first, min(first + _ROUND, episodes))
            tell(f"{name}: episodes {first + 1} to {first + len(rows)}{most}")
            results.append(loop.play(condition, rows))
            result = {n: np.concatenate([r[n] for r in results], axis=1) for n in results[0]}
            evaluation = _evaluate(self._env, result, self._own.commands)
            part = kept(self._own.evaluation, evaluation)
            if part.high - part.low < 2.0 * self._margin:
                break
        return evaluation


def _play_own(env: Env, policy: Policy) -> _Episodes:
    """Play an episode in each environment; go on after its end, as the other may last longer."""
    memory = _reset(env)
    state = env.sim.state()
    job = {"start": state["state"].numpy()}
    job |= {f"at_start/{field}": env.sim.bind_native(field).numpy().copy() for field in _STATE[:2]}
    job |= {f"model/{field}": value.numpy() for field, value in entries_of(state, "model")}
    job |= {f"memory/{name}": value.numpy() for name, value in memory.items()}
    driven = [i for term in env.action_terms.values() for i in term.actuators]
    given = [name for name, term in env.commands.terms.items() if term.is_driven]
    rows: dict[str, list[Tensor]] = {}  # of every step
    commands, obs, episodes = [], env.get_observations(), FirstEpisodes(env)
    for step in range(env.max_episode_length):
        commands.append({n: value.clone() for n, value in env.declared("commands.").items()})
        now = {f"command/{name}": env.command(name).clone() for name in given}
        if step < _STEPS:
            for field in _STATE:
                now[f"follow/{field}"] = env.sim.bind_native(field)[:_EPISODES].clone()
            now["seen"] = torch.cat([obs[g][:_EPISODES] for g in policy.actor.obs_groups], dim=1)
        episodes.add(*env.advance(policy(obs, env.is_fresh)))
        if step < _STEPS:
            now["targets"] = env.bind("ctrl")[:_EPISODES, driven]
        for name, value in now.items():
            rows.setdefault(name, []).append(value)
        obs = env.observe()
    first = {name: torch.stack(values).numpy() for name, values in rows.items()}
    job |= {f"command/{name}": first.pop(f"command/{name}") for name in given}
    return _Episodes(Evaluation.of_rows(episodes.rows(), env), job, commands, first)


def _reset(env: Env) -> dict[str, Tensor]:
    """Begin an episode in each environment; the commands' state before their first `update`."""
    memory: dict[str, Tensor] = {}

    def record_and(update: Callable[[], None], name: str) -> None:
        state = env.declared(f"commands.{name}.").items()
        memory.update({n: rows.clone() for n, rows in state if rows.shape[:1] == (env.num_envs,)})
        update()

    terms = {n: term for n, term in env.commands.terms.items() if not term.is_driven}
    for name, term in terms.items():
        vars(term)["update"] = partial(record_and, term.update, name)
    env.reset()
    for term in terms.values():
        del vars(term)["update"]
    return memory


@dataclass(frozen=True)
class _ClosedLoop:
    """Runs the exported files in separate processes, see `closed_loop`."""

    folder: Path
    scratch: Path
    job: Arrays
    settings: dict[str, Any]

    def play(self, condition: Condition, rows: np.ndarray) -> Arrays:
        """The fields, actions and failures of episodes at the end of every step."""
        threads = min(len(os.sched_getaffinity(0)), len(rows))
        if "other" in condition:
            file = str(self.scratch / "other.mjb")
            mujoco.mj_saveModel(condition["other"], file)
            condition = condition | {"other": file}
        play = partial(self.run, settings={"condition": condition}, states={})
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(play, np.array_split(rows, threads)))
        return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}

    def run(self, share: np.ndarray, settings: dict[str, Any], states: Arrays) -> Arrays:
        """The result for a share of the episodes, or for `states`, ``(steps, episodes, ...)``."""
        job = {
            name: values[:, share] if name.startswith("command/") else values[share]
            for name, values in self.job.items()
        }
        text = np.array(json.dumps(self.settings | settings))
        files = [self.scratch / f"{name}-{share[0]}.npz" for name in ("job", "result")]
        np.savez(files[0], allow_pickle=False, **job, **states, settings=text)
        read_end, write_end = os.pipe()  # which closes with this process, however it ends
        with os.fdopen(read_end) as its_end, os.fdopen(write_end, "w"):
            process = subprocess.run(
                # -P: it imports what is installed, nothing from a folder where something lies.
                [sys.executable, "-P", str(_LOOP), str(self.folder), *map(str, files)],
                cwd=self.scratch,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=its_end,
                capture_output=True,
                text=True,
            )
        if process.returncode != 0:
            last = (process.stderr.strip().splitlines() or ["it crashes"])[-1]
            if process.returncode == -signal.SIGPROF:
                last = f"a step takes more than {_MOST_SECONDS} s"
            raise ExportError(f"the exported policy does not run: {last}")
        with np.load(files[1]) as result:
            return dict(result)


def _differences(loop: _ClosedLoop, env: Env, own: _Episodes, about: dict[str, Any]) -> list[str]:
    """Observations and targets of the exported policy that differ from those in its task."""
    steps, episodes, _ = own.first["targets"].shape
    states = {name: rows for name, rows in own.first.items() if name.startswith("follow/")}
    followed = loop.run(np.arange(episodes), {"condition": {}, "steps": steps}, states)
    sentences = []
    if not math.isclose(about["control_period"], env.step_dt, rel_tol=1e-9):
        period = about["control_period"]
        sentences.append(f"control_period is {period} s, a step of the task lasts {env.step_dt} s")
    # Between nodes of a height field MuJoCo's ground is not quite that of the task, what the policy
    # wants follows from it, and so what it sees of that.
    sees_ground = bool(about["robot"]["given"])
    before = 0
    for group in dict.fromkeys(part["group"] for part in about["observations"]):
        parts = {part["term"]: part for part in about["observations"] if part["group"] == group}
        of_task = env.observations.groups[group].slices if group in env.observations.groups else {}
        if parts.keys() != of_task.keys():
            exported, own_terms = (", ".join(terms) or "nothing" for terms in (parts, of_task))
            return [f"{group} has {exported}, in the task {own_terms}"]
        for term, place in of_task.items():
            name, columns = f"{group}.{term}", slice(before + place.start, before + place.stop)
            pair = followed["obs"][:, :, columns], own.first["seen"][:, :, columns]
            follows = sees_ground and parts[term]["function"].endswith(":last_action")
            roughly = follows or name in about["robot"]["given"]
            sentences += _difference(name, *pair, roughly=roughly)
        before += env.observations.groups[group].size
    if not sentences:  # else targets differ as well
        pair = followed["targets"], own.first["targets"]
        sentences += _difference("the targets", *pair, roughly=sees_ground)
    return sentences


def _difference(name: str, exported: np.ndarray, own: np.ndarray, *, roughly: bool) -> list[str]:
    """A sentence if two arrays differ, or the means of values that are only `roughly` equal."""
    if exported.shape != own.shape:
        return [f"{name} has the shape {exported.shape[2:]}, in the task {own.shape[2:]}"]
    off = np.abs(exported - own) / np.maximum(1.0, np.abs(own))
    off = np.where(np.isfinite(off), off, math.inf)
    error, allowed = (off.mean(), _ROUGHLY) if roughly else (off.max(initial=0.0), _TOLERANCE)
    what = "on average by" if roughly else "by up to"
    return [] if error <= allowed else [f"{name} differs from the task's {what} {error:.2g}"]


def _evaluate(env: Env, result: Arrays, commands: list[dict[str, Tensor]]) -> Evaluation:
    """The first episodes of a result, with the task's own rewards, metrics and terminations.

    Another model gives positions and velocities; all else is computed by the task's model.
    """
    env.reset()
    episodes, buffers = FirstEpisodes(env), env.declared("commands.")
    fields = {field for field, _ in entries_of(env.sim.state(), "data")}
    is_whole, count = fields <= result.keys(), result["actions"].shape[1]
    mirrors = {field: env.bind(field) for field in (fields if is_whole else _STATE[:2])}
    played, failed = torch.arange(env.num_envs) < count, torch.zeros(env.num_envs)
    for step, command in enumerate(commands):
        env.previous_actions.copy_(env.actions)
        env.actions[:count] = torch.from_numpy(result["actions"][step])
        for field, mirror in mirrors.items():
            mirror[:count] = torch.from_numpy(result[field][step])
            if not is_whole:
                env.sim.write(field, mirror, played)
        if not is_whole:
            env.sim.forward()
        for name, value in command.items():
            buffers[name].copy_(value)
        env.episode_length_buf = torch.full_like(env.episode_length_buf, step + 1)
        failed[:count] = torch.from_numpy(result["failed"][step])
        episodes.add(*env.rewards_and_dones(failed > 0.0))
    return Evaluation.of_rows(episodes.rows()[:count], env)
