"""Larger feed-forward networks that compute the same function as smaller ones.

Chen, Goodfellow and Shlens, "Net2Net: accelerating learning via knowledge transfer", 2016
(https://arxiv.org/abs/1511.05641). A layer is widened by copies of random units, between which
what they pass on is shared out. A layer is added as the identity, shifted to where the activation
function is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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


def can_deepen(activation: str) -> bool:
    """Whether a layer that changes nothing can be added with such an activation function."""
    return activation in _IDENTITY_ABOVE_ZERO


def widened(layers: Layers, index: int, width: int, rng: np.random.Generator) -> Layers:
    """The layers with hidden layer `index` grown to `width` units, the same function."""
    (weight, bias), (after, after_bias) = layers[index], layers[index + 1]
    units = len(bias)
    copied = np.append(np.arange(units), rng.integers(units, size=width - units))
    source = torch.as_tensor(copied).to(weight.device)
    count = torch.as_tensor(np.bincount(copied)).to(weight.device)
    grown = list(layers)
    grown[index] = weight[source], bias[source]
    grown[index + 1] = (after / count)[:, source], after_bias
    return grown


def deepened(layers: Layers, index: int, activation: str) -> Layers:
    """The layers with one more of the same width after hidden layer `index`, the same function."""
    scale, least = _IDENTITY_ABOVE_ZERO[activation]
    after, after_bias = layers[index + 1]
    units = after.shape[1]
    shift = -least
    identity = torch.eye(units, device=after.device) / scale
    added = identity, torch.full((units,), shift / scale, device=after.device)
    follows = after, after_bias - shift * after.sum(dim=1)
    return [*layers[: index + 1], added, follows, *layers[index + 2 :]]


def grow(
    hidden_dims: tuple[int, ...], activation: str, rng: np.random.Generator
) -> tuple[tuple[int, ...], Callable[[Layers], Layers]]:
    """A random growth: the sizes that it leads to, and what it does to a network's layers."""
    index = int(rng.integers(len(hidden_dims)))
    if can_deepen(activation) and rng.random() < 0.5:
        dims = (*hidden_dims[: index + 1], *hidden_dims[index:])
        return dims, lambda layers: deepened(layers, index, activation)
    seed = int(rng.integers(2**32))
    width = math.ceil(1.25 * hidden_dims[index])
    dims = (*hidden_dims[:index], width, *hidden_dims[index + 1 :])
    return dims, lambda layers: widened(layers, index, width, np.random.default_rng(seed))


def layers_of(mlp: nn.Sequential) -> Layers:
    """Copies of the linear layers of a network."""
    linear = (layer for layer in mlp if isinstance(layer, nn.Linear))
    return [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in linear]


@torch.no_grad()
def set_layers(mlp: nn.Sequential, layers: Layers) -> None:
    """Take over linear layers, in place; shapes are the network's."""
    linear = [layer for layer in mlp if isinstance(layer, nn.Linear)]
    for layer, (weight, bias) in zip(linear, layers, strict=True):
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def sizes_of(mlp: nn.Sequential) -> tuple[int, ...]:
    """Units of each hidden layer of a network."""
    return tuple(layer.out_features for layer in mlp if isinstance(layer, nn.Linear))[:-1]


@torch.no_grad()
def add_noise(mlp: nn.Sequential, rng: np.random.Generator) -> None:
    """Add Gaussian noise to a random share of a network's weights, in place."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    for layer in mlp:
        if isinstance(layer, nn.Linear):
            shape = layer.weight.shape
            noise = NOISE * torch.randn(shape, generator=generator)
            noise *= torch.rand(shape, generator=generator) < NOISY_SHARE
            layer.weight += noise.to(layer.weight.device) * layer.weight.std()
