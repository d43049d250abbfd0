"""An environment goes on from a saved state as if nothing had happened, to the bit."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
import torch
from simtrain.env.state import read_numbers
from tiny_task import idle, tiny_env

from simtrain import CurriculumTermCfg, EventTermCfg, ObservationTermCfg, RewardTermCfg, mdp
from simtrain.env.env import Env
from simtrain.env.phase_timer import CpuTimer
from simtrain.registry import discover
from simtrain.sim import EngineCfg
from simtrain.training.features.timing import MarkingTimer

SHIPPED = sorted(discover().tasks)


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """What comes back from a file that is read without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def trajectory(env: Env, steps: int) -> list[torch.Tensor]:
    """Everything that a policy and a trainer see in some steps of random actions."""
    seen = []
    for _ in range(steps):
        actions = torch.rand(env.num_envs, env.num_actions, device=env.device) * 2.0 - 1.0
        obs, rewards, dones, extras = env.step(actions)
        seen += [value.clone() for value in (*obs.values(), rewards, dones, extras["time_outs"])]
        seen += [value.clone() for value in extras["log"].values()]
    return [*seen, env.episodes.take()]


def assert_goes_on_the_same(first: Env, make: Any, *, before: int, after: int) -> None:
    trajectory(first, before)
    saved = stored({"env": first.state(), "random": torch.get_rng_state()})
    expected = trajectory(first, after)
    second = make()
    trajectory(second, 2)
    second.set_state(saved["env"])
    torch.set_rng_state(saved["random"])
    for step, (value, other) in enumerate(zip(expected, trajectory(second, after), strict=True)):
        assert torch.equal(value, other), step


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


class Counting:
    """A term that keeps things of every kind."""

    def __init__(self, env):
        self.number, self.flag, self.ratio, self.name = 0, False, 0.5, "start"
        self.array = np.zeros(2)
        self.items = [1]
        self.pair = (torch.zeros(()), len)
        self.by_name = {"a": torch.zeros(env.num_envs)}
        self.later = None
        self.torch_random = torch.Generator().manual_seed(1)
        self.numpy_random = np.random.default_rng(2)
        self.memory = torch.nn.GRUCell(1, 1)
        self.child = Child(self)
        self.function = print

    def __call__(self, env):
        self.number += 1
        self.flag = not self.flag
        self.ratio *= 1.5
        self.name += "."
        self.array += 1
        self.items.append(self.number)
        self.pair[0].add_(2.0)
        self.by_name["a"] += torch.rand(env.num_envs, generator=self.torch_random)
        self.by_name[f"new {self.number}"] = torch.ones(1)
        self.later = torch.full((2,), self.ratio)
        self.child.count += int(self.numpy_random.integers(10))
        with torch.no_grad():
            self.memory.bias_hh += 1.0
        return self.by_name["a"]


class Child:
    def __init__(self, parent):
        self.parent = parent
        self.count = 0


def test_a_term_may_keep_anything_in_its_attributes():
    env, other = (tiny_env(rewards={"count": RewardTermCfg(Counting, 1.0)}) for _ in range(2))
    idle(env, 3)
    other.set_state(stored(env.state()))
    idle(env, 2)
    idle(other, 2)
    first, second = (e.rewards._terms["count"].function for e in (env, other))
    for name in ("number", "flag", "ratio", "name", "items"):
        assert getattr(first, name) == getattr(second, name)
    assert first.number == 5
    assert (first.array == second.array).all()
    assert first.pair == (torch.tensor(10.0), len) == second.pair
    assert first.by_name.keys() == second.by_name.keys()
    assert torch.equal(first.by_name["a"], second.by_name["a"])
    assert torch.equal(first.later, second.later)
    assert first.child.count == second.child.count > 0
    assert torch.equal(first.memory.bias_hh, second.memory.bias_hh)


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


class Hidden:
    """Keeps its number where nobody looks."""

    def __init__(self, env):
        generator = random.Random(3)
        self.read = generator.random
        self.state = generator.getstate
        self.set_state = lambda state: generator.setstate((state[0], tuple(state[1]), state[2]))

    def __call__(self, env):
        return torch.full((env.num_envs,), self.read())


def test_an_object_can_speak_for_itself():
    env, other = (tiny_env(rewards={"hidden": RewardTermCfg(Hidden, 1.0)}) for _ in range(2))
    idle(env, 3)
    other.set_state(env.state())
    assert torch.equal(idle(env)[1], idle(other)[1])


def set_push(env, mask, size):
    """A curriculum that changes a weight and another term's parameter."""
    env.rewards.set_weight("alive", float(env.steps))
    env.events._by_mode["interval"][0].params["velocity"] = (0.0, float(env.steps))


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
    with pytest.raises(ValueError, match=r"does not fit|another model or number of environments"):
        tiny_env(2).set_state(tiny_env(3).state())


def test_a_state_without_something_is_refused():
    state = tiny_env().state()
    del state["previous_actions"]
    with pytest.raises(ValueError, match="previous_actions is not in the saved state"):
        tiny_env().set_state(state)


def test_what_terms_have_come_to_keep_since_is_forgotten_if_asked():
    env = tiny_env()
    state = env.state()
    env.rewards.found_later = torch.ones(3)
    with pytest.raises(ValueError, match=r"rewards\.found_later is not in the saved state"):
        env.set_state(state)
    env.set_state(state, forget=True)
    assert not hasattr(env.rewards, "found_later")


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
    before = read_numbers(whole, env)
    assert before["part.counts.steps"] == 3
    assert not any("tensor" in name or "owner" in name for name in before)
    whole.generator.random()
    whole.part.counts["steps"] += 1
    after = read_numbers(whole, env)
    changed = {name.split(".")[0] for name in after if before[name] != after[name]}
    assert changed == {"part", "generator"}


def test_a_stopwatch_is_no_part_of_the_state():
    env, other = tiny_env(2), tiny_env(2)
    env.timer, other.timer = CpuTimer(), MarkingTimer(CpuTimer())
    for each in (env, other):
        each.step(torch.zeros(2, env.num_actions))
    assert "timer" not in env.state()
    present = other.timer
    other.set_state(stored(env.state()))
    assert other.timer is present
    other.timer.end()
