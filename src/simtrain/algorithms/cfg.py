"""Settings of PPO: the dataclasses behind the ``--ppo.*`` flags. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Suppress

from simtrain.limits import LARGEST_INT, Count, Factor, Fraction, Limits, Positive

MODELS = ("mlp", "gru", "lstm", "cnn")
"""Kinds of networks that rsl_rl has."""

Flag = Annotated[
    bool,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[True|False]",
        instance_from_str=lambda words: _truth(words[0]) if words else True,
        is_instance=lambda value: isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""A boolean whose flag alone means True."""
Sizes = Annotated[tuple[int, ...], Limits(1, 2**16, required=True)]
"""Units or channels of each layer."""
PerLayer = Annotated[tuple[int, ...], Limits(1, LARGEST_INT, required=True)]
ObsGroups = Annotated[tuple[str, ...], Limits(required=True)]
Rate = Annotated[float, Limits(1e-12, 1e3)]
Kl = Annotated[float, Limits(1e-12, 1e6)]
Epochs = Annotated[int, Limits(1, 1000)]
EnvStep = Annotated[int, Limits(0, 10**12)]
Activation = Literal["elu", "relu", "tanh", "gelu", "swish", "selu", "softplus", "mish"]


@dataclass
class CnnCfg:
    """Convolutional layers for groups of images; a single number applies to all layers."""

    output_channels: Sizes = (16, 32)
    """Channels of each layer's output."""
    kernel_size: Annotated[tuple[int, ...], Limits(1, 1024, required=True)] = (3,)
    """Rows and columns of each layer's kernel."""
    stride: PerLayer = (2,)
    """Stride of each layer."""
    dilation: PerLayer = (1,)
    """Dilation of each layer."""
    padding: Literal["none", "zeros", "reflect", "replicate", "circular"] = "zeros"
    """Padding around an image."""
    norm: Literal["none", "layer"] = "none"
    """Normalization after each layer."""
    max_pool: bool = False
    """Halve rows and columns after each layer, by the maximum of 3 x 3."""
    global_pool: Literal["none", "max", "avg"] = "none"
    """Reduction of each channel at the end: none, its maximum or its mean."""

    def settings(self) -> dict[str, Any]:
        """The settings as rsl_rl's CNN takes them."""
        lists = ("kernel_size", "stride", "dilation")
        values = vars(self).items()
        return {n: v[0] if n in lists and len(v) == 1 else v for n, v in values}


@dataclass
class NetworkCfg:
    """Settings that actor and critic share."""

    hidden_dims: Sizes = (256, 256, 256)
    """Units of each hidden layer, also of the layers after recurrent or convolutional ones."""
    activation: Activation = "elu"
    """Activation function."""
    obs_normalization: bool = True
    """Normalize flat observations by their running mean and standard deviation."""
    model: str = "mlp"
    """Kind of network: mlp; gru or lstm, which have a memory; cnn, for groups of images; or your
    own class, as package.module:Class, derived from rsl_rl.models.MLPModel."""
    rnn_hidden_dim: Annotated[int, Limits(1, 2**16)] = 256
    """Units of the layers of a gru or lstm."""
    rnn_num_layers: Annotated[int, Limits(1, 64)] = 1
    """Layers of a gru or lstm."""
    cnn: CnnCfg = field(default_factory=CnnCfg)


@dataclass
class CriticCfg(NetworkCfg):
    """The value network."""

    obs_groups: ObsGroups = ("critic",)
    """Observation groups of its input, in this order; if the task has no group of this name, those
    of the actor."""


@dataclass
class ActorCfg(NetworkCfg):
    """The policy network: a distribution for each action."""

    obs_groups: ObsGroups = ("actor",)
    """Observation groups of its input, in this order."""
    distribution: Literal["gaussian", "heteroscedastic", "beta"] = "gaussian"
    """Distribution of actions: a Gaussian with the same standard deviation in all states
    (gaussian), or with one that depends on the state (heteroscedastic); or a Beta distribution
    within --ppo.actor.action-range."""
    action_range: Annotated[tuple[float, float], Limits(-1e9, 1e9, ordered=True)] = (-1.0, 1.0)
    """Bounds of the actions of a Beta distribution."""
    init_std: Positive = 1.0
    """Standard deviation of the actions at the start of training."""
    std_type: Literal["scalar", "log"] = "scalar"
    """Learned parameter: the standard deviation or its logarithm."""
    std_range: Annotated[tuple[float, float], Limits(1e-12, 1e12, ordered=True)] = (1e-6, 1e6)
    """Bounds of the standard deviation. With a lower bound, the policy keeps exploring when it has
    nothing left to gain. Without noise, the differences between advantages vanish, and updates
    follow the errors of the value function."""


@dataclass
class SymmetryCfg:
    """Mirrored samples, for a task that declares its symmetry."""

    augment: Flag = False
    """Learn from the mirror image of every sample too."""
    mirror_loss_coef: Factor = 0.0
    """Weight of a loss: the mean squared difference between the actions for mirrored observations
    and the mirrored actions."""

    @property
    def is_used(self) -> bool:
        """Whether training needs mirror images."""
        return self.augment or self.mirror_loss_coef > 0.0


@dataclass
class RndCfg:
    """Random network distillation, an intrinsic reward for new states, with rsl_rl's names."""

    weight: float = 0.0
    """Weight of the intrinsic reward, per second; 0 for none."""
    obs_groups: ObsGroups = ("rnd_state",)
    """Observation groups that describe a state; if the task has no group of this name, those of the
    actor."""
    weight_schedule: Literal["constant", "step", "linear"] = "constant"
    """Change of the weight to final-value: never, at final-step, or gradually from initial-step
    on."""
    initial_step: EnvStep = 0
    """Control step of each environment at which a linear schedule begins."""
    final_step: EnvStep = 0
    """Control step of each environment at which the schedule ends."""
    final_value: float = 0.0
    """Weight at the end of the schedule, per second."""
    state_normalization: bool = False
    """Normalize states by their running mean and standard deviation."""
    reward_normalization: bool = False
    """Divide the reward by the running standard deviation of its discounted sum."""
    learning_rate: Rate = 1e-3
    """Adam's learning rate for the predictor."""
    num_outputs: Count = 1
    """Outputs of predictor and target."""
    predictor_hidden_dims: Sizes = (64,)
    """Units of each hidden layer of the predictor, the trained network."""
    target_hidden_dims: Sizes = (64,)
    """Units of each hidden layer of the target, the fixed random network."""


@dataclass
class PpoCfg:
    """Proximal policy optimization (Schulman et al. 2017), with rsl_rl's names and defaults."""

    actor: ActorCfg = field(default_factory=ActorCfg)
    critic: CriticCfg = field(default_factory=CriticCfg)
    rnd: RndCfg = field(default_factory=RndCfg)
    num_learning_epochs: Epochs = 5
    """Passes over each rollout."""
    num_mini_batches: Annotated[int, Limits(1, 10**5)] = 4
    """Mini-batches per pass."""
    learning_rate: Rate = 1e-3
    """Adam's learning rate at the start."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """Whether the learning rate is adapted to the KL divergence of each mini-batch."""
    desired_kl: Kl = 0.01
    """Target KL divergence of the adaptive schedule."""
    desired_kl_end: Kl | None = None
    """Target KL divergence at the end of training; it changes linearly. None keeps it constant."""
    gamma: Fraction = 0.99
    """Discount factor."""
    lam: Fraction = 0.95
    """Lambda of generalized advantage estimation."""
    clip_param: Annotated[float, Limits(1e-6, 1e6)] = 0.2
    """Clipping range of the probability ratio, and of the value if it is clipped."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    entropy_coef_end: float | None = None
    """Weight of the entropy bonus at the end of training; it changes linearly. None keeps it
    constant."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    use_clipped_value_loss: bool = True
    """Clip the change of the value, too."""
    max_grad_norm: Positive = 1.0
    """Maximum gradient norm, for actor and critic separately."""
    normalize_advantage_per_mini_batch: bool = False
    """Normalize advantages in each mini-batch instead of over the rollout."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Optimizer."""
    symmetry: SymmetryCfg = field(default_factory=SymmetryCfg)


@dataclass
class DistillationCfg:
    """Distillation of a teacher into a student, with rsl_rl's names."""

    teacher: Suppress[ActorCfg] = field(default_factory=ActorCfg)
    """The network of the teacher, which the command takes from the teacher's run."""
    num_learning_epochs: Epochs = 4
    """Passes over each rollout."""
    gradient_length: Count = 8
    """Steps of a mini-batch, over which gradients of a recurrent student are propagated; a divisor
    of --num-steps-per-env."""
    learning_rate: Rate = 1e-3
    """Adam's learning rate."""
    learning_rate_end: Rate | None = None
    """Learning rate at the end of training; it changes linearly. None keeps it constant."""
    max_grad_norm: Positive | None = None
    """Maximum gradient norm; None for no limit."""
    loss_type: Literal["mse", "huber"] = "mse"
    """Distance between the actions of student and teacher."""


def _truth(word: str) -> bool:
    if word not in ("True", "False"):
        raise ValueError(f"{word!r} is neither True nor False")
    return word == "True"
