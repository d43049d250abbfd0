"""An environment goes on from a saved state as if nothing had happened, to the bit."""

import numpy as np
import pytest
import torch
from going_on import assert_goes_on_the_same
from tiny_task import at_step, idle, tiny_env

from simtrain import (
    CurriculumTermCfg,
    EventTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
    mdp,
)
from simtrain.config.tasks import discover
from simtrain.env.base import host_state
from simtrain.env.env import Env
from simtrain.env.model import check_task
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg

SHIPPED = sorted(discover().tasks)


@pytest.mark.parametrize(
    ("task", "engine"), [*((task, "mujoco") for task in SHIPPED), ("cartpole-swingup", "warp")]
)
def test_every_shipped_task_goes_on_the_same_and_declares_all_that_it_keeps(task, engine, request):
    """Episodes, resets, commands, pushes and curricula fall into the steps before and after, and
    observations and rewards are finite.
    """
    if engine == "warp":
        request.getfixturevalue("fast_compilation")

    def make() -> Env:
        cfg = discover().find(task).make()
        # Short, or nothing would end in a few steps.
        cfg.episode_length_s = 12 * cfg.timestep * cfg.decimation
        for command in cfg.commands.values():
            command.resampling_time_range = (0.05, 0.2)
        for event in cfg.events.values():
            event.interval_range_s = (0.05, 0.2)
        return Env(cfg, 6, EngineCfg(engine, threads=2))

    env = make()
    check_task(env.cfg)
    env.episode_length_buf = torch.arange(6) * 2
    seen = assert_goes_on_the_same(env, make, before=15, after=20)
    assert all(value.isfinite().all() for value in seen)
    assert env.undeclared_changes() == []


class declares:
    """Keeps state of every kind."""

    def __init__(self, env):
        self.rows = env.buffer("rows")
        self.pairs = env.buffer("pairs", (2,), reset=3)
        self.kept = env.buffer("kept", reset=None, dtype=torch.long)
        self.flags = env.buffer("flags", reset=True, dtype=torch.bool)
        self.calls = env.variable("calls", torch.zeros((), dtype=torch.long))
        self.random = torch.Generator().manual_seed(1)
        env.declare("random", self.random, None)
        self.memory = torch.nn.GRUCell(1, 1)
        for name, parameter in self.memory.named_parameters():
            env.variable(name, parameter)

    @torch.no_grad()
    def __call__(self, env):
        self.calls += 1
        self.rows += torch.rand(env.num_envs, generator=self.random)
        self.pairs += 1.0
        self.kept += self.calls
        self.flags.zero_()
        self.memory.bias_hh += 1.0
        return self.rows + self.memory.bias_hh[0] + self.kept


def declaring_env():
    ends = {"end": TerminationTermCfg(at_step([3, 0]))}
    return tiny_env(2, rewards={"term": RewardTermCfg(declares, 1.0)}, terminations=ends)


def kept_by(env, name="rewards.term"):
    return env.terms()[name].function


def test_a_term_goes_on_from_what_it_declared():
    assert_goes_on_the_same(declaring_env(), declaring_env, before=4, after=5)


def test_buffers_are_reset_where_episodes_end_and_variables_are_not():
    env = declaring_env()
    idle(env, 2)
    term = kept_by(env)
    assert term.pairs.tolist() == [[5.0, 5.0], [5.0, 5.0]]
    assert term.flags.tolist() == [False, False]
    idle(env)
    assert term.rows[0] == 0.0
    assert term.rows[1] > 0.0
    assert term.pairs.tolist() == [[3.0, 3.0], [6.0, 6.0]]
    assert term.kept.tolist() == [6, 6]
    assert term.flags.tolist() == [True, False]
    assert term.calls == 3


class twice:
    def __init__(self, env):
        self.a, self.b = env.buffer("time"), env.buffer("time")


class early:
    def __init__(self, env):
        env.terms()


@pytest.mark.parametrize(
    ("term", "says"),
    [
        (twice, r"rewards\.term\.time is declared twice"),
        (early, r"env\.terms\(\) is not for __init__"),
        (lambda env: env.buffer("time"), r"'time' is declared too late: .* in the __init__"),
    ],
)
def test_state_is_declared_once_and_while_terms_are_made(term, says):
    with pytest.raises(ConfigError, match=says):
        idle(tiny_env(rewards={"term": RewardTermCfg(term, 1.0)}))


class undeclared:
    """Keeps rows that it has not declared, and changes them at every step."""

    def __init__(self, env, make):
        self._time = make(env.num_envs)

    def __call__(self, env):
        rows = self._time[0] if isinstance(self._time, list) else self._time
        rows[:] = 1
        return torch.ones(env.num_envs)


class replaces(undeclared):
    def __call__(self, env):
        self._time = env.bind("qpos")[:, 0].clone()
        return self._time


class forgets(undeclared):
    def reset(self, mask):
        self._time[mask] = 0.0


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(
    ("term", "make", "attribute", "call"),
    [
        (undeclared, lambda n: torch.zeros(n, 4), "_time", '"time", (4,)'),
        (undeclared, lambda n: [torch.zeros(n)], "_time.0", '"0"'),
        (undeclared, lambda n: np.zeros(n, np.int64), "_time", '"time", dtype=torch.int64'),
        (undeclared, lambda n: torch.zeros(3, n), "_time", '"time", (3,)'),
        (replaces, lambda n: torch.zeros(n), "_time", '"time"'),
        (forgets, lambda n: torch.zeros(n), "_time", '"time"'),  # at the first reset
    ],
)
def test_rows_that_change_and_are_not_declared_are_an_error(num_envs, term, make, attribute, call):
    with pytest.raises(ConfigError) as caught:
        idle(tiny_env(num_envs, rewards={"feet": RewardTermCfg(term, 1.0, make=make)}))
    assert str(caught.value) == (
        f"rewards.feet: the attribute `{attribute}` has one row for each environment and changes, "
        f"but is not declared; write `self.{attribute} = env.buffer({call})`"
    )


class constants:
    """Has sizes that are the number of environments by coincidence, and views of the engine's."""

    def __init__(self, env):
        self.tables = [torch.zeros(size, 4) for size in (2, 3)]
        self.joints = env.initial_qpos
        self.qpos, self.half = env.bind("qpos"), env.bind("qvel")[:, :3]
        self.masses = env.sim.expand("body_mass")
        self.actions = env.actions
        self.random = np.random.default_rng(1)

    def __call__(self, env):
        return self.qpos[:, 0]


@pytest.mark.parametrize("num_envs", [2, 3])
def test_constants_and_views_need_not_be_declared(num_envs):
    env = tiny_env(num_envs, rewards={"term": RewardTermCfg(constants, 1.0)})
    idle(env, 12)
    assert env.undeclared_changes() == []


class changes:
    """Keeps what it has not declared."""

    def __init__(self, env):
        self.count, self.constant = 0, 1.5
        self.items = [1]
        self.array = np.zeros(3)
        self.total = torch.zeros(())
        self.latest = torch.zeros(())
        self.random = np.random.default_rng(0)
        self.later = None

    def __call__(self, env):
        self.count += 1
        self.items[0] = 2
        self.array += 1
        self.total.add_(1.0)
        self.latest = torch.ones(())
        self.random.random()
        self.later = torch.ones(())
        return torch.ones(env.num_envs)


def test_what_changes_without_having_been_declared_is_named():
    env = tiny_env(rewards={"x": RewardTermCfg(changes, 1.0)})
    assert env.undeclared_changes() == []
    before = host_state(kept_by(env, "rewards.x"), env)
    with torch.inference_mode():
        idle(env)
    found = env.undeclared_changes()
    assert found[0].startswith("rewards.x keeps `array`, which is not saved; declare it with env.b")
    names = [text.split("`")[1] for text in found]
    assert names == ["array", "count", "items.0", "later", "latest", "random", "total"]
    # What a CUDA graph would freeze.
    on_host = host_state(kept_by(env, "rewards.x"), env)
    assert [n for n in on_host if on_host[n] != before[n]] == ["count", "items.0", "random"]


def set_push(env, mask, size):
    """A curriculum that changes a weight and another term's parameter."""
    env.rewards.set_weight("alive", float(env.steps))
    env.terms()["events.push"].params["velocity"] = (0.0, float(env.steps))


def test_what_curricula_change_is_kept():
    slides = {"joints": ".*_slide"}
    push = EventTermCfg(
        mdp.reset_joints_uniform, "interval", interval_range_s=(0.03, 0.05), params=slides
    )
    seen = {"x": ObservationTermCfg(mdp.joint_vel, history_length=3, params=slides)}

    def make() -> Env:
        curricula = {"push": CurriculumTermCfg(set_push, size=1.0)}
        return tiny_env(events={"push": push}, curricula=curricula, observations={"actor": seen})

    assert_goes_on_the_same(make(), make, before=15, after=12)


def test_a_state_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"does not fit: .* has shape"):
        tiny_env(2).set_state(tiny_env(3).state())
    state = tiny_env().state()
    del state["previous_actions"]
    with pytest.raises(ValueError, match="previous_actions is not in the saved state"):
        tiny_env().set_state(state)
    with pytest.raises(ValueError, match="written by an older version of simtrain"):
        tiny_env().set_state({"steps": torch.zeros(()), "sim": {}})
