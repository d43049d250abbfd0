"""Networks grow without changing what they compute."""

import copy

import numpy as np
import pytest
import torch
from rsl_rl.modules import MLP

from simtrain.algorithms import network_morphism as morphism

WIDTHS = (12, 9, 7)


@pytest.mark.parametrize("activation", ["elu", "relu", "selu", "tanh"])
@pytest.mark.parametrize("seed", range(4))
def test_a_grown_network_computes_the_same(activation, seed):
    before = MLP(5, 3, list(WIDTHS), activation)
    layers = morphism.grown(before, activation, np.random.default_rng(seed))
    sizes = morphism.hidden_sizes(layers)
    assert len(sizes) + sum(sizes) > len(WIDTHS) + sum(WIDTHS)
    after = MLP(5, 3, list(sizes), activation)
    morphism.set_layers(after, layers)
    x = 3.0 * torch.randn(100, 5)
    torch.testing.assert_close(after(x), before(x), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("activation", "depths"), [("elu", {3, 4}), ("tanh", {3})])
def test_networks_become_deeper_where_the_activation_allows_it(activation, depths):
    mlp, rng = MLP(5, 3, list(WIDTHS), activation), np.random.default_rng(0)
    sizes = [morphism.hidden_sizes(morphism.grown(mlp, activation, rng)) for _ in range(50)]
    assert {len(each) for each in sizes} == depths


def test_noise_changes_a_tenth_of_the_weights_and_no_bias():
    mlp = MLP(50, 50, [100, 100], "elu")
    before = copy.deepcopy(mlp.state_dict())
    morphism.add_noise(mlp, np.random.default_rng(0))
    for name, values in mlp.state_dict().items():
        change = values - before[name]
        if "bias" in name:
            assert not change.any()
        else:
            assert 0.05 < float((change != 0.0).float().mean()) < 0.15
            noise = float(change[change != 0.0].std())
            assert noise == pytest.approx(0.1 * float(before[name].std()), rel=0.2)
