"""The loop: iterations in order, features in their order, and an end that all agree on."""

from __future__ import annotations

import pytest
from tiny_training import Collected, run_for, tiny_trainer

from simtrain.training.features import Feature, Iteration
from simtrain.training.loop import MIN_EPISODES, EpisodeStatistics, train


class Noting(Feature):
    """Notes when it is entered, called and exited; may end training."""

    def __init__(self, name: str, log: list[str], last: int = 99) -> None:
        self._name, self._log, self._last = name, log, last

    def __enter__(self) -> Noting:
        self._log.append(f"enter {self._name}")
        return self

    def __exit__(self, *exception: object) -> None:
        self._log.append(f"exit {self._name}")

    def after_iteration(self, iteration: Iteration) -> None:
        self._log.append(f"{self._name} {iteration.number}")
        iteration.is_last = iteration.is_last or iteration.number == self._last


def test_features_act_in_their_order_and_are_exited_in_reverse():
    log: list[str] = []
    run_for(tiny_trainer(), 2, Noting("a", log), Noting("b", log))
    assert log == ["enter a", "enter b", "a 1", "b 1", "a 2", "b 2", "exit b", "exit a"]


def test_a_feature_ends_training_and_those_after_it_see_that():
    collected = Collected()
    train(tiny_trainer(), [Noting("a", [], last=3), collected], 10, lambda: False)
    assert [i.is_last for i in collected.iterations] == [False, False, True]


def test_a_steps_reward_is_a_mean_over_all_steps_and_a_return_one_over_whole_episodes():
    iterations = run_for(tiny_trainer(), 6)  # 24 steps of a reward of 0.02, episodes of ten
    for iteration in iterations:
        assert iteration.metrics["Train/mean_step_reward"] == pytest.approx(0.02)
    returns = [i.metrics.get("Train/mean_reward") for i in iterations]
    assert returns[:2] == [None, None]
    assert [r for r in returns if r is not None] == pytest.approx([0.2] * (6 - returns.count(None)))
    assert iterations[-1].metrics["Train/finished_envs"] == 1.0


def test_a_request_to_stop_ends_training_after_the_iteration():
    collected = Collected()
    train(tiny_trainer(), [collected], 10, lambda: len(collected.iterations) == 1)
    assert [i.number for i in collected.iterations] == [1, 2]
    assert collected.iterations[-1].is_last


def test_means_weigh_episodes_alike_and_forget_old_ones_once_there_are_enough():
    statistics = EpisodeStatistics()
    statistics.add(0, 0.0, 0.0)
    assert statistics.means() is None
    statistics.add(1, 10.0, 100.0)
    statistics.add(3, 6.0, 60.0)
    assert statistics.means() == (4.0, 40.0)
    statistics.add(MIN_EPISODES - 3, 0.0, 0.0)
    assert statistics.means() == (6.0 / MIN_EPISODES, 60.0 / MIN_EPISODES)
    statistics.add(3, 0.0, 0.0)
    assert statistics.means() == (0.0, 0.0)


@pytest.mark.parametrize("state", [[[1.0, [2.0], 3.0]], [[1.0, 2.0]]])
def test_damaged_statistics_are_refused(state):
    with pytest.raises((TypeError, ValueError)):
        EpisodeStatistics().set_state(state)
