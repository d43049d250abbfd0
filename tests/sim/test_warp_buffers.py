from __future__ import annotations

import mujoco_warp
import pytest
import torch
from engine_models import CARTPOLE, FALLING_BOX, MIXED, compile_xml, quadruped

from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg
from simtrain.sim.warp_engine import WarpEngine
from simtrain.sim.warp_model import BufferSizes, check_memory, find_sizes, read_overflow

WARP = EngineCfg("warp", "cpu")
pytestmark = pytest.mark.usefixtures("fast_compilation")


@pytest.mark.parametrize(
    ("model", "contacts", "constraints"),
    [
        (compile_xml(FALLING_BOX), (4, 19), (16, 999)),
        (compile_xml(CARTPOLE), (1, 999), (1, 16)),  # limits that it did not meet
        (quadruped(), (8, 999), (1, 999)),
    ],
    ids=["box", "cart-pole", "quadruped"],
)
def test_the_probe_leaves_room_and_always_finds_the_same(model, contacts, constraints) -> None:
    sizes = find_sizes(model)
    assert contacts[0] <= sizes.max_contacts <= contacts[1]
    assert constraints[0] <= sizes.max_constraints <= constraints[1]
    assert find_sizes(model) == sizes


def test_too_many_environments_for_the_memory_are_refused() -> None:
    model, sizes, free = compile_xml(MIXED), BufferSizes(10, 32), 10_000_000
    with pytest.raises(ConfigError, match=r"use --num-envs (\d+) or fewer") as refused:
        check_memory(model, 100_000, sizes, free)
    most = int(refused.value.args[0].split("--num-envs ")[1].split()[0])
    assert free / 50_000 < most < free / 5_000
    check_memory(model, most, sizes, free)
    with pytest.raises(ConfigError, match=f"use --num-envs {most} or fewer"):
        check_memory(model, most + 1, sizes, free)


def test_overflow_names_the_flag_and_a_value() -> None:
    model = compile_xml(MIXED)
    engine = WarpEngine(WARP, model, 2, max_contacts=1, max_constraints=4)
    engine.write("qpos", 0.095, index=slice(2, 3))
    engine.step(3)
    overflow = engine.overflow()
    assert overflow.num_envs == 2
    assert "--env.sim.max-contacts" in overflow.messages
    engine.reset()
    engine.step()
    assert engine.overflow().messages == {}  # it was told
    engine = WarpEngine(WARP, model, 2, max_contacts=8, max_constraints=4)
    engine.write("qpos", 0.095, torch.tensor([False, True]), slice(2, 3))
    engine.step(3)
    overflow = engine.overflow()
    assert overflow.num_envs == 1
    assert overflow.messages == {
        "--env.sim.max-constraints": "rows of constraints were dropped in 1 environments: there is "
        "room for 4 in each, and 16 were wanted; use --env.sim.max-constraints 25"
    }


def test_overflow_without_a_flag_says_what_mends_it() -> None:
    kinds = mujoco_warp.OverflowType
    bits = torch.tensor([0, int(kinds.HFIELD), int(kinds.ITERATIONS)])
    overflow = read_overflow(bits, BufferSizes(8, 8), BufferSizes(0, 0))
    assert overflow.num_envs == 1
    assert list(overflow.messages) == ["hfield"]
    assert "50 or more cells of a height field" in overflow.messages["hfield"]
    assert "(in 1 environments)" in overflow.messages["hfield"]
