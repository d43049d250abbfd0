"""Training goes on after numbers that were not finite, until nothing is learned any more."""

from __future__ import annotations

import pytest
import torch
from tiny_training import ENVS, STEPS, Collected, make_context, run_for, tiny_config, tiny_trainer

from simtrain import RewardTermCfg
from simtrain.errors import DivergenceError
from simtrain.training.features.failures import MAX_DUMPS, PATIENCE, FailureMonitor, read_dump
from simtrain.training.loop import Trainer, train


class Sometimes:
    """A reward of 1, and of another value, None for NaN, for one environment in `iterations`."""

    def __init__(self, env, value, iterations, write=False):
        value = torch.nan if value is None else value
        self.env, self.value, self.iterations, self.write = env, value, iterations, write

    def __call__(self, env):
        reward = torch.ones(env.num_envs)
        if (int(env.steps) - 1) // STEPS in self.iterations:
            if self.write:
                # Everyone, or one: at the next step the simulation finds it.
                mask = torch.arange(env.num_envs) >= (0 if self.write == "all" else ENVS - 1)
                env.sim.write("qvel", torch.nan, mask, slice(0, 1))
            else:
                reward[1] = self.value
        return reward


def trainer(**params) -> Trainer:
    return tiny_trainer(tiny_config(rewards={"odd": RewardTermCfg(Sometimes, 1.0, **params)}))


def run_until_it_diverges(training: Trainer, monitor: FailureMonitor, match: str) -> int:
    """How many iterations were made."""
    collected = Collected()
    with pytest.raises(DivergenceError, match=match):
        train(training, [collected, monitor], 100, lambda: False)
    assert all(tensor.isfinite().all() for tensor in training.ppo.tensors())
    return len(collected.iterations)


def test_a_reward_that_is_not_finite_is_warned_of_once_and_training_goes_on():
    training = trainer(value=None, iterations=(1, 3))
    done = run_for(training, 5)
    assert [iteration.warnings for iteration in done] == [
        (),
        ("odd was not finite in some environments, and counts as 0 there",),
        *[()] * 3,
    ]
    assert [i.metrics.get("Sim/nan_terms") for i in done] == [None, 1.0, None, 1.0, None]
    assert [i.metrics["Sim/nan_resets"] for i in done] == [0.0] * 5
    assert all(tensor.isfinite().all() for tensor in training.ppo.tensors())


def test_a_huge_reward_skips_the_steps_of_its_iteration():
    done = run_for(trainer(value=1e30, iterations=(1,)), 3)
    assert [i.metrics.get("Loss/skipped_steps") for i in done] == [None, 4, None]


def test_huge_rewards_for_ten_iterations_end_the_run_also_if_it_was_resumed(tmp_path):
    first = trainer(value=1e30, iterations=range(100))
    before = FailureMonitor(make_context(tmp_path), first)
    run_for(first, PATIENCE - 3, before)
    second = trainer(value=1e30, iterations=range(100))
    after = FailureMonitor(make_context(tmp_path), second)
    after.set_state(before.state())
    assert run_until_it_diverges(second, after, r"no gradient was finite .* Loss/value inf,") == 3


def test_a_simulation_that_fails_is_counted_and_dumped(tmp_path):
    training = trainer(value=0.0, iterations=(1,), write="one")
    context = make_context(tmp_path)
    done = run_for(training, 3, FailureMonitor(context, training))
    # What breaks it at a step is found at the next, whose reset mends what breaks it then.
    assert [i.metrics["Sim/nan_resets"] for i in done] == [0.0, 2.0, 0.0]
    (folder,) = (tmp_path / "nan_dump").iterdir()
    assert folder.name == "iteration_2_rank_0_env_3"
    dump = read_dump(folder)
    assert (dump.env, dump.iteration, dump.decimation) == (3, 2, context.config.env.decimation)
    assert len(dump.states["qpos"]) == len(dump.states["ctrl"]) > 1
    (line,) = context.console.lines  # type: ignore[attr-defined]
    assert line.startswith(
        "warning: the simulation of environment 3 of rank 0 failed and was reset"
    )
    assert "uv run play --replay" in line
    assert done[2].metrics["Train/mean_reward"] > 0.0


def test_a_dump_that_cannot_be_written_ends_no_training(tmp_path):
    (tmp_path / "nan_dump").write_text("in the way")
    training = trainer(value=0.0, iterations=(1,), write="one")
    context = make_context(tmp_path)
    assert len(run_for(training, 3, FailureMonitor(context, training))) == 3
    (line,) = context.console.lines  # type: ignore[attr-defined]
    assert line.endswith("(its last steps cannot be written: Not a directory)")


def test_a_run_keeps_some_dumps_and_ends_if_everything_fails_again_and_again(tmp_path):
    training = trainer(value=0.0, iterations=range(1, 100), write="one")
    run_for(training, MAX_DUMPS + 5, FailureMonitor(make_context(tmp_path), training))
    assert len(list((tmp_path / "nan_dump").iterdir())) == MAX_DUMPS

    training = trainer(value=0.0, iterations=range(1, 100), write="all")
    monitor = FailureMonitor(make_context(tmp_path), training)
    assert run_until_it_diverges(training, monitor, "as many simulations failed") == 1 + PATIENCE
