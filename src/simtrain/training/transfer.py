"""Starting a run from another one: from its networks, or with its policy as the teacher.

With ``--init-from``, a run starts with the networks of another one, also of a changed task. Tensors
are copied if name and shape are the same; those of a normalizer are copied together. The optimizer
and the number of iterations are not copied. With ``--teacher``, a student learns from the policy of
another run, see `algorithms.distillation`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from simtrain.algorithms.cfg import SymmetryCfg
from simtrain.algorithms.distillation import Distillation
from simtrain.algorithms.networks import load_network
from simtrain.errors import ConfigError
from simtrain.run.checkpoint import check_kinds, check_parameters, read_tensors
from simtrain.training.saved_policy import find_policy, open_policy

if TYPE_CHECKING:
    from simtrain.algorithms.distillation import Algorithm
    from simtrain.config.train import TrainConfig
    from simtrain.training.context import RunContext

State = dict[str, Tensor]
_MOST_LINES = 10
# Names in rsl_rl before 4, with all in one ``model_state_dict``, and in rsl_rl 4, by those in 5.
_OLD_NAMES = {
    r"student/": "actor/",
    r"model/(actor|critic)\.": r"\1/mlp.",
    r"model/(actor|critic)_obs_normalizer\.": r"\1/obs_normalizer.",
    r"model/memory_a\.": "actor/rnn.",
    r"model/memory_c\.": "critic/rnn.",
    r"(?:model|actor)/(log_)?std$": r"actor/distribution.\1std_param",
    r"obs_norm/": "actor/obs_normalizer.",  # rsl_rl 2
    r"privileged_obs_norm/": "critic/obs_normalizer.",
}

# Settings that decide the meaning of inputs and outputs; noise, delays and limits do not.
_OBSERVATION_FIELDS = ("func", "params", "clip", "scale", "history_length")
_ACTION_FIELDS = ("joints", "tendons", "sites", "actuators", "scale", "offset", "reference")


def read_networks(path: str, only: str | None = None) -> tuple[Path, dict[str, State]]:
    """The networks in a checkpoint of simtrain, rsl_rl or mjlab, by name; see `find_policy`.

    ConfigError if there is none, or if its numbers are not finite. With `only`, that network alone.
    """
    file = find_policy(Path(path))
    content = read_tensors(file, "checkpoint")
    keys = [key for key in content if str(key).endswith("_state_dict") and "opt" not in str(key)]
    check_kinds(file, content, dict.fromkeys(keys, State))
    networks = _networks({key.removesuffix("_state_dict"): content[key] for key in keys})
    networks = {name: state for name, state in networks.items() if only in (None, name)}
    if not networks:
        wanted = only or "actor or critic"
        raise ConfigError(f"{file} is no checkpoint with the networks of a policy: no {wanted}")
    for name, state in networks.items():
        check_parameters(state, f"the {name} in {file}")
    return file, networks


def init_networks(context: RunContext, algorithm: Algorithm) -> None:
    """Copy the networks of ``--init-from``, and the teacher's parameters, in place.

    All ranks call it together; does nothing for a resumed run, whose state has both. ConfigError if
    nothing fits, or if the teacher does not.
    """
    config, rank = context.config, context.rank
    if (config.init_from, config.teacher) == (None, None) or context.resumption is not None:
        return
    if rank.is_main and config.init_from is not None:
        file, networks = read_networks(config.init_from, config.init_only)
        count, misfits = take_over(algorithm.networks, networks)
        first = f": {misfits[0]}" if misfits else ""
        if count == 0:
            raise ConfigError(f"--init-from: no layer of {file} fits the networks here{first}")
        lines = [f"{count} tensors of the {' and '.join(networks)} in {file}"]
        lines += misfits[:_MOST_LINES]
        lines += [f"and {len(misfits) - _MOST_LINES} more"] * (len(misfits) > _MOST_LINES)
        for line in lines if context.member is None or context.member.number == 0 else ():
            context.console.say(f"--init-from: {line}")
    if rank.is_main and isinstance(algorithm, Distillation):
        assert config.teacher is not None
        try:
            load_network(algorithm.teacher, read_networks(config.teacher, "actor")[1]["actor"])
        except ConfigError as error:
            raise ConfigError(f"--teacher {config.teacher}: {error}") from error
    for tensor in algorithm.tensors():
        rank.broadcast(tensor)


@torch.no_grad()
def take_over(networks: dict[str, nn.Module], saved: dict[str, State]) -> tuple[int, list[str]]:
    """Copy the tensors that fit into networks, in place, if `saved` has the network.

    Returns the number of these tensors, 0 if no layer's weights are among them, because small
    tensors fit by chance; and a line for each one that does not fit.
    """
    count, layers, misfits = 0, 0, []
    for network, module in networks.items():
        if network not in saved:
            continue
        here, there = _units(module.state_dict()), _units(saved[network])
        for unit in {**here, **there}:
            shapes = [
                {name: tuple(tensor.shape) for name, tensor in units.get(unit, {}).items()}
                for units in (there, here)
            ]
            if shapes[0] != shapes[1]:
                texts = [next(iter(unit_shapes.values()), "missing") for unit_shapes in shapes]
                misfits.append(f"{network} {unit} is {texts[0]} there, {texts[1]} here: left out")
                continue
            for name, tensor in here[unit].items():
                tensor.copy_(there[unit][name])
                layers += tensor.ndim > 1 and name == unit
            count += len(here[unit])
    return count if layers else 0, misfits


def _networks(states: dict[str, State]) -> dict[str, State]:
    """The networks in a checkpoint by rsl_rl 5's names; a student is ``actor``."""
    networks: dict[str, State] = {"actor": {}, "critic": {}}
    for part, state in states.items():
        for name, tensor in state.items():
            path = f"{part}/{name}"
            for old, new in _OLD_NAMES.items():
                path = re.sub(f"^{old}", new, path)
            network, _, own_name = path.partition("/")
            if network in networks:
                networks[network][own_name] = tensor
    return {network: state for network, state in networks.items() if state}


def _units(state: State) -> dict[str, State]:
    """Tensors that are copied together: those of a normalizer; each other tensor alone."""
    units: dict[str, State] = {}
    for name, tensor in state.items():
        module = name.split(".")[0]
        units.setdefault(module if "normalizer" in module else name, {})[name] = tensor
    return units


def with_teacher(config: TrainConfig) -> TrainConfig:
    """The configuration with the network of its teacher, as its run has it.

    The mirrored samples of the task's PPO are turned off: a student learns from its teacher alone.

    ConfigError if there is no such policy, or if its observations or actions differ in the task.
    """
    assert config.teacher is not None
    learned = open_policy(Path(config.teacher)).config
    network, here, there = learned.ppo.actor, *map(_interface, (config, learned))
    for part in ("actions", *network.obs_groups):
        own, teachers = here.get(part, {}), there[part]
        if [*own.items()] != [*teachers.items()]:
            names = {**teachers, **own}
            different = [name for name in names if own.get(name) != teachers.get(name)]
            what = f"{part}.{different[0]}" if different else f"the order of {part}"
            text = f"--teacher {config.teacher} is of another task, {learned.task}"
            raise ConfigError(f"{text}: {what} is not the same in {config.task}")
    ppo = replace(config.ppo, symmetry=SymmetryCfg())
    return replace(config, ppo=ppo, distillation=replace(config.distillation, teacher=network))


def _interface(config: TrainConfig) -> dict[str, dict[str, str]]:
    """A text for each action and each term of an observation group: its meaning for a policy."""

    def describe(term: Any, fields: Sequence[str]) -> str:
        values = [getattr(term, name, None) for name in fields]
        return json.dumps([type(term).__name__, *values], default=_name_of)

    interface = {
        group: {name: describe(term, _OBSERVATION_FIELDS) for name, term in terms.items()}
        for group, terms in config.env.observation_groups().items()
    }
    actions = config.env.actions.items()
    return interface | {"actions": {n: describe(term, _ACTION_FIELDS) for n, term in actions}}


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", str(function))
