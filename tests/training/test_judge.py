"""What rank 0 makes of evaluations: metrics, the best policy, and the end of training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from simtrain.algorithms.ppo import PPO
from simtrain.config import TrainConfig
from simtrain.env.env import Env
from simtrain.launch.rank import Rank
from simtrain.registry import discover
from simtrain.run.checkpoint import BEST, read_checkpoint, save_model
from simtrain.sim import EngineCfg
from simtrain.training.features.evaluation import Judge
from simtrain.training.loop import Iteration

RANK = Rank(0, 0, 1, torch.device("cpu"), seed=0, threads=1)


@pytest.fixture
def config() -> TrainConfig:
    config = TrainConfig.of_task("cartpole-balance", discover().find("cartpole-balance").make())
    config.env.episode_length_s = 0.5
    config.eval_interval = 2
    config.eval_episodes = 2
    return config


@pytest.fixture
def ppo(config) -> PPO:
    env = Env(config.env, 2, EngineCfg(threads=1))
    return PPO(config.ppo, env.get_observations(), env.num_actions, 4, RANK)


class Said(list):
    def __call__(self, line: str) -> None:
        self.append(line)


def judge(config, ppo, run: Path, said: Said, stop: bool = False) -> Judge:
    return Judge(config, RANK, run, ppo, lambda: stop, said, None)


def iteration(number: int, is_last: bool = False, **metrics: float) -> Iteration:
    return Iteration(number, 100 * number, {"Loss/kl": 0.5, **metrics}, is_last)


def test_nothing_is_evaluated_between_intervals_but_at_the_end(config, ppo, tmp_path):
    said = Said()
    with judge(config, ppo, tmp_path, said) as review:
        assert review(iteration(1)) == iteration(1)
        second = review(iteration(2))
        assert second.metrics["Eval/iteration"] == 2.0
        assert second.metrics["Loss/kl"] == 0.5
        assert not second.is_last
        assert review(iteration(3, is_last=True)).metrics["Eval/iteration"] == 3.0
    assert [line.split(":")[0] for line in said] == [
        "evaluation of iteration 2", "evaluation of iteration 3"
    ]  # fmt: skip


def test_a_condition_on_a_metric_of_training_ends_it_with_an_evaluation(config, ppo, tmp_path):
    config.stop_below = (("Loss/kl", 0.1),)
    said = Said()
    with judge(config, ppo, tmp_path, said) as review:
        assert not review(iteration(1)).is_last
        last = review(iteration(3, **{"Loss/kl": 0.05}))
    assert last.is_last
    assert last.metrics["Eval/iteration"] == 3.0
    assert said[0] == "training ends: Loss/kl is 0.05 (--stop-below Loss/kl 0.1)"


def test_conditions_work_without_evaluation(config, ppo, tmp_path):
    config.eval_interval = None
    config.stop_at = (("Loss/kl", 0.5),)
    with judge(config, ppo, tmp_path, Said()) as review:
        assert review(iteration(1)).is_last
    assert not list(tmp_path.iterdir())


def test_who_wants_to_end_does_not_wait_for_an_evaluation(config, ppo, tmp_path):
    with judge(config, ppo, tmp_path, Said(), stop=True) as review:
        last = iteration(2, is_last=True)
        assert review(last) == last
    assert not (tmp_path / BEST).exists()


def test_a_continued_run_keeps_its_best_policy_until_there_is_a_better_one(config, ppo, tmp_path):
    for before, after in ((1e9, 7), (-1e9, 2)):
        infos = {"task": config.task, "env_steps": 1, "eval_mean_return": before}
        save_model(tmp_path / BEST, 7, ppo.save(), infos)
        with judge(config, ppo, tmp_path, Said()) as review:
            review(iteration(2))
        assert read_checkpoint(tmp_path / BEST)["iter"] == after


def test_the_evaluation_of_a_policy_does_not_change_what_training_draws(config, ppo, tmp_path):
    with judge(config, ppo, tmp_path, Said()) as review:
        torch.manual_seed(3)
        review(iteration(2))
        drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), drawn)
