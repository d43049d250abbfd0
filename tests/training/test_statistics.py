import pytest

from simtrain.training.statistics import MIN_EPISODES, EpisodeStatistics


def test_there_are_no_means_before_a_first_episode_has_finished():
    statistics = EpisodeStatistics()
    statistics.add(0, 0.0, 0.0)
    assert statistics.means() is None


def test_means_weigh_every_episode_alike():
    statistics = EpisodeStatistics()
    statistics.add(1, 10.0, 100.0)
    statistics.add(3, 6.0, 60.0)
    assert statistics.means() == (4.0, 40.0)


def test_old_iterations_are_forgotten_once_newer_ones_have_enough_episodes():
    statistics = EpisodeStatistics()
    statistics.add(5, 500.0, 5.0)
    statistics.add(MIN_EPISODES - 1, 0.0, 0.0)
    assert statistics.means()[0] == pytest.approx(500.0 / (MIN_EPISODES + 4))
    statistics.add(1, 0.0, 0.0)
    assert statistics.means() == (0.0, 0.0)


@pytest.mark.parametrize("state", [[[1.0, [2.0], 3.0]], [[1.0, 2.0]], [[0.0, 2.0, 3.0]]])
def test_a_state_that_is_none_is_refused(state):
    with pytest.raises((TypeError, ValueError)):
        EpisodeStatistics().set_state(state)
