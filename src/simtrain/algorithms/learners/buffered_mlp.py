"""A feed-forward network forward and backward without autograd, in buffers that are made once.

Small networks on CPU threads spend much of their time on allocation, autograd's own work and slow
forms of activation functions; here a pass is matrix products and activations alone. Nothing waits
for the device. The storage of the parameters and of their ``.grad`` must stay the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor, nn

_MINUS_ONE = torch.tensor(-1.0)


class BufferedMlp:
    """Computes an rsl_rl MLP for up to `rows` samples at a time, and its gradients."""

    def __init__(self, mlp: nn.Sequential, rows: int) -> None:
        """Make the buffers."""
        self._linears = [layer for layer in mlp if isinstance(layer, nn.Linear)]
        self._layers = [
            _Layer(layer.weight.detach(), layer.bias.detach(), layer.weight.detach().t())
            for layer in self._linears
        ]
        self._activations = [_ACTIVATIONS[type(x)] for x in mlp if not isinstance(x, nn.Linear)]
        outputs = [layer.bias.new_zeros(rows, len(layer.bias)) for layer in self._layers]
        pairs = list(zip(outputs, self._activations, strict=False))
        after = [out if activation.in_place else torch.zeros_like(out) for out, activation in pairs]
        self._buffers = _Buffers(outputs, after, [torch.zeros_like(out) for out, _ in pairs])
        self._transposed = [torch.zeros_like(layer.transposed) for layer in self._layers]
        self._input = outputs[-1]
        self._views: dict[int, _Buffers] = {}

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The network's output, ``(samples, size)``, in `out` or in a buffer of the next call."""
        views = self._rows_of(len(x))
        self._input = x
        *hidden, last = self._layers
        steps = zip(hidden, self._activations, views.outputs[:-1], views.after, strict=True)
        for layer, activation, before, after in steps:
            activation.linear(layer, x, before)
            activation.forward(before, after)
            x = after
        out = views.outputs[-1] if out is None else out
        return torch.addmm(last.bias, x, last.transposed, out=out)

    def backward(self, gradient: Tensor) -> None:
        """Overwrite the parameters' ``.grad``, in place, from the latest output's `gradient`."""
        views = self._rows_of(len(gradient))
        inputs = [self._input, *views.after]
        for i in reversed(range(len(self._layers))):
            x, weight = inputs[i], self._linears[i].weight
            assert weight.grad is not None
            # BLAS is several times faster where the longer side of so flat a product comes last.
            if weight.shape[1] < weight.shape[0]:
                weight.grad.copy_(torch.mm(x.t(), gradient, out=self._transposed[i]).t())
            else:
                torch.mm(x.t(), gradient, out=weight.grad.t())
            torch.sum(gradient, dim=0, out=self._linears[i].bias.grad)
            if i > 0:
                before = torch.mm(gradient, self._layers[i].weight, out=views.gradients[i - 1])
                self._activations[i - 1].backward(before, views.outputs[i - 1], x)
                gradient = before

    def _rows_of(self, count: int) -> _Buffers:
        """The buffers' first `count` rows."""
        if count not in self._views:
            views = ([buffer[:count] for buffer in buffers] for buffers in self._buffers)
            self._views[count] = _Buffers(*views)
        return self._views[count]


def normalized_input(network: MLPModel, obs: TensorDict, out: Tensor) -> Tensor:
    """The observation groups that a network sees, side by side and normalized, in `out`."""
    torch.cat([obs[group] for group in network.obs_groups], dim=-1, out=out)
    if network.obs_normalization:
        normalizer = network.obs_normalizer
        out.sub_(normalizer.get_buffer("_mean"))
        out.div_(normalizer.get_buffer("_std") + normalizer.eps)
    return out


class _Layer(NamedTuple):
    weight: Tensor
    bias: Tensor
    transposed: Tensor


class _Buffers(NamedTuple):
    """Tensors by layer, with a row for each sample."""

    outputs: list[Tensor]
    """Outputs of the linear layers: the activation functions' inputs, and the network's output."""
    after: list[Tensor]
    """The activation functions' outputs; the same tensors where a function works in place."""
    gradients: list[Tensor]
    """Gradients by the activation functions' inputs."""


class _Activation:
    """An activation function between buffers; in this class, ATen's with its derivative."""

    in_place = False
    """Whether its derivative is a function of its value, so that it needs no second buffer."""

    def __init__(self, name: str, *constants: float) -> None:
        self._forward = getattr(torch.ops.aten, name).out
        self._backward = getattr(torch.ops.aten, f"{name}_backward")
        self._constants = constants

    def linear(self, layer: _Layer, x: Tensor, out: Tensor) -> None:
        """Write the layer's output in the form that `forward` takes."""
        torch.addmm(layer.bias, x, layer.transposed, out=out)

    def forward(self, before: Tensor, after: Tensor) -> None:
        self._forward(before, *self._constants, out=after)

    def backward(self, gradient: Tensor, before: Tensor, after: Tensor) -> None:
        """Turn the gradient by `after` into that by `before`, in place."""
        given = after if self.in_place else before
        self._backward.grad_input(gradient, given, *self._constants, grad_input=gradient)


class _Tanh(_Activation):
    in_place = True

    def linear(self, layer: _Layer, x: Tensor, out: Tensor) -> None:
        factor = 1 if x.is_cuda else 2
        torch.addmm(layer.bias, x, layer.transposed, beta=factor, alpha=factor, out=out)

    def forward(self, before: Tensor, after: Tensor) -> None:
        if before.is_cuda:
            before.tanh_()
        else:
            # tanh x = 2 sigmoid 2x - 1, which torch computes in a third of the time.
            torch.add(_MINUS_ONE, before.sigmoid_(), alpha=2.0, out=before)


class _Elu(_Activation):
    def __init__(self, alpha: float, scale: float) -> None:
        super().__init__("elu", alpha, scale, 1.0)
        self._simple = alpha == scale == 1.0

    def forward(self, before: Tensor, after: Tensor) -> None:
        if before.is_cuda or not self._simple:
            super().forward(before, after)
        else:
            # The same in half the time; e^x - 1 >= x.
            torch.clamp(before, max=0.0, out=after).exp_().sub_(1.0)
            torch.maximum(after, before, out=after)

    def backward(self, gradient: Tensor, before: Tensor, after: Tensor) -> None:
        constants = (*self._constants, True)  # by the function's value
        self._backward.grad_input(gradient, *constants, after, grad_input=gradient)


class _Relu(_Activation):
    in_place = True

    def forward(self, before: Tensor, after: Tensor) -> None:
        before.relu_()


class _Mish(_Activation):
    def backward(self, gradient: Tensor, before: Tensor, after: Tensor) -> None:
        gradient.copy_(self._backward(gradient, before))


_ACTIVATIONS: dict[type[nn.Module], _Activation] = {
    nn.ELU: _Elu(1.0, 1.0),
    # The constants of Klambauer et al. 2017 (https://arxiv.org/abs/1706.02515).
    nn.SELU: _Elu(1.6732632423543772, 1.0507009873554805),
    nn.ReLU: _Relu("threshold", 0.0),
    nn.Tanh: _Tanh("tanh"),
    nn.GELU: _Activation("gelu"),
    nn.SiLU: _Activation("silu"),
    nn.Softplus: _Activation("softplus", 1.0, 20.0),
    nn.Mish: _Mish("mish"),
}
