"""The networks of a task, rsl_rl's models, and a trained policy without its exploration."""

import inspect
from typing import Any

import torch
from rsl_rl.models import CNNModel, MLPModel, RNNModel
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.cfg import ActorCfg, CriticCfg, NetworkCfg, PpoCfg
from simtrain.errors import ConfigError
from simtrain.launch.rank import Rank


def make_actor(cfg: ActorCfg, obs: TensorDict, num_actions: int) -> MLPModel:
    """The policy network; ConfigError if its groups of observations do not fit it."""
    spread: dict[str, Any] = {
        "init_std": cfg.init_std,
        "std_type": cfg.std_type,
        "std_range": cfg.std_range,
    }
    distributions: dict[str, dict[str, Any]] = {
        "gaussian": {"class_name": "GaussianDistribution", **spread},
        "heteroscedastic": {"class_name": "HeteroscedasticGaussianDistribution", **spread},
        "beta": {"class_name": "BetaDistribution", "action_range": cfg.action_range},
    }
    more = {"distribution_cfg": distributions[cfg.distribution]}
    return _make(cfg, "actor", obs, cfg.obs_groups, num_actions, more)


def make_critic(cfg: PpoCfg, obs: TensorDict) -> MLPModel:
    """The value network; without its groups of observations it sees those of the policy."""
    there = set(cfg.critic.obs_groups) <= set(obs.keys())
    groups = cfg.critic.obs_groups if there else cfg.actor.obs_groups
    return _make(cfg.critic, "critic", obs, groups, 1, {})


def find_model(cfg: NetworkCfg, network: str) -> type[MLPModel]:
    """The class of a model; ConfigError if there is none, of which `network` names the flag."""
    kinds: dict[str, type[MLPModel]]
    kinds = {"mlp": MLPModel, "gru": RNNModel, "lstm": RNNModel, "cnn": CNNModel}
    if cfg.model in kinds:
        return kinds[cfg.model]
    try:
        found = resolve_callable(cfg.model)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--ppo.{network}.model {cfg.model} cannot be found: {error}") from error
    if not (isinstance(found, type) and issubclass(found, MLPModel)):
        text = "is no class derived from rsl_rl.models.MLPModel"
        raise ConfigError(f"--ppo.{network}.model {cfg.model} {text}")
    return found


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
    settings |= {"hidden_dims": cfg.hidden_dims, "activation": cfg.activation}
    settings |= {"obs_normalization": cfg.obs_normalization and len(images) < len(groups)}
    own: dict[str, Any] = {n: getattr(cfg, n) for n in ("rnn_hidden_dim", "rnn_num_layers")}
    own |= {"rnn_type": cfg.model} if cfg.model in ("gru", "lstm") else {}
    own |= {"cnn_cfg": {**cfg.cnn.settings(), "activation": cfg.activation}}
    taken = inspect.signature(kind).parameters
    settings |= {n: value for n, value in own.items() if n in taken}
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


class Policy:
    """The mean of a policy's actions; a recurrent one remembers what it saw before."""

    def __init__(
        self, cfg: ActorCfg, obs: TensorDict, num_actions: int, state: dict[str, Tensor]
    ) -> None:
        """Make the network and `load` a checkpoint's ``actor_state_dict``."""
        self.actor: MLPModel = make_actor(cfg, obs, num_actions).to(obs.device or "cpu").eval()
        self.load(state)

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over parameters and normalization, in place; ConfigError if shapes differ."""
        own = {name: tuple(t.shape) for name, t in self.actor.state_dict().items()}
        saved = {name: tuple(t.shape) for name, t in state.items()}
        if own != saved:
            name = min(n for n in {*own, *saved} if own.get(n) != saved.get(n))
            there, here = (shapes.get(name, "missing") for shapes in (saved, own))
            raise ConfigError(
                "the checkpoint is of another network, or of a task with other observations or "
                f"actions: {name} is {there} in the checkpoint and {here} here"
            )
        self.actor.load_state_dict(state)

    @torch.inference_mode()
    def __call__(self, obs: TensorDict, fresh: Tensor | None = None) -> Tensor:
        """Actions, ``(num_envs, num_actions)``, for observations ``{group: (num_envs, *shape)}``.

        `fresh`, boolean ``(num_envs,)``, is whose episode begins here; None for nobody's.
        """
        if fresh is not None:
            self.actor.reset(fresh)
        actions: Tensor = self.actor(obs)
        return actions
