"""A simulation that fails is reset and told of, and nobody else notices."""

from contextlib import nullcontext

import mujoco
import numpy as np
import pytest
import torch
from tiny_task import alive, idle, tiny_env
from waiting import RefuseWaiting

from simtrain import ObservationTermCfg, RewardTermCfg, mdp
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.env.nan_guard import STEPS
from simtrain.sim import EngineCfg
from simtrain.training.features.failures import read_dump, write_dump


def break_one(env: Env, number: int, value: float = float("nan")) -> None:
    mask = torch.arange(env.num_envs) == number
    env.sim.write("qvel", value, mask, slice(0, 1))


def run(task: str, num_envs: int, engine: str, failures: dict[int, list[int]], steps: int):
    """An environment, and all that is seen in its steps; some fail before some steps."""
    torch.manual_seed(1)
    env = Env(discover().find(task).make(), num_envs, EngineCfg(engine, threads=1))
    seen = []
    for step in range(steps):
        for number in failures.get(step, []):
            break_one(env, number)
        actions = torch.rand(num_envs, env.num_actions) - 0.5
        with RefuseWaiting() if engine == "warp" else nullcontext():
            obs, rewards, dones, extras = env.step(actions)
        columns = *obs.values(), rewards, dones, extras["time_outs"], env.bind("qpos")
        seen.append(torch.cat([column.reshape(num_envs, -1) for column in columns], dim=1))
        assert seen[-1].isfinite().all()
    return env, torch.stack(seen)


def test_a_nan_in_one_environment_of_256_leaves_the_others_as_they_are_to_the_bit():
    setting = "go1-velocity-flat", 256, "mujoco"
    (whole, expected), (env, seen) = (run(*setting, failures, 6) for failures in ({}, {2: [100]}))
    assert whole.failures().resets == 0
    others = torch.arange(256) != 100
    assert torch.equal(seen[:, others], expected[:, others])
    same = [torch.equal(seen[step, 100], expected[step, 100]) for step in range(6)]
    assert same == [True] * 2 + [False] * 4
    failures = env.failures()
    assert (failures.resets, failures.dump.env, failures.terms) == (1, 100, ())
    assert "QVEL" in failures.dump.message
    assert env.episodes.take().isfinite().all()
    assert env.failures().resets == 0


@pytest.mark.usefixtures("fast_compilation")
def test_without_waiting_for_the_device_the_first_failure_is_kept_as_well():
    """The warp engine, on the CPU here, says nothing to the host until it is asked."""
    first, later, steps = STEPS + 3, STEPS + 5, STEPS + 8
    setting = "cartpole-balance", 4, "warp"
    env, seen = run(*setting, {first: [2], later: [0, 2]}, steps)
    _, expected = run(*setting, {}, steps)
    for number, failed_at in enumerate((later, steps, first, steps)):
        same = [torch.equal(seen[step, number], expected[step, number]) for step in range(steps)]
        assert same == [step < failed_at for step in range(steps)]
    failures = env.failures()
    assert (failures.resets, failures.terms) == (3, ())
    assert (failures.dump.env, failures.dump.message) == (2, "its state is not finite")
    times = failures.dump.states["time"]
    assert len(times) == STEPS
    assert times[-1] == pytest.approx(first * env.step_dt)
    assert np.isnan(failures.dump.states["qvel"][-1]).any()
    assert np.isfinite(failures.dump.states["qvel"][:-1]).all()
    assert env.failures().resets == 0


@pytest.mark.parametrize("steps", [10, 75])
def test_the_last_steps_are_kept_and_lead_to_the_failure_again(steps, tmp_path):
    env = tiny_env(2, episode_length_s=1e3)
    torch.manual_seed(1)
    for step in range(steps):
        if step == steps - 1:
            break_one(env, 1, 1e11)
        env.step(torch.rand(2, 1))
        if step == 4:
            assert env.failures().dump is None
    dump = env.failures().dump
    kept = dump.states
    assert list(kept) == ["time", "qpos", "qvel", "qacc_warmstart", "ctrl"]
    assert {len(values) for values in kept.values()} == {min(steps, STEPS)}
    assert kept["time"][-1] == pytest.approx((steps - 1) * env.step_dt)
    assert kept["qvel"][-1, 0] == pytest.approx(1e11)

    write_dump(tmp_path, dump, decimation=2, iteration=3)
    saved = read_dump(tmp_path)
    assert (saved.decimation, saved.iteration, saved.env, saved.message) == (2, 3, 1, dump.message)
    data = mujoco.MjData(saved.model)
    for row in range(len(saved.states["qpos"]) - 1):
        for name in kept:
            setattr(data, name, saved.states[name][row])
        mujoco.mj_step(saved.model, data, nstep=saved.decimation)
        np.testing.assert_array_equal(data.qpos, saved.states["qpos"][row + 1])


def test_the_model_is_the_environments_own_and_a_control_that_is_not_finite_fails_too():
    env = tiny_env(3)
    env.sim.expand("body_mass")
    env.sim.write("body_mass", torch.tensor([1.0, 2.0, 3.0]).view(3, 1), index=slice(1, 2))
    env.step(torch.tensor([[0.5], [0.5], [float("nan")]]))
    dump = env.failures().dump
    assert "CTRL" in dump.message
    buffer = {"it.mjb": dump.model}
    assert mujoco.MjModel.from_binary_path("it.mjb", buffer).body_mass[1] == 3.0


def test_an_episode_ends_as_a_failure_and_what_came_after_is_not_in_the_next_dump():
    env = tiny_env(2, episode_length_s=1e3)
    idle(env, 5)
    break_one(env, 0)
    _, rewards, dones, extras = idle(env)
    assert (rewards.tolist(), dones.tolist()) == (pytest.approx([0.0, 0.02]), [True, False])
    assert not extras["time_outs"].any()
    assert env.episode_length_buf.tolist() == [0, 6]
    idle(env, 3)
    assert len(env.failures().dump.states["time"]) == 6
    idle(env, 2)
    break_one(env, 1)
    idle(env)
    dump = env.failures().dump
    assert dump.env == 1
    assert dump.states["time"].tolist() == pytest.approx([0.18, 0.2, 0.22])


def nan_for_env_1(env: Env) -> torch.Tensor:
    return torch.where(torch.arange(env.num_envs) == 1, torch.nan, 1.0)


def test_terms_that_are_not_finite_count_as_0_and_are_named():
    def observed(env: Env) -> torch.Tensor:
        return torch.stack((torch.ones(env.num_envs), 1.0 / (nan_for_env_1(env) - 1.0)), dim=1)

    env = tiny_env(
        3,
        rewards={"good": RewardTermCfg(alive, 1.0), "bad": RewardTermCfg(nan_for_env_1, 1.0)},
        observations={
            "actor": {
                "good": ObservationTermCfg(mdp.joint_pos, joints="left_slide"),
                "infinite": ObservationTermCfg(observed, clip=(-5.0, 5.0)),
                "stacked": ObservationTermCfg(
                    lambda env: nan_for_env_1(env).unsqueeze(1), history_length=2
                ),
            }
        },
    )
    env.failures()
    obs, rewards, dones, _ = idle(env, 2)
    assert rewards.tolist() == pytest.approx([0.04, 0.02, 0.04])
    assert obs["actor"].tolist() == [
        [0.0, 1.0, 5.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 5.0, 1.0, 1.0]
    ]  # fmt: skip
    assert not dones.any()
    failures = env.failures()
    assert failures.terms == ("bad", "actor.infinite", "actor.stacked")
    assert (failures.resets, failures.dump) == (0, None)
    assert env.episodes.take().isfinite().all()
