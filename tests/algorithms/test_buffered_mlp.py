"""Networks in buffers against the same networks under autograd."""

from typing import get_args

import pytest
import torch
from rsl_rl.modules import MLP

from simtrain.algorithms.cfg import Activation
from simtrain.algorithms.learners.buffered_mlp import BufferedMlp


@pytest.mark.parametrize("activation", get_args(Activation))
def test_outputs_and_gradients_are_those_of_autograd(activation):
    mlp = MLP(5, 2, (16, 8), activation)
    for parameter in mlp.parameters():
        parameter.data.mul_(3.0)  # so that activations saturate, too
        parameter.grad = torch.full_like(parameter, 7.0)  # left from before
    buffered = BufferedMlp(mlp, 50)
    for count in (40, 7):
        x, gradient, out = 2.0 * torch.randn(count, 5), torch.randn(count, 2), torch.zeros(50, 2)
        with torch.no_grad():
            buffered(x, out=out[1 : count + 1])
            buffered.backward(gradient)
        mine = [parameter.grad.clone() for parameter in mlp.parameters()]
        for parameter in mlp.parameters():
            parameter.grad.zero_()
        expected = mlp(x)
        expected.backward(gradient)
        torch.testing.assert_close(out[1 : count + 1], expected.detach(), rtol=1e-5, atol=2e-6)
        assert not out[[0, count + 1]].any()
        for parameter, other in zip(mlp.parameters(), mine, strict=True):
            torch.testing.assert_close(other, parameter.grad, rtol=1e-4, atol=1e-4)
    with torch.no_grad():  # so that a step from it is skipped
        assert buffered(torch.full((1, 5), torch.nan)).isnan().all()
