"""Settings of PPO: the dataclasses behind the ``--ppo.*`` flags. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Activation = Literal["elu", "relu", "tanh", "gelu", "swish", "selu", "softplus", "mish"]


@dataclass
class NetworkCfg:
    """Settings that actor and critic share."""

    hidden_dims: tuple[int, ...] = (256, 256, 256)
    """Units of each hidden layer."""
    activation: Activation = "elu"
    """Activation function."""
    obs_normalization: bool = True
    """Normalize observations by their running mean and standard deviation."""


@dataclass
class CriticCfg(NetworkCfg):
    """The value network."""

    obs_groups: tuple[str, ...] = ("critic",)
    """Observation groups that it sees, one after the other; falls back to the actor's groups if the
    task has no group of this name."""


@dataclass
class ActorCfg(NetworkCfg):
    """The policy network, a Gaussian with a standard deviation of its own for each action."""

    obs_groups: tuple[str, ...] = ("actor",)
    """Observation groups that it sees, one after the other."""
    init_std: float = 1.0
    """Standard deviation of the first policy's actions."""
    std_type: Literal["scalar", "log"] = "scalar"
    """What is learned: the standard deviation or its logarithm."""
    std_range: tuple[float, float] = (1e-6, 1e6)
    """Bounds of the standard deviation. A lower bound keeps a policy exploring that has nothing
    left to gain: as noise vanishes, so do differences between advantages, and an update then goes
    wherever errors of the value function point."""


@dataclass
class PpoCfg:
    """Proximal policy optimization (Schulman et al. 2017), with rsl_rl's names and defaults."""

    actor: ActorCfg = field(default_factory=ActorCfg)
    critic: CriticCfg = field(default_factory=CriticCfg)
    num_learning_epochs: int = 5
    """Passes over each rollout."""
    num_mini_batches: int = 4
    """Mini-batches a pass."""
    learning_rate: float = 1e-3
    """Adam's learning rate at the start."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """Whether the learning rate follows the KL divergence of each mini-batch."""
    desired_kl: float = 0.01
    """KL divergence that the adaptive schedule aims at."""
    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip_param: float = 0.2
    """Clipping range of the probability ratio, and of the value if that is clipped."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    use_clipped_value_loss: bool = True
    """Clip the change of the value as well."""
    max_grad_norm: float = 1.0
    """Largest gradient norm, of actor and critic separately."""
    normalize_advantage_per_mini_batch: bool = False
    """Normalize advantages in each mini-batch rather than over the rollout."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Optimizer."""
