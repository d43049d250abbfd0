import pytest
import torch

from simtrain.algorithms.ppo import MAX_LEARNING_RATE, MIN_LEARNING_RATE, adapt_learning_rate


@pytest.mark.parametrize(
    ("kl", "before", "after"),
    [
        (0.03, 1e-3, 1e-3 / 1.5),
        (0.004, 1e-3, 1.5e-3),
        (0.01, 1e-3, 1e-3),
        (0.0, 1e-3, 1e-3),
        (0.03, 1.2e-5, MIN_LEARNING_RATE),
        (0.004, 9e-3, MAX_LEARNING_RATE),
    ],
)
def test_the_learning_rate_follows_the_divergence(kl, before, after):
    rate = torch.tensor(before)
    adapt_learning_rate(rate, torch.tensor(kl), desired_kl=torch.tensor(0.01))
    assert float(rate) == pytest.approx(after)
