"""Larger feed-forward networks that compute the same function as smaller ones.

Chen, Goodfellow and Shlens, "Net2Net: accelerating learning via knowledge transfer", 2016
(https://arxiv.org/abs/1511.05641). A layer is widened by copies of random units, whose outgoing
weights are divided among the copies. A layer is added as the identity, shifted to where the
activation function is one.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

NOISE, NOISY_SHARE = 0.1, 0.1
"""Noise on weights, in standard deviations of a layer's, and the share of them that gets it."""
Layers = list[tuple[Tensor, Tensor]]  # weight ``(outputs, inputs)`` and bias of each linear layer

# Activations that are scaling by `scale` above 0, and the least value that they take.
_IDENTITY_ABOVE_ZERO: dict[str, tuple[float, float]] = {
    "relu": (1.0, 0.0),
    "elu": (1.0, -1.0),
    "selu": (1.0507009873554805, -1.0507009873554805 * 1.6732632423543772),
}


def grown(mlp: nn.Sequential, activation: str, rng: np.random.Generator) -> Layers:
    """Layers that compute the same as `mlp`: with one more, or one of them a quarter wider.

    No layer is added with an activation function that is the identity nowhere.
    """
    layers = [(layer.weight.detach(), layer.bias.detach()) for layer in _linear(mlp)]
    index = int(rng.integers(len(layers) - 1))
    if activation in _IDENTITY_ABOVE_ZERO and rng.random() < 0.5:
        return _deepened(layers, index, activation)
    return _widened(layers, index, np.random.default_rng(int(rng.integers(2**32))))


def hidden_sizes(layers: Layers) -> tuple[int, ...]:
    """Units of each hidden layer."""
    return tuple(len(bias) for _, bias in layers[:-1])


@torch.no_grad()
def set_layers(mlp: nn.Sequential, layers: Layers) -> None:
    """Take over linear layers, in place; shapes are the network's."""
    for layer, (weight, bias) in zip(_linear(mlp), layers, strict=True):
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


@torch.no_grad()
def add_noise(mlp: nn.Sequential, rng: np.random.Generator) -> None:
    """Add Gaussian noise to a random share of a network's weights, in place."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    for layer in _linear(mlp):
        noise = NOISE * torch.randn(layer.weight.shape, generator=generator)
        noise *= torch.rand(layer.weight.shape, generator=generator) < NOISY_SHARE
        layer.weight += noise.to(layer.weight.device) * layer.weight.std()


def _linear(mlp: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in mlp if isinstance(layer, nn.Linear)]


def _widened(layers: Layers, index: int, rng: np.random.Generator) -> Layers:
    (weight, bias), (after, after_bias) = layers[index : index + 2]
    units = len(bias)
    width = math.ceil(1.25 * units)
    copied = np.append(np.arange(units), rng.integers(units, size=width - units))
    source = torch.as_tensor(copied).to(weight.device)
    count = torch.as_tensor(np.bincount(copied)).to(weight.device)
    wider = [(weight[source], bias[source]), ((after / count)[:, source], after_bias)]
    return [*layers[:index], *wider, *layers[index + 2 :]]


def _deepened(layers: Layers, index: int, activation: str) -> Layers:
    scale, least = _IDENTITY_ABOVE_ZERO[activation]
    after, after_bias = layers[index + 1]
    units = after.shape[1]
    identity = torch.eye(units, device=after.device) / scale
    added = identity, torch.full((units,), -least / scale, device=after.device)
    follows = after, after_bias + least * after.sum(dim=1)
    return [*layers[: index + 1], added, follows, *layers[index + 2 :]]
