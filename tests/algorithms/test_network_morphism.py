"""Networks grow without changing what they compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rsl_rl.modules import MLP

from simtrain.algorithms import network_morphism as morphism

WIDTHS = (12, 9, 7)


@pytest.mark.parametrize("activation", ["elu", "relu", "selu", "tanh", "gelu", "swish"])
@pytest.mark.parametrize("seed", range(6))
def test_a_grown_network_computes_the_same(activation, seed):
    rng = np.random.default_rng(seed)
    before = MLP(5, 3, list(WIDTHS), activation)
    sizes, change = morphism.grow(WIDTHS, activation, rng)
    after = MLP(5, 3, list(sizes), activation)
    morphism.set_layers(after, change(morphism.layers_of(before)))
    assert morphism.sizes_of(after) == sizes
    assert len(sizes) + sum(sizes) > len(WIDTHS) + sum(WIDTHS)
    x = 3.0 * torch.randn(100, 5)
    torch.testing.assert_close(after(x), before(x), atol=2e-5, rtol=1e-5)


def test_networks_become_deeper_where_the_activation_allows_it():
    for activation, deepens in {"elu": True, "selu": True, "relu": True, "tanh": False}.items():
        rng = np.random.default_rng(0)
        depths = {len(morphism.grow(WIDTHS, activation, rng)[0]) for _ in range(50)}
        assert depths == ({3, 4} if deepens else {3})


def test_noise_changes_a_tenth_of_the_weights_and_no_bias():
    mlp = MLP(50, 50, [100, 100], "elu")
    before = morphism.layers_of(mlp)
    morphism.add_noise(mlp, np.random.default_rng(0))
    for (weight, bias), (was, bias_was) in zip(morphism.layers_of(mlp), before, strict=True):
        changed = weight != was
        assert 0.05 < float(changed.float().mean()) < 0.15
        assert float((weight - was)[changed].std()) == pytest.approx(
            0.1 * float(was.std()), rel=0.2
        )
        assert torch.equal(bias, bias_was)
