"""Training goes on after numbers that were not finite, until nothing is learned any more."""

from __future__ import annotations

import pytest
import torch
from tiny_task import tiny_task

from simtrain import ActorCfg, CriticCfg, PpoCfg, RewardTermCfg
from simtrain.algorithms.ppo import PPO
from simtrain.env.env import Env
from simtrain.errors import DivergenceError
from simtrain.launch.rank import Rank
from simtrain.sim import EngineCfg
from simtrain.training.features.failures import MOST_DUMPS, PATIENCE
from simtrain.training.loop import Iteration, Trainer

ALONE = Rank(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"), seed=0, threads=1)
ENVS, STEPS = 4, 4


class Sometimes:
    """A reward that is 1, and another value for one environment in the given iterations."""

    def __init__(self, env, value, iterations, write=False):
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
    env = Env(
        tiny_task(rewards={"odd": RewardTermCfg(Sometimes, 1.0, **params)}),
        ENVS,
        EngineCfg(threads=1),
    )
    small = {"hidden_dims": (8,)}
    cfg = PpoCfg(ActorCfg(**small), CriticCfg(**small), num_learning_epochs=2, num_mini_batches=2)
    return Trainer(env, PPO(cfg, env.get_observations(), 1, STEPS, ALONE), ALONE)


def run(training: Trainer, iterations: int) -> list[Iteration]:
    done = []
    training.run(iterations, done.append, lambda: False)
    assert all(tensor.isfinite().all() for tensor in training.ppo.tensors())
    return done


def test_a_reward_that_is_not_finite_is_told_once_and_training_goes_on():
    done = run(trainer(value=torch.nan, iterations=(1, 3)), 5)
    warnings = [iteration.warnings for iteration in done]
    assert warnings[1] == ("odd was not finite in some environments, and counts as 0 there",)
    assert [len(each) for each in warnings] == [0, 1, 0, 0, 0]
    assert [i.metrics.get("Sim/nan_terms") for i in done] == [None, 1.0, None, 1.0, None]
    assert [i.metrics["Sim/nan_resets"] for i in done] == [0.0] * 5


def test_a_huge_reward_skips_the_steps_of_its_iteration():
    done = run(trainer(value=1e30, iterations=(1,)), 3)
    assert [i.metrics.get("Loss/skipped_steps") for i in done] == [None, 4, None]


def test_huge_rewards_for_ten_iterations_stop_the_run_with_what_was_seen():
    done = []
    training = trainer(value=1e30, iterations=range(2, 100))
    with pytest.raises(DivergenceError, match=r"no gradient was finite .* Loss/value inf,"):
        training.run(100, done.append, lambda: False)
    assert len(done) == 2 + PATIENCE
    assert all(tensor.isfinite().all() for tensor in training.ppo.tensors())


def test_a_simulation_that_fails_is_counted_and_dumped():
    done = run(trainer(value=0.0, iterations=(1,), write="one"), 3)
    # What breaks it at a step is found at the next, whose reset mends what breaks it then.
    assert [i.metrics["Sim/nan_resets"] for i in done] == [0.0, 2.0, 0.0]
    assert [len(i.dumps) for i in done] == [0, 1, 0]
    ((rank, dump),) = done[1].dumps
    assert (rank, dump.env) == (0, 3)
    assert done[2].metrics["Train/mean_reward"] > 0.0


def test_a_run_keeps_some_dumps_and_stops_if_everything_fails_again_and_again():
    done = []
    training = trainer(value=0.0, iterations=range(1, 100), write="one")
    training.run(MOST_DUMPS + 5, done.append, lambda: False)
    assert sum(len(i.dumps) for i in done) == MOST_DUMPS

    done = []
    training = trainer(value=0.0, iterations=range(1, 100), write="all")
    with pytest.raises(DivergenceError, match="as many simulations failed"):
        training.run(100, done.append, lambda: False)
    assert len(done) == 1 + PATIENCE


def test_the_count_goes_on_where_a_run_is_resumed():
    first = trainer(value=1e30, iterations=range(100))
    run(first, PATIENCE - 3)
    second = trainer(value=1e30, iterations=range(100))
    second.set_state(first.state())
    with pytest.raises(DivergenceError):
        second.run(100, lambda iteration: None, lambda: False)
    assert second.iteration == PATIENCE
