"""The environment of terms on a robot: one row, whose fields are computed from sensors."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import mujoco
import torch
from torch import Tensor

from simtrain.deployment.interface import has_base
from simtrain.env.commands import CommandTerm
from simtrain.env.control.actions import Actions
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.env import Env
from simtrain.env.names import ONE_DEGREE, Places, Sensors, find_id, find_places, resolve_params
from simtrain.env.observations import ObservationGroup, SharedTerms
from simtrain.errors import ConfigError, call_term, flag
from simtrain.mdp.rotations import rotate

MEMORY = "memory."
"""Prefix of inputs: the state that terms declared, after the previous step."""


class RobotTask:
    """A task's terms, and the fields of MuJoCo that a robot's sensors give."""

    def __init__(self, env: Env, groups: Sequence[str]) -> None:
        for name, term in env.action_terms.items():
            if not term.actuators or type(term).substep is not ActionTerm.substep:
                why = "acts at every physics step" if term.actuators else "names no `actuators`"
                text = f"what {type(term).__name__} does cannot be told to a robot's program"
                raise ConfigError(f"{flag('env', 'actions', name)}: {text}: it {why}")
        model, cfgs = env.model, env.cfg.observation_groups()
        self.env, self.groups = env, {group: cfgs[group] for group in groups}
        joints = [model.joint(i) for i in range(model.njnt)]
        self.joints = [joint for joint in joints if joint.type[0] in ONE_DEGREE]
        self.qpos = [int(joint.qposadr[0]) for joint in self.joints]
        self.qvel = [int(joint.dofadr[0]) for joint in self.joints]
        self.has_base = has_base(env)
        self.given: dict[str, dict[str, Any]] = {}
        params, names = list[Any](), list[str]()
        for group, terms in self.groups.items():
            for name, cfg in terms.items():
                known = inspect.signature(cfg.func).parameters.items()
                of_term = {n: p.default for n, p in known if p.default is not p.empty}
                of_term |= resolve_params(cfg.params, model, "cpu")
                params += of_term.values()
                function = getattr(cfg.func, "func", cfg.func)
                if hasattr(function, "given"):
                    self.given[f"{group}.{name}"] = function.given(env, of_term)
                elif hasattr(function, "places"):
                    names += function.places
        sensors = [name for value in params if isinstance(value, Sensors) for name in value.names]
        self.contacts = list(dict.fromkeys(sensors))
        self.contact_data = [int(model.sensor(name).adr[0]) for name in self.contacts]
        for command in env.commands.terms.values():
            names += command.describe().get("places", ())
        places = [value for value in params if isinstance(value, Places)]
        places += [find_places(model, name, "cpu") for name in names if name]
        kinds = [(name, place.are_sites) for place in places for name in place.names]
        self.places = {n: (s, find_id(model, "site" if s else "body", n)) for n, s in kinds}

    def examples(self) -> dict[str, Tensor]:
        """Inputs for all possible sensors, at the start of an episode."""
        env, initial = self.env, self.env.initial_qpos.cpu()
        values = {"joint_pos": initial[self.qpos], "joint_vel": torch.zeros(len(self.qvel))}
        if self.has_base:
            base = env.base
            values |= {"base_pos": initial[base.position], "base_quat": initial[base.quaternion]}
            values |= {"base_lin_vel": torch.zeros(3), "base_ang_vel": torch.zeros(3)}
        values |= {"contact": torch.zeros(len(self.contacts))} if self.contacts else {}
        if count := len(self.places):
            turns = torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(count, 1)
            values |= {"place_pos": torch.zeros(count, 3), "place_quat": turns}
        for name, command in env.commands.terms.items():
            if command.is_driven:
                values[f"command.{name}"] = torch.zeros(command.command.shape[1])
        for where in self.given:
            group, _, name = where.partition(".")
            sides = env.observations.groups[group].shape[1:]  # of an image
            values[where] = torch.zeros(self._size(group, name)).view(-1, *sides)
        return {name: value.clone().unsqueeze(0) for name, value in values.items()}

    def _size(self, group: str, name: str) -> int:
        """Number of entries of a term, without history."""
        place = self.env.observations.groups[group].slices[name]
        return int(place.stop - place.start) // max(self.groups[group][name].history_length, 1)

    def disturbances(self) -> dict[str, Tensor]:
        """Noise for each group, and the servo parameters, which contain the encoders' bias."""
        noise = {
            f"noise.{group}": torch.zeros(1, sum(self._size(group, name) for name in terms))
            for group, terms in self.groups.items()
            if any(cfg.noise for cfg in terms.values())
        }
        return noise | {"actuator_biasprm": _nominal(self.env.model, "actuator_biasprm")}


def _nominal(model: mujoco.MjModel, field: str) -> Tensor:
    return torch.as_tensor(getattr(model, field), dtype=torch.float32).unsqueeze(0)


class _Group(ObservationGroup):
    """A group whose noise is an input."""

    def __init__(self, input_noise: Tensor | None, *parts: Any) -> None:
        super().__init__(*parts)
        self._input_noise = input_noise

    def _add(self, noises: Any, values: Tensor) -> Tensor:
        return values if self._input_noise is None else values.add_(self._input_noise)


class GivenCommand(CommandTerm):
    """A command from an operator."""

    def __init__(self, command: Tensor) -> None:
        self.command = command

    def resample(self, mask: Tensor) -> None:
        """See `CommandTerm.resample`."""


class RobotEnv(Env):
    """The environment of terms on a robot: one row, from the `inputs` of its graph.

    Without memory among the inputs, an episode begins.
    """

    def __init__(self, task: RobotTask, inputs: Mapping[str, Tensor], unknown: float = 0.0) -> None:
        self.__dict__.update(vars(task.env))
        env, self._inputs = task.env, inputs
        self.num_envs, self.device, self.terrain = 1, torch.device("cpu"), None
        self._scope = self._shared = None
        self._declared, self._scratch, self._built = {}, [], False
        self._fields = _fields(task, inputs, unknown)
        self.sim = SimpleNamespace(  # type: ignore[assignment]
            expand=lambda field: inputs.get(field, _nominal(env.model, field))
        )
        self._episode_length = self.buffer("episode_length", dtype=torch.long)
        self.actions = self.buffer("actions", (env.num_actions,))
        self.previous_actions = self.buffer("previous_actions", (env.num_actions,))
        commands: dict[str, CommandTerm] = {}
        self.commands = SimpleNamespace(terms=commands)  # type: ignore[assignment]
        for name, cfg in env.cfg.commands.items():
            if env.commands.terms[name].is_driven:
                commands[name] = GivenCommand(inputs[f"command.{name}"])
            else:
                params = resolve_params(cfg.params, env.model, "cpu")
                commands[name] = self.make_term(f"commands.{name}", cfg.func, params)
        self._actions = Actions(env.cfg, env.model, "cpu")
        self._actions.declare(self)
        self._seen = SharedTerms(self)
        self.groups = {name: self._group(task, name) for name in task.groups}
        self.rows = self.declared("")
        for name, rows in self.rows.items():  # making the groups called each term
            before = inputs.get(MEMORY + name)
            rows.fill_(self._declared[name][1] or 0) if before is None else rows.copy_(before)
        if not any(name.startswith(MEMORY) for name in inputs):
            for command in commands.values():
                command.begin()
            for reset in filter(None, [term.reset for term in self._seen.terms]):
                reset(torch.ones(1, dtype=torch.bool))

    def _group(self, task: RobotTask, group: str) -> _Group:
        cfgs = {name: copy.copy(cfg) for name, cfg in task.groups[group].items()}
        for name, cfg in cfgs.items():
            cfg.noise = cfg.bias = None
            cfg.delay_min_lag = cfg.delay_max_lag = 0
            if (facts := task.given.get(f"{group}.{name}")) is not None:
                cfg.func, cfg.params = _given_value(f"{group}.{name}", facts), {}
        return _Group(self._inputs.get(f"noise.{group}"), group, cfgs, self, self._seen)

    def observe(self) -> dict[str, Tensor]:
        """The observations by group; commands and state advance, in place."""
        for name, command in self.commands.terms.items():
            call_term(f"commands.{name}", command.update)
        self._seen.compute()
        seen = {name: torch.zeros(1, *group.shape) for name, group in self.groups.items()}
        for name, group in self.groups.items():
            group.compute(seen[name])
        return seen

    def act(self, actions: Tensor) -> Tensor:
        """The targets of all actuators that actions drive, ``(1, n)``; the state advances."""
        self.previous_actions.copy_(self.actions)
        self.actions.copy_(actions)
        self._episode_length += 1
        ctrl = self._actions.initial.repeat(1, 1)
        self._actions.apply(actions, ctrl)
        return ctrl[:, [i for term in self._actions.terms.values() for i in term.actuators]]

    def bind(self, field: str) -> Tensor:
        """See `BaseEnv.bind`: a field that sensors give, at least in part."""
        if field not in self._fields:
            raise ConfigError(f"a robot's program does not know MuJoCo's {field}")
        return self._fields[field]

    def substeps(self, field: str) -> Tensor:
        """See `BaseEnv.substeps`: a robot's program has none."""
        raise ConfigError(f"a robot's program does not know {field} at each physics step")

    def variable(self, name: str, initial: Tensor) -> Tensor:
        """See `BaseEnv.variable`: a constant."""
        return initial.cpu().clone()


def _fields(task: RobotTask, inputs: Mapping[str, Tensor], unknown: float) -> dict[str, Tensor]:
    """MuJoCo's fields, ``(1, ...)``, as far as sensors give them; `unknown` elsewhere."""
    model, env = task.env.model, task.env
    data, names = mujoco.MjData(model), ("qpos", "qvel", "sensordata", "xpos", "xquat", "xmat")
    sizes = {name: getattr(data, name).shape for name in (*names, "site_xpos", "site_xmat")}
    fields = {name: torch.full((1, *size), unknown) for name, size in sizes.items()}
    fields["qpos"][:, task.qpos] = inputs["joint_pos"]
    fields["qvel"][:, task.qvel] = inputs["joint_vel"]
    if task.contacts:
        fields["sensordata"][:, task.contact_data] = inputs["contact"]
    if task.has_base:
        base, position, turn = env.base, inputs["base_pos"], inputs["base_quat"]
        fields["qpos"][:, base.position], fields["qpos"][:, base.quaternion] = position, turn
        fields["qvel"][:, base.linear] = rotate(turn, inputs["base_lin_vel"])
        fields["qvel"][:, base.angular] = inputs["base_ang_vel"]
        fields["xpos"][:, base.body], fields["xquat"][:, base.body] = position, turn
        fields["xmat"][:, base.body] = _matrix(turn)
    for place, (is_site, number) in enumerate(task.places.values()):
        of = "site_" if is_site else ""
        turn = inputs["place_quat"][:, place]
        fields[f"{of}xpos"][:, number] = inputs["place_pos"][:, place]
        fields[f"{of}xmat"][:, number] = _matrix(turn)
        if not is_site:
            fields["xquat"][:, number] = turn
    return fields


def _matrix(quaternion: Tensor) -> Tensor:
    """The rotation matrix of ``(1, 4)``, flat: ``(9,)``."""
    return rotate(quaternion, torch.eye(3)).T.flatten()


def _given_value(name: str, facts: Mapping[str, Any]) -> Callable[[Any], Tensor]:
    return lambda robot: robot._inputs[name] - facts.get("minus", 0.0)
