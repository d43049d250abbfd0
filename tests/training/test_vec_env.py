"""The environment under rsl_rl's own runner, which shows whether it is a `VecEnv`."""

import torch
from rsl_rl_runner import rsl_rl_runner

from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.sim import EngineCfg

STEPS = 16


def test_rsl_rl_stores_the_observations_that_actions_were_chosen_by():
    task = discover().find("cartpole-balance").make()
    task.episode_length_s = 0.5  # so that episodes end on the way
    runner = rsl_rl_runner(Env(task, 8, EngineCfg(threads=1)), steps=STEPS, hidden_dims=(16,))
    act, step = runner.alg.act, runner.env.step
    seen, rewards, dones = [], [], []

    def acting(obs):
        seen.append(obs["actor"].clone())
        return act(obs)

    def stepping(actions):
        result = step(actions)
        rewards.append(result[1].clone())
        dones.append(result[2].clone())
        return result

    runner.alg.act, runner.env.step = acting, stepping
    runner.learn(1)
    stored = runner.alg.storage
    assert torch.equal(stored.observations["actor"], torch.stack(seen))
    assert torch.equal(stored.dones.squeeze(2).bool(), torch.stack(dones))
    assert stored.dones.any()
    # A time-out adds the discounted value of the state before the reset, and nothing else changes.
    bootstrapped = stored.rewards.squeeze(2) - torch.stack(rewards)
    expected = runner.alg.gamma * stored.values.squeeze(2) * torch.stack(dones)
    torch.testing.assert_close(bootstrapped, expected, atol=1e-5, rtol=1e-4)
    assert len({tuple(row) for row in torch.stack(seen).flatten(0, 1).tolist()}) == STEPS * 8
