import torch
from torch import nn

from simtrain.algorithms.flat_adam import FlatGradients


def _networks() -> list[nn.Sequential]:
    return [nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 2)) for _ in range(2)]


def _flat(networks: list[nn.Sequential], extra: int = 1) -> FlatGradients:
    return FlatGradients([list(network.parameters()) for network in networks], extra)


def _backward(networks: list[nn.Sequential]) -> None:
    x = torch.ones(5, 3)
    sum((10.0**i) * net(x).square().sum() for i, net in enumerate(networks)).backward()


def test_every_gradient_is_a_view_into_one_buffer():
    networks = _networks()
    flat = _flat(networks)
    parameters = [p for network in networks for p in network.parameters()]
    offset = flat.buffer.data_ptr()
    for _ in range(2):  # before and after autograd has written them
        for parameter in parameters:
            assert parameter.grad.data_ptr() == offset
            offset += parameter.numel() * 4
        _backward(networks)
        offset = flat.buffer.data_ptr()
    assert flat.buffer.numel() == sum(p.numel() for p in parameters) + 1
    torch.testing.assert_close(
        flat.buffer[:-1], torch.cat([p.grad.flatten() for p in parameters]), rtol=0, atol=0
    )


def test_extra_numbers_travel_at_the_end_of_the_buffer():
    flat = _flat(_networks(), extra=2)
    flat.extra[:] = torch.tensor([3.0, 4.0])
    assert flat.buffer[-2:].tolist() == [3.0, 4.0]


def test_frozen_parameters_have_no_place():
    network = nn.Linear(3, 4)
    network.bias.requires_grad_(False)
    assert FlatGradients([network.parameters()]).buffer.numel() == 12
    assert network.bias.grad is None


def test_clipping_is_torchs_of_each_network_separately():
    networks = _networks()
    flat = _flat(networks)
    _backward(networks)
    flat.extra[0] = 7.0
    copies = _networks()
    for copy, network in zip(copies, networks, strict=True):
        for mine, other in zip(copy.parameters(), network.parameters(), strict=True):
            mine.grad = other.grad.clone()
    small = torch.linalg.vector_norm(flat.networks[0]).item() * 2.0
    assert torch.linalg.vector_norm(flat.networks[1]) > small
    flat.clip(flat.norms(), small)
    for copy, network in zip(copies, networks, strict=True):
        nn.utils.clip_grad_norm_(copy.parameters(), small)
        for mine, other in zip(copy.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)
    assert flat.extra.item() == 7.0
