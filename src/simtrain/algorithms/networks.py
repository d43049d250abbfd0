"""The networks of a task, rsl_rl's models: their making, hidden states, and use as a policy."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rsl_rl.models import CNNModel, MLPModel, RNNModel
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.cfg import ActorCfg, CriticCfg, NetworkCfg, PpoCfg, RndCfg
from simtrain.errors import ConfigError
from simtrain.launch.rank import Rank


def make_actor(cfg: ActorCfg, obs: TensorDict, num_actions: int) -> MLPModel:
    """The policy network; ConfigError if its groups of observations do not fit it."""
    distribution: dict[str, Any]
    if cfg.distribution == "beta":
        distribution = {"class_name": "BetaDistribution", "action_range": cfg.action_range}
    else:
        kind = "Heteroscedastic" if cfg.distribution == "heteroscedastic" else ""
        distribution = {n: getattr(cfg, n) for n in ("init_std", "std_type", "std_range")}
        distribution["class_name"] = f"{kind}GaussianDistribution"
    settings = {"distribution_cfg": distribution}
    return _make(cfg, "actor", obs, cfg.obs_groups, num_actions, settings)


def make_critic(cfg: PpoCfg, obs: TensorDict) -> MLPModel:
    """The value network; without its groups of observations it sees those of the policy."""
    return _make(cfg.critic, "critic", obs, groups_or_actors(cfg, cfg.critic, obs), 1, {})


def groups_or_actors(cfg: PpoCfg, own: CriticCfg | RndCfg, obs: TensorDict) -> tuple[str, ...]:
    """The groups of observations that `own` names, or the actor's if the task has not all."""
    there = set(own.obs_groups) <= set(obs.keys())
    return own.obs_groups if there else cfg.actor.obs_groups


def find_model(cfg: NetworkCfg, network: str) -> type[MLPModel]:
    """The class of a model; ConfigError, with the flag of the `network`, if there is none."""
    kinds: dict[str, type[MLPModel]]
    kinds = {"mlp": MLPModel, "gru": RNNModel, "lstm": RNNModel, "cnn": CNNModel}
    if cfg.model in kinds:
        return kinds[cfg.model]
    try:
        custom = resolve_callable(cfg.model)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--ppo.{network}.model {cfg.model} cannot be found: {error}") from error
    if not (isinstance(custom, type) and issubclass(custom, MLPModel)):
        text = "is not a class derived from rsl_rl.models.MLPModel"
        raise ConfigError(f"--ppo.{network}.model {cfg.model} {text}")
    return custom


def _make(
    cfg: ActorCfg | CriticCfg,
    network: str,
    obs: TensorDict,
    groups: tuple[str, ...],
    outputs: int,
    settings: dict[str, Any],
) -> MLPModel:
    kind, name = find_model(cfg, network), f"--ppo.{network}.model is {cfg.model}, and"
    images = [group for group in groups if obs[group].ndim > 2]
    if cfg.model == "cnn" and not images:
        text = f"{name} the observations in {', '.join(groups)} are flat; it needs a group of shape"
        raise ConfigError(f"{text} (channels, rows, columns), or take mlp, gru or lstm")
    if cfg.model in ("mlp", "gru", "lstm") and images:
        text = f"{name} {images[0]} has shape {tuple(obs[images[0]].shape[1:])}; images need a cnn"
        raise ConfigError(text)
    settings |= {
        "hidden_dims": cfg.hidden_dims,
        "activation": cfg.activation,
        "obs_normalization": cfg.obs_normalization and len(images) < len(groups),
    }
    own = {
        "rnn_hidden_dim": cfg.rnn_hidden_dim,
        "rnn_num_layers": cfg.rnn_num_layers,
        "cnn_cfg": {**cfg.cnn.settings(), "activation": cfg.activation},
    }
    if cfg.model in ("gru", "lstm"):
        settings["rnn_type"] = cfg.model
    parameters = inspect.signature(kind).parameters
    settings |= {name: value for name, value in own.items() if name in parameters}
    try:
        model = kind(obs, {network: list(groups)}, network, outputs, **settings)
        if kind is not MLPModel:  # an image may be too small for it
            with torch.no_grad():
                model(obs[:1].cpu())
            model.reset()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} it cannot be made: {error}") from error
    return model


def update_normalization(network: MLPModel, obs: TensorDict, rank: Rank) -> None:
    """Learn means and standard deviations of flat observations, of all ranks, in place.

    rsl_rl's own update would sum over all processes there are, whatever they train.
    """
    if not network.obs_normalization:
        return
    x = torch.cat([obs[group] for group in network.obs_groups], dim=-1)
    learn_statistics(network.obs_normalizer, x, rank)


def learn_statistics(normalizer: EmpiricalNormalization, x: Tensor, rank: Rank) -> None:
    """Learn from `x`, ``(samples, size)``, of all ranks, in place."""
    number = torch.full_like(normalizer.get_buffer("count"), len(x))
    new_var = torch.var(x, dim=0, correction=0, keepdim=True)
    new_mean = torch.mean(x, dim=0, keepdim=True)
    if rank.world_size > 1:
        # First the mean of all, then the variances around it (Chan, Golub and LeVeque, 1983).
        own_mean = new_mean
        rank.all_reduce(number)
        new_mean = rank.all_reduce(own_mean * len(x)) / number
        new_var = rank.all_reduce(len(x) * (new_var + (own_mean - new_mean).square())) / number
    merge_statistics(normalizer, number, new_mean, new_var)


def merge_statistics(
    normalizer: EmpiricalNormalization, number: Tensor, new_mean: Tensor, new_var: Tensor
) -> None:
    """Learn from `number` samples, 0-d, of such mean and variance, in place."""
    names = ("_mean", "_var", "_std", "count")
    mean, var, std, seen = (normalizer.get_buffer(name) for name in names)
    if normalizer.until is not None:
        number = number * (seen < normalizer.until)
    seen += number
    rate = number / seen
    difference = new_mean - mean
    mean += rate * difference
    var += rate * (new_var - var + difference * (new_mean - mean))
    torch.sqrt(var, out=std)


class Memory:
    """A model's hidden state, kept in place; empty for one that is not recurrent."""

    def __init__(self, model: MLPModel, num_steps: int = 1) -> None:
        """`model` has been called, and so has a state; `num_steps` is the length of `before`."""
        self._model = model
        state = model.get_hidden_state()
        self._is_tuple = isinstance(state, tuple)
        self.tensors = [torch.zeros_like(part) for part in _parts(state)]
        self.before = [part.new_zeros(num_steps, *part.shape) for part in self.tensors]
        """States before each step of a rollout, as rsl_rl's storage has them: `save` writes the
        first, and trajectories that begin later begin with 0."""

    def save(self) -> None:
        """Write the present state to the first of `before`."""
        for before, tensor in zip(self.before, self.tensors, strict=True):
            before[0].copy_(tensor)

    def restore(self) -> None:
        """Restore the state that `save` wrote, in place."""
        for before, tensor in zip(self.before, self.tensors, strict=True):
            tensor.copy_(before[0])

    def recall(self) -> None:
        """Let the model continue from the state."""
        self._set(self.tensors)

    def keep(self) -> None:
        """Take over the model's state, in place."""
        for tensor, part in zip(self.tensors, _parts(self._model.get_hidden_state()), strict=True):
            tensor.copy_(part)

    def forget(self, dones: Tensor) -> None:
        """Set the state of environments in `dones`, ``(num_envs,)``, to zero, in place."""
        for tensor in self.tensors:
            tensor.masked_fill_(dones.to(torch.bool).unsqueeze(-1), 0.0)

    def forget_within_autograd(self, dones: Tensor) -> None:
        """Zero the model's state in `dones`, ``(num_envs,)``, out of place, for autograd."""
        mask = dones.to(torch.bool).unsqueeze(-1)
        self._set([part.masked_fill(mask, 0.0) for part in _parts(self._model.get_hidden_state())])

    def _set(self, parts: list[Tensor]) -> None:
        if parts:
            self._model.reset(hidden_state=tuple(parts) if self._is_tuple else parts[0])


@contextmanager
def remembering(memories: Sequence[Memory]) -> Iterator[None]:
    """Within, models continue from their hidden states; at the end, the new ones are kept."""
    for memory in memories:
        memory.recall()
    yield
    for memory in memories:
        memory.keep()


def _parts(state: Tensor | tuple[Tensor, ...] | None) -> list[Tensor]:
    """A hidden state of rsl_rl's as tensors: a GRU's is one, an LSTM's two."""
    if state is None:
        return []
    return list(state) if isinstance(state, tuple) else [state]


def load_network(network: MLPModel, state: dict[str, Tensor]) -> None:
    """Take over a checkpoint's parameters and normalization, in place; ConfigError if they do not
    fit."""
    own = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    saved = {name: tuple(t.shape) for name, t in state.items()}
    if own != saved:
        name = min(n for n in {*own, *saved} if own.get(n) != saved.get(n))
        there, here = (shapes.get(name, "missing") for shapes in (saved, own))
        raise ConfigError(
            "the checkpoint is of another network, or of a task with other observations or "
            f"actions: {name} is {there} in the checkpoint and {here} here"
        )
    network.load_state_dict(state)


class Policy:
    """The mean of a policy's actions; a recurrent policy keeps its hidden state."""

    def __init__(
        self, cfg: ActorCfg, obs: TensorDict, num_actions: int, state: dict[str, Tensor]
    ) -> None:
        """Make the network and `load` a checkpoint's ``actor_state_dict``."""
        self.actor: MLPModel = make_actor(cfg, obs, num_actions).to(obs.device or "cpu").eval()
        self.load(state)

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over parameters and normalization, in place; ConfigError if shapes differ."""
        load_network(self.actor, state)

    @torch.inference_mode()
    def __call__(self, obs: TensorDict, fresh: Tensor | None = None) -> Tensor:
        """Actions, ``(num_envs, num_actions)``, for observations ``{group: (num_envs, *shape)}``.

        `fresh`, boolean ``(num_envs,)``, marks environments whose episode begins; None for none.
        """
        if fresh is not None:
            self.actor.reset(fresh)
        actions: Tensor = self.actor(obs)
        return actions
