"""Parameters and gradients in one tensor each: which parameters, and states."""

import torch
from against_rsl_rl import ALONE
from torch import nn

from simtrain.algorithms.flat_adam import FlatAdam


def test_frozen_parameters_have_no_place():
    network = nn.Linear(3, 4)
    network.bias.requires_grad_(False)
    assert FlatAdam([network.parameters()], ALONE, learning_rate=1.0).gradients.numel() == 12
    assert network.bias.grad is None


def test_a_state_from_before_the_first_step_begins_without_moments():
    network = nn.Linear(3, 4)
    optimizer = FlatAdam([network.parameters()], ALONE, learning_rate=1e-2)
    network(torch.ones(5, 3)).square().sum().backward()
    optimizer.clip_and_step(None)
    assert optimizer.state_dict()["state"][0]["exp_avg"].any()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})  # as Adam has it there
    for moments in optimizer.state_dict()["state"].values():
        assert not any(value.any() for value in moments.values())
