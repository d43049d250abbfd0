"""Mistakes that only a GPU would show are found without one, and the error names the term."""

import pytest
import torch
from fake_cuda import DEVICE, NoHostTraffic, fake_cuda, fake_env
from tiny_task import tiny_task

from simtrain import (
    ActionTermCfg,
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
)
from simtrain.env.commands import CommandTerm
from simtrain.env.control.cfg import ActionTerm
from simtrain.sim.cuda_graphs import describe


def _step(**changes):
    cfg = tiny_task(**{"rewards": {}, **changes})
    with fake_cuda():
        env = fake_env(cfg, metrics=True)
        with torch.inference_mode(), NoHostTraffic():
            env.step(torch.zeros(env.num_envs, env.num_actions, device=DEVICE))


def _qpos(env):
    return env.bind("qpos")[:, 0].clone()


def _number(env):
    return env.bind("qpos").sum().item()


def branch(env):
    return _qpos(env) if env.bind("qpos").sum() > 0.0 else -_qpos(env)


def on_the_host(env):
    return torch.zeros(env.num_envs)


class _Command(CommandTerm):
    def __init__(self, env):
        self.command = env.buffer("command", (1,), reset=None)

    def resample(self, mask):
        self.command.fill_(self.command.sum().item())


class _Action(ActionTerm):
    dim = 1

    def apply(self, actions, ctrl):
        ctrl.fill_(actions.sum().item())


class _ActionCfg(ActionTermCfg):
    def build(self, model, start, device):
        return _Action()


class _Reset:
    def __init__(self, env):
        self._value = env.buffer("value")

    def __call__(self, env):
        return self._value

    def reset(self, mask):
        self._value.fill_(self._value.sum().item())


class _Construction:
    def __init__(self, env):
        self._value = _number(env)


def _event(env, mask):
    env.sim.write("qpos", _number(env), mask)


REWARDS = {
    "a branch": branch,
    "a result on the host": on_the_host,
    "a tensor of the host": lambda env: _qpos(env) * torch.tensor([2.0], device=env.device),
    "a list of the host": lambda env: torch.tensor([1.0] * env.num_envs).to(env.device),
    "another device": lambda env: _qpos(env) + torch.zeros(env.num_envs),
    "another GPU": lambda env: _qpos(env) + torch.zeros(env.num_envs, device="cuda:0"),
    "a number that is read": lambda env: _qpos(env) * _number(env),
    "an index by a mask": lambda env: _qpos(env)[_qpos(env) > 0.0],
    "an index by a list": lambda env: _qpos(env)[[0, 3]],
    "when it is reset": _Reset,
    "when it is made": _Construction,
}
TERMS = [
    ("actions", _ActionCfg()),
    ("commands", CommandTermCfg(_Command, (1.0, 2.0))),
    ("curricula", CurriculumTermCfg(lambda env, mask: _number(env))),
    *(("events", EventTermCfg(_event, mode=mode)) for mode in ("startup", "reset", "interval")),
    ("metrics", MetricTermCfg(branch)),
    ("observations", {"term": ObservationTermCfg(lambda env: branch(env).unsqueeze(1))}),
    ("terminations", TerminationTermCfg(on_the_host)),
    *(("rewards", RewardTermCfg(func, weight=1.0)) for func in REWARDS.values()),
]
NAMES = [*(kind for kind, _ in TERMS if kind != "rewards"), *REWARDS]


@pytest.mark.parametrize(("kind", "term"), TERMS, ids=NAMES)
def test_a_mistake_in_a_term_is_found_and_named(kind, term):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each is another
        _step(**{kind: {"odd": term}})
    assert f"{kind}.odd" in describe(caught.value)
