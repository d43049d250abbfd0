"""How many kernels a GPU launches for a step of each shipped task, besides those of physics.

A step of a few thousand environments takes as long as its launches. A task or a term that needs
more of them shows here by part and term: raise its bound if that is worth it.
"""

from __future__ import annotations

import pytest
import torch
from fake_cuda import DEVICE, LaunchCounter, fake_cuda, fake_env

from simtrain.config.tasks import discover

PARTS = (
    *("actions", "failures", "terminations", "rewards", "metrics", "episodes", "curricula"),
    *("reset events", "resets", "commands", "interval events", "observations", "step"),
)
BOUNDS = {
    "cartpole-balance": (2, 8, 6, 26, 5, 7, 0, 13, 6, 0, 0, 7, 5),
    "cartpole-swingup": (2, 8, 6, 26, 5, 7, 0, 6, 6, 0, 0, 7, 5),
    "g1-tracking": (5, 8, 39, 62, 16, 7, 0, 60, 7, 75, 10, 27, 5),
    "g1-tracking-no-state-estimation": (5, 8, 39, 62, 16, 7, 0, 60, 7, 75, 10, 27, 5),
    "g1-velocity-flat": (6, 8, 8, 74, 5, 7, 11, 83, 12, 62, 17, 73, 51),
    "g1-velocity-rough": (6, 8, 30, 104, 5, 7, 38, 91, 14, 62, 17, 123, 58),
    "go1-velocity-flat": (5, 8, 7, 60, 5, 7, 11, 83, 12, 62, 10, 69, 51),
    "go1-velocity-rough": (5, 8, 14, 75, 5, 7, 38, 91, 14, 62, 10, 119, 58),
    "go1-velocity-rough-blind": (5, 8, 14, 75, 5, 7, 38, 91, 15, 62, 10, 146, 58),
    "yam-lift-cube": (7, 8, 6, 55, 16, 7, 0, 46, 9, 8, 0, 22, 5),
    "yam-lift-cube-depth": (7, 8, 6, 55, 16, 7, 0, 46, 9, 8, 0, 48, 5),
}
"""By task, the most kernels of each of `PARTS`."""


def _launches(task: str) -> LaunchCounter:
    with fake_cuda():
        env = fake_env(discover().find(task).configuration(), metrics=True)
        actions = torch.zeros(env.num_envs, env.num_actions, device=DEVICE)
        with torch.inference_mode():
            env.step_in_place(actions)  # the first binds fields
            with LaunchCounter() as counter:
                env.step_in_place(actions)
    return counter


@pytest.mark.parametrize("task", [t for t in discover().tasks if not t.startswith("dmc-")])
def test_no_part_of_a_step_launches_more_kernels(task):
    counter = _launches(task)
    bounds = dict(zip(PARTS, BOUNDS[task], strict=True))
    grown = [
        f"{part}: {count} kernels, at most {bounds.get(part, 0)} before; "
        + ", ".join(f"{term} {n}" for (of, term), n in counter.launches.items() if of == part)
        for part, count in counter.by_part().items()
        if count > bounds.get(part, 0)
    ]
    assert not grown, "\n".join(grown)


def test_kernels_are_counted_and_views_are_not():
    with fake_cuda():
        x = torch.zeros(4, 3, device=DEVICE)
        with LaunchCounter() as counter:
            x[:, :2].T.unsqueeze(0)
            torch.empty_like(x)
            assert counter.launches.total() == 0
            x.add_(1.0)
            torch.stack((x, x)).square().sum(dim=1)
        assert counter.by_part() == {"other": 4}
