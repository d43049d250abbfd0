"""Networks in buffers against the same networks under autograd."""

from typing import get_args

import pytest
import torch
from rsl_rl.modules import MLP
from torch import nn

from simtrain.algorithms.cfg import Activation
from simtrain.algorithms.learners.buffered_mlp import BufferedMlp


def _pair(activation: str, rows: int = 50) -> tuple[MLP, BufferedMlp]:
    torch.manual_seed(0)
    mlp = MLP(5, 2, (16, 8), activation)
    for parameter in mlp.parameters():
        parameter.data.mul_(3.0)  # so that activations saturate, too
        parameter.grad = torch.full_like(parameter, 7.0)  # left from before
    return mlp, BufferedMlp(mlp, rows)


@pytest.mark.parametrize("activation", get_args(Activation))
def test_outputs_and_gradients_are_those_of_autograd(activation):
    mlp, buffered = _pair(activation)
    for count in (40, 7):
        x, gradient = 2.0 * torch.randn(count, 5), torch.randn(count, 2)
        with torch.no_grad():
            output = buffered(x).clone()
            buffered.backward(gradient)
        mine = [parameter.grad.clone() for parameter in mlp.parameters()]
        for parameter in mlp.parameters():
            parameter.grad.zero_()
        expected = mlp(x)
        expected.backward(gradient)
        torch.testing.assert_close(output, expected.detach(), rtol=1e-5, atol=2e-6)
        for parameter, other in zip(mlp.parameters(), mine, strict=True):
            torch.testing.assert_close(other, parameter.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", get_args(Activation))
def test_numbers_that_are_not_finite_go_through(activation):
    _, buffered = _pair(activation)
    with torch.no_grad():
        assert buffered(torch.full((1, 5), torch.nan)).isnan().all()


def test_outputs_go_where_they_are_wanted():
    mlp, buffered = _pair("tanh")
    x, out = torch.randn(4, 5), torch.zeros(6, 2)
    with torch.no_grad():
        buffered(x, out=out[1:5])
        torch.testing.assert_close(out[1:5], mlp(x))
    assert (out[[0, 5]] == 0.0).all()


def test_more_samples_than_there_are_buffers_for_are_refused():
    _, buffered = _pair("elu", rows=3)
    with pytest.raises(ValueError, match="4 samples, but there are buffers for 3"):
        buffered(torch.zeros(4, 5))


def test_a_layer_without_a_rule_is_refused_by_name():
    with pytest.raises(TypeError, match="Hardtanh"):
        BufferedMlp(nn.Sequential(nn.Linear(2, 2), nn.Hardtanh(), nn.Linear(2, 1)), 3)
