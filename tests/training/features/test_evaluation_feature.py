"""Evaluation while training: metrics, the best policy, and the end of training."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_training import ALONE, Console, make_context

from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.run.checkpoint import BEST, read_checkpoint, save_model
from simtrain.training.context import Member
from simtrain.training.features import Iteration
from simtrain.training.features.evaluation import PeriodicEvaluation
from simtrain.training.loop import Trainer
from simtrain.training.worker import make_trainer


@pytest.fixture
def config() -> TrainConfig:
    config = default_config("cartpole-balance")
    config.env.episode_length_s = 0.5
    config.num_envs, config.num_steps_per_env = 2, 4
    config.eval_interval = 2
    config.eval_episodes = 2
    return config


@pytest.fixture
def trainer(config) -> Trainer:
    return make_trainer(config, ALONE)


@pytest.fixture
def evaluation(config, trainer, tmp_path):
    """Makes the feature."""
    return lambda **values: PeriodicEvaluation(make_context(tmp_path, config, **values), trainer)


def after(feature, number: int, is_last: bool = False, **metrics: float) -> Iteration:
    """The iteration of this number after the feature has acted on it."""
    iteration = Iteration(number, 100 * number, {"Loss/kl": 0.5, **metrics}, is_last)
    feature.after_iteration(iteration)
    return iteration


def test_a_condition_on_a_metric_of_training_ends_it_with_an_evaluation(config, evaluation):
    config.until = "Loss/kl<=0.1"
    console = Console()
    with evaluation(console=console) as feature:
        assert not after(feature, 1).is_last
        last = after(feature, 3, **{"Loss/kl": 0.05})
    assert last.is_last
    assert last.metrics["Eval/iteration"] == 3.0
    assert console.lines[0] == 'training ends: Loss/kl is 0.05 (--until "Loss/kl<=0.1")'


def test_conditions_work_without_evaluation(config, evaluation, tmp_path):
    config.eval_interval = None
    config.until = "Loss/kl>=0.5"
    with evaluation() as feature:
        assert after(feature, 1).is_last
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_to_stop_does_not_wait_for_an_evaluation(evaluation, tmp_path):
    with evaluation(stop=lambda: True) as feature:
        assert after(feature, 2, is_last=True).metrics == {"Loss/kl": 0.5}
    assert not (tmp_path / BEST).exists()


def test_an_exchange_uses_the_evaluation_of_its_iteration(evaluation, tmp_path):
    (tmp_path / "members" / "0").mkdir(parents=True)
    with evaluation(member=Member(0, None)) as feature:
        iteration = after(feature, 2)
        made = feature.evaluation_of(2)
        assert made.tags(2).items() <= iteration.metrics.items()
        assert feature.evaluation_of(2) is made
        assert feature.evaluation_of(3) is not made


def test_a_resumed_run_keeps_its_best_policy_until_there_is_a_better_one(
    config, trainer, evaluation, tmp_path
):
    for before, expected in ((1e9, 7), (-1e9, 2)):
        infos = {"task": config.task, "env_steps": 1, "eval_mean_return": before}
        save_model(tmp_path / BEST, 7, trainer.ppo.save(), infos)
        with evaluation() as feature:
            after(feature, 2)
        assert read_checkpoint(tmp_path / BEST)["iter"] == expected


def test_other_ranks_learn_the_result_from_rank_0(evaluation, tmp_path):
    class Second(type(ALONE)):
        def broadcast_object(self, value):
            assert value == ({}, False)
            return {"Eval/mean_return": 7.0}, True

    with evaluation(rank=Second(1, 1, 2, ALONE.device, 1, 1)) as feature:
        iteration = after(feature, 2)
    assert (iteration.metrics["Eval/mean_return"], iteration.is_last) == (7.0, True)
    assert not list(Path(tmp_path).iterdir())
