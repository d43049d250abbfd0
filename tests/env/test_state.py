"""An environment goes on from a saved state as if nothing had happened, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from going_on import assert_goes_on_the_same
from tiny_task import at_step, idle, tiny_env

from simtrain import (
    ActionTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
    mdp,
)
from simtrain.config.tasks import discover
from simtrain.env.base import host_state
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg

SHIPPED = sorted(discover().tasks)


@pytest.mark.parametrize("task", SHIPPED)
def test_every_shipped_task_goes_on_the_same(task):
    """Episodes, resets, commands, pushes and curricula fall into the steps before and after."""

    def make() -> Env:
        cfg = discover().find(task).make()
        # Short, or nothing would end in a few steps.
        cfg.episode_length_s = 12 * cfg.timestep * cfg.decimation
        for command in cfg.commands.values():
            command.resampling_time_range = (0.05, 0.2)
        for event in cfg.events.values():
            event.interval_range_s = (0.05, 0.2)
        return Env(cfg, 6, EngineCfg(threads=2))

    env = make()
    env.episode_length_buf = torch.arange(6) * 2
    assert_goes_on_the_same(env, make, before=15, after=20)


@pytest.mark.usefixtures("fast_compilation")
def test_it_goes_on_the_same_on_the_warp_engine():
    def make() -> Env:
        cfg = discover().find("cartpole-swingup").make()
        cfg.episode_length_s = 12 * cfg.timestep * cfg.decimation
        return Env(cfg, 3, EngineCfg("warp"))

    env = make()
    env.episode_length_buf = torch.arange(3) * 4
    assert_goes_on_the_same(env, make, before=6, after=15)


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


def declaring_env(terminations=None):
    ends = terminations or {"end": TerminationTermCfg(at_step([3, 0]))}
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


def test_one_class_may_keep_state_for_two_terms():
    cfgs = {name: RewardTermCfg(declares, 1.0) for name in ("a", "b")}
    env = tiny_env(2, rewards=cfgs)
    kept_by(env, "rewards.a").rows.fill_(1.0)
    assert kept_by(env, "rewards.b").rows.tolist() == [0.0, 0.0]
    assert env.state()["rewards.a.rows"].tolist() == [1.0, 1.0]


def test_a_name_that_a_term_uses_twice_is_an_error():
    class twice:
        def __init__(self, env):
            self.a, self.b = env.buffer("time"), env.buffer("time")

    with pytest.raises(ConfigError, match=r"rewards\.term\.time is declared twice"):
        tiny_env(rewards={"term": RewardTermCfg(twice, 1.0)})


def test_terms_are_not_asked_for_while_they_are_made():
    class early:
        def __init__(self, env):
            env.terms()

    with pytest.raises(ConfigError, match=r"env\.terms\(\) is not for __init__"):
        tiny_env(rewards={"term": RewardTermCfg(early, 1.0)})


def test_state_that_is_declared_in_a_call_is_an_error():
    env = tiny_env(rewards={"late": RewardTermCfg(lambda env: env.buffer("time"), 1.0)})
    with pytest.raises(ConfigError, match=r"'time' is declared too late: .* in the __init__"):
        idle(env)


def test_an_action_declares_what_it_keeps():
    class Smooth(ActionTerm):
        dim = 1

        def declare(self, env):
            self.held = env.buffer("held", (1,))

        def apply(self, actions, ctrl):
            self.held.lerp_(actions, 0.5)
            ctrl[:, :1] = self.held

    class SmoothCfg(ActionTermCfg):
        def build(self, model, start, device):
            return Smooth()

    env = tiny_env(2, actions={"push": SmoothCfg()})
    env.step(torch.ones(2, 1))
    assert env.state()["actions.push.held"].tolist() == [[0.5], [0.5]]
    env.reset()
    assert env.state()["actions.push.held"].tolist() == [[0.0], [0.0]]


class undeclared:
    """Changes rows that it has not declared, at every step."""

    def __init__(self, env, where="attribute"):
        rows = torch.zeros(env.num_envs, 4)
        self.where = where
        if where == "attribute":
            self._time = rows
        elif where == "mapping":
            self.by_name = {"a": [rows[:, 0].clone()]}
        elif where == "array":
            self._time = np.zeros(env.num_envs, dtype=np.int64)
        elif where == "second axis":
            self._time = torch.zeros(3, env.num_envs, dtype=torch.bool)
        elif where == "replaced":
            self._before = env.bind("qpos")[:, 0].clone()

    def __call__(self, env):
        if self.where == "mapping":
            self.by_name["a"][0] += 1.0
        elif self.where == "replaced":
            self._before = env.bind("qpos")[:, 0].clone()
        else:
            self._time[:] = 1
        return torch.ones(env.num_envs)


@pytest.mark.parametrize("num_envs", [1, 3, 4])
@pytest.mark.parametrize(
    ("where", "attribute", "call"),
    [
        ("attribute", "_time", '"time", (4,)'),
        ("mapping", "by_name.a.0", '"0"'),
        ("array", "_time", '"time", dtype=torch.int64'),
        ("second axis", "_time", '"time", (3,), dtype=torch.bool'),
        ("replaced", "_before", '"before"'),
    ],
)
def test_rows_that_change_and_are_not_declared_are_an_error(num_envs, where, attribute, call):
    env = tiny_env(num_envs, rewards={"feet": RewardTermCfg(undeclared, 1.0, where=where)})
    with pytest.raises(ConfigError) as caught:
        idle(env)
    assert str(caught.value) == (
        f"rewards.feet: the attribute `{attribute}` has one row for each environment and changes, "
        f"but is not declared; write `self.{attribute} = env.buffer({call})`"
    )


def test_rows_that_the_first_reset_changes_are_an_error_when_the_environment_is_made():
    class forgets(undeclared):
        def reset(self, mask):
            self._time[mask] = 0.0

    with pytest.raises(ConfigError, match=r"rewards\.x: the attribute `_time` has one row"):
        tiny_env(rewards={"x": RewardTermCfg(forgets, 1.0)})


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


@pytest.mark.parametrize("task", SHIPPED)
def test_shipped_tasks_declare_all_that_they_keep(task):
    env = Env(discover().find(task).make(), 12, EngineCfg(threads=1))
    for _ in range(2):
        env.step(torch.zeros(12, env.num_actions))
    env.reset()
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
    with torch.inference_mode():
        idle(env)
    found = env.undeclared_changes()
    assert found[0].startswith("rewards.x keeps `array`, which is not saved; declare it with env.b")
    names = [text.split("`")[1] for text in found]
    assert names == ["array", "count", "items.0", "later", "latest", "random", "total"]


def test_numbers_on_the_host_are_found_where_they_are_kept():
    class Part:
        def __init__(self) -> None:
            self.counts = {"steps": 3}
            self.tensor = torch.ones(2)

    class Whole:
        def __init__(self) -> None:
            self.part = Part()
            self.owner = env
            self.generator = np.random.default_rng(0)

    env = tiny_env()
    whole = Whole()
    before = host_state(whole, env)
    assert before["part.counts.steps"] == 3
    assert not any("tensor" in name or "owner" in name for name in before)
    whole.generator.random()
    whole.part.counts["steps"] += 1
    after = host_state(whole, env)
    changed = {name.split(".")[0] for name in after if before[name] != after[name]}
    assert changed == {"part", "generator"}


def test_tensors_keep_their_memory():
    env = tiny_env()
    saved = env.state()
    held = env.actions, env.rewards.episode_sums, env.bind("qpos")
    env.step(torch.ones(2, 1))
    env.set_state(saved)
    assert held[0] is env.actions
    assert held[1] is env.rewards.episode_sums
    assert [bool(tensor.any()) for tensor in held[:2]] == [False, False]
    assert torch.equal(held[2], tiny_env().bind("qpos"))


def set_push(env, mask, size):
    """A curriculum that changes a weight and another term's parameter."""
    env.rewards.set_weight("alive", float(env.steps))
    env.terms()["events.push"].params["velocity"] = (0.0, float(env.steps))


def test_what_curricula_change_is_kept():
    push = EventTermCfg(
        mdp.reset_joints_uniform, mode="interval", interval_range_s=(0.03, 0.05), joints=".*_slide"
    )

    def make() -> Env:
        return tiny_env(
            events={"push": push},
            curricula={"push": CurriculumTermCfg(set_push, size=1.0)},
            observations={
                "actor": {
                    "x": ObservationTermCfg(mdp.joint_vel, joints=".*_slide", history_length=3)
                },
            },
        )

    assert_goes_on_the_same(make(), make, before=15, after=12)


def test_a_state_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"does not fit: .* has shape"):
        tiny_env(2).set_state(tiny_env(3).state())


def test_a_state_without_something_is_refused():
    state = tiny_env().state()
    del state["previous_actions"]
    with pytest.raises(ValueError, match="previous_actions is not in the saved state"):
        tiny_env().set_state(state)


def test_a_state_of_an_older_version_is_refused():
    with pytest.raises(ValueError, match="written by an older version of simtrain"):
        tiny_env().set_state({"steps": torch.zeros(()), "sim": {}})
