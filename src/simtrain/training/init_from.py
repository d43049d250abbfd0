"""``--init-from``: a new run begins with the networks of another, also of a changed task.

Tensors are taken over where name and shape are the same, a normalizer's all together or none. The
optimizer and the number of iterations are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from simtrain.errors import ConfigError
from simtrain.run.checkpoint import check_kinds, read_tensors
from simtrain.training.saved_policy import find_policy

if TYPE_CHECKING:
    from simtrain.algorithms.distillation import Algorithm
    from simtrain.training.context import RunContext

State = dict[str, Tensor]
_MOST_LINES = 10
# Where rsl_rl before 4, which has all in one ``model_state_dict``, and rsl_rl 4 had what 5 has.
_OLD_NAMES = {
    "actor.": ("actor", "mlp."),
    "critic.": ("critic", "mlp."),
    "actor_obs_normalizer.": ("actor", "obs_normalizer."),
    "critic_obs_normalizer.": ("critic", "obs_normalizer."),
    "memory_a.": ("actor", "rnn."),
    "memory_c.": ("critic", "rnn."),
    "std": ("actor", "distribution.std_param"),
    "log_std": ("actor", "distribution.log_std_param"),
}


def read_networks(path: str, only: str | None = None) -> tuple[Path, dict[str, State]]:
    """A checkpoint of simtrain, rsl_rl or mjlab: its networks by name; see `find_policy`.

    ConfigError if there is none, or its numbers are not finite. With `only`, that network alone.
    """
    file = find_policy(Path(path))
    content = read_tensors(file, "checkpoint")
    keys = [key for key in content if str(key).endswith("_state_dict") and "opt" not in str(key)]
    check_kinds(file, content, dict.fromkeys(keys, State))
    networks = _networks(content)
    if only is not None:
        networks = {name: state for name, state in networks.items() if name == only}
    if not any(networks.values()):
        wanted = only or "actor or critic"
        raise ConfigError(f"{file} is no checkpoint with the networks of a policy: no {wanted}")
    for name, state in networks.items():
        if not all(tensor.float().isfinite().all() for tensor in state.values()):
            raise ConfigError(f"the {name} in {file} has parameters that are not finite numbers")
    return file, networks


def init_networks(context: RunContext, ppo: Algorithm) -> None:
    """Take over what ``--init-from`` names, in place, and tell what does not fit.

    All ranks call it together; does nothing for a resumed run. ConfigError if nothing fits.
    """
    config, rank = context.config, context.rank
    if config.init_from is None or context.resumption is not None:
        return
    if rank.is_main:
        file, networks = read_networks(config.init_from, config.init_only)
        count, misfits = take_over(ppo.networks, networks)
        first = f": {misfits[0]}" if misfits else ""
        if count == 0:
            raise ConfigError(f"--init-from: no layer of {file} fits the networks here{first}")
        if context.member is None or context.member.number == 0:
            names = " and ".join(networks)
            lines = [f"{count} tensors of the {names} in {file}", *misfits[:_MOST_LINES]]
            lines += [f"and {len(misfits) - _MOST_LINES} more"] * (len(misfits) > _MOST_LINES)
            for line in lines:
                context.console.say(f"--init-from: {line}")
    for tensor in ppo.tensors():
        rank.broadcast(tensor)


@torch.no_grad()
def take_over(mine: dict[str, nn.Module], theirs: dict[str, State]) -> tuple[int, list[str]]:
    """Copy what fits into networks, in place, if `theirs` has the network.

    Returns how many tensors that is, 0 without a layer's weights among them, for small tensors
    fit by chance; and a line for each that does not fit.
    """
    count, layers, misfits = 0, 0, []
    for network, module in mine.items():
        if network not in theirs:
            continue
        here, there = _units(module.state_dict()), _units(theirs[network])
        for unit in {**here, **there}:
            shapes = [_shapes(units.get(unit)) for units in (there, here)]
            if shapes[0] != shapes[1]:
                texts = [next(iter(each.values()), "missing") for each in shapes]
                misfits.append(f"{network} {unit} is {texts[0]} there, {texts[1]} here: left out")
                continue
            for name, tensor in here[unit].items():
                tensor.copy_(there[unit][name])
                layers += tensor.ndim > 1 and name == unit
            count += len(here[unit])
    return count if layers else 0, misfits


def _networks(content: dict[str, Any]) -> dict[str, State]:
    """The networks in a checkpoint under rsl_rl 5's names; of a student as ``actor``."""
    found: dict[str, State] = {"actor": {}, "critic": {}}
    for key, network in (("student", "actor"), ("actor", "actor"), ("critic", "critic")):
        for name, tensor in content.get(f"{key}_state_dict", {}).items():
            found[network][_OLD_NAMES[name][1] if name in ("std", "log_std") else name] = tensor
    for name, tensor in content.get("model_state_dict", {}).items():
        for old, (network, new) in _OLD_NAMES.items():
            if name == old or (old.endswith(".") and name.startswith(old)):
                found[network][new + name.removeprefix(old)] = tensor
    for key, network in (("obs_norm", "actor"), ("privileged_obs_norm", "critic")):  # rsl_rl 2
        state = content.get(f"{key}_state_dict", {})
        found[network] |= {f"obs_normalizer.{name}": tensor for name, tensor in state.items()}
    return {network: state for network, state in found.items() if state}


def _units(state: State) -> dict[str, State]:
    """Tensors that are taken over together: those of a normalizer, and each other by itself."""
    units: dict[str, State] = {}
    for name, tensor in state.items():
        module = name.split(".")[0]
        units.setdefault(module if "normalizer" in module else name, {})[name] = tensor
    return units


def _shapes(unit: State | None) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in (unit or {}).items()}
