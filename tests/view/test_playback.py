import numpy as np
import pytest
import torch
from rover import rover_env

from simtrain import TerminationTermCfg
from simtrain.view.playback import Playback

STEP_DT = 0.02


def _playback(num_envs=2, **changes):
    return Playback(rover_env(num_envs, **changes), lambda obs, fresh: torch.ones(num_envs, 1))


def _advance(playback, times, passed_s):
    for _ in range(times):
        playback.advance(passed_s)
    return playback.env.steps.item()


def test_as_much_is_simulated_as_time_passes_by_speed_and_pause():
    playback = _playback()
    assert _advance(playback, 10, STEP_DT / 2 + 1e-6) == 5
    playback.speed = 0.5
    assert _advance(playback, 8, STEP_DT + 1e-6) == 9
    playback.paused = True
    assert _advance(playback, 8, STEP_DT) == 9
    playback.step()
    assert playback.env.steps.item() == 10
    playback.paused = False
    assert _advance(playback, 2, STEP_DT) == 11
    playback.speed = 1e9  # what cannot be done in time is dropped
    assert _advance(playback, 1, 1e-9) == 12
    playback.speed = 1.0
    assert _advance(playback, 1, STEP_DT * 0.9) == 12


def test_rewards_of_every_step_and_term_are_kept_for_a_while():
    playback = _playback()
    for _ in range(590):
        playback.step()
    assert len(playback.history) == 500
    assert playback.history[-1].time_s == pytest.approx(590 * STEP_DT)
    speed = playback.env.bind("qvel")[:, 6].abs().numpy()
    np.testing.assert_allclose(playback.history[-1].rewards[:, 0], 0.5 * speed, rtol=1e-5)
    np.testing.assert_allclose(playback.history[-1].rewards[:, 1], 1.0)


def test_it_tells_which_terminations_ended_an_episode_and_goes_on():
    def early(env):
        return env.episode_length_buf == torch.tensor([3, 0])

    ends = {"early": TerminationTermCfg(early), "late": TerminationTermCfg(lambda env: early(env))}
    playback = _playback(terminations=ends)
    for _ in range(4):
        playback.step()
    assert playback.ended == ["early, late", ""]
    assert playback.env.episode_length_buf.tolist() == [1, 4]
    playback.reset()
    assert playback.env.episode_length_buf.tolist() == [0, 0]
    assert len(playback.history) == 0
