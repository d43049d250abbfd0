"""Terms to reward. Each returns float32, ``(num_envs,)``, a rate per second."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from simtrain.env.env import Env


def action_rate(env: Env) -> Tensor:
    """Squared change of the actions since the last step, summed. Shape: ``(num_envs,)``."""
    return (env.actions - env.previous_actions).square().sum(dim=1)


def tolerance(value: Tensor, margin: float, value_at_margin: float = 0.1) -> Tensor:
    """How near to zero a value is: 1 at zero, `value_at_margin` at a distance of `margin`.

    A Gaussian, or for ``value_at_margin=0`` the parabola ``max(0, 1 - (value / margin)^2)``; the
    ``tolerance`` of the DeepMind Control Suite with bounds (0, 0) and its sigmoids ``gaussian`` and
    ``quadratic`` (Tassa et al. 2018). Any shape.
    """
    if value_at_margin == 0.0:
        return value.square().mul_(-1.0 / margin**2).add_(1.0).clamp_(min=0.0)
    return value.square().mul_(math.log(value_at_margin) / margin**2).exp_()
