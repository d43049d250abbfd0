"""Parameters and gradients in one tensor each: clipping, steps and states."""

from __future__ import annotations

import copy

import pytest
import torch
from against_rsl_rl import ALONE
from torch import nn

from simtrain.algorithms.flat_adam import FlatAdam


def networks() -> list[nn.Sequential]:
    return [nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 2)) for _ in range(2)]


def flat(models: list[nn.Sequential]) -> FlatAdam:
    parameters = [list(network.parameters()) for network in models]
    return FlatAdam(parameters, ALONE, learning_rate=1e-2, extra=1)


def backward(models: list[nn.Sequential]) -> None:
    sum((10.0**i) * net(torch.ones(5, 3)).square().sum() for i, net in enumerate(models)).backward()


def test_frozen_parameters_have_no_place():
    network = nn.Linear(3, 4)
    network.bias.requires_grad_(False)
    assert FlatAdam([network.parameters()], ALONE, learning_rate=1.0).gradients.numel() == 12
    assert network.bias.grad is None


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_steps_are_torchs_with_each_network_clipped_by_itself(kind):
    models = networks()
    single = copy.deepcopy(models)
    parameters = [list(network.parameters()) for network in models]
    optimizer = FlatAdam(parameters, ALONE, learning_rate=1e-2, kind=kind)
    usual = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    theirs = usual([p for network in single for p in network.parameters()], lr=1e-2)
    for _ in range(3):
        optimizer.gradients.zero_()
        theirs.zero_grad()
        backward(models)
        backward(single)
        small, large = optimizer.norms().tolist()
        assert large > 2.0 * small
        optimizer.clip_and_step(2.0 * small)
        for network in single:
            nn.utils.clip_grad_norm_(network.parameters(), 2.0 * small)
        theirs.step()
        for mine, other in zip(models, single, strict=True):
            torch.testing.assert_close(mine.state_dict(), other.state_dict())


def test_a_state_of_other_networks_is_refused():
    other = FlatAdam([nn.Linear(3, 4).parameters()], ALONE, learning_rate=1.0)
    with pytest.raises(RuntimeError, match="networks of other shapes"):
        flat(networks()).load_state_dict(other.state_dict())


def test_a_state_from_before_the_first_step_begins_without_moments():
    models = networks()
    optimizer = flat(models)
    backward(models)
    optimizer.clip_and_step(None)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})  # as Adam has it there
    for moments in optimizer.state_dict()["state"].values():
        assert not any(value.any() for value in moments.values())
