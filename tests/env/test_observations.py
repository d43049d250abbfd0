"""Noise, bias, clip, scale and history of observations, and images."""

import pytest
import torch
from tiny_task import at_step, idle, steps_lived, tiny_env, values

from simtrain import (
    GaussianNoiseCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
)
from simtrain.errors import ConfigError

LIVED = ObservationTermCfg(steps_lived)
WHEELS = ("left_hinge", "right_hinge")


def _env(num_envs=2, terminations=None, **terms):
    changes = {} if terminations is None else {"terminations": terminations}
    return tiny_env(num_envs, observations={"actor": terms}, **changes)


def _of_each_env(*rows):
    return lambda env: torch.tensor(rows)


def _first(num_envs=1, **terms):
    return _env(num_envs, **terms).get_observations()["actor"]


def test_what_two_groups_see_is_evaluated_once_a_step_and_disturbed_by_each():
    calls = []

    def seen(env):
        calls.append(1)
        return torch.full((2, 1), float(len(calls)))

    env = tiny_env(
        observations={
            "actor": {"x": ObservationTermCfg(seen, noise=UniformNoiseCfg(1.0, 1.0))},
            "critic": {"x": ObservationTermCfg(seen, scale=10.0), "y": LIVED},
            **{name: {"x": ObservationTermCfg(mdp.joint_pos, joints=name)} for name in WHEELS},
        },
        keyframe="bent",
    )
    # Terms of other parameters are not shared.
    wheels = [env.get_observations()[name][0].item() for name in WHEELS]
    assert wheels == pytest.approx([0.2, 0.4])
    before = len(calls)
    obs, *_ = idle(env)
    assert len(calls) == before + 1
    assert obs["actor"].tolist() == [[before + 2.0]] * 2
    assert obs["critic"].tolist() == [[10.0 * (before + 1.0), 1.0]] * 2


def test_noise_has_its_distribution_in_its_own_term_alone():
    tens = _of_each_env(*[[10.0]] * 5000)
    uniform = ObservationTermCfg(tens, noise=UniformNoiseCfg(-1.0, 3.0))
    normal = ObservationTermCfg(tens, noise=GaussianNoiseCfg(2.0, 1.0))
    obs = _first(5000, uniform=uniform, clean=ObservationTermCfg(tens), normal=normal)
    low, high = obs[:, 0].aminmax()
    assert 9.0 <= low < 9.05
    assert 12.95 < high <= 13.0
    assert (obs[:, 1] == 10.0).all()
    std, mean = torch.std_mean(obs[:, 2])
    assert (mean, std) == (pytest.approx(11.0, abs=0.1), pytest.approx(2.0, abs=0.1))


def test_noise_is_drawn_at_every_step_and_not_at_a_second_look():
    env = _env(x=ObservationTermCfg(_of_each_env([0.0], [0.0]), noise=UniformNoiseCfg()))
    before = env.get_observations()
    first = before["actor"].clone()
    assert torch.equal(env.get_observations()["actor"], first)
    after = idle(env)[0]
    assert (after["actor"] != first).all()
    assert torch.equal(before["actor"], first)  # a copy
    assert torch.equal(env.get_observations()["actor"], after["actor"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"clip": (-1.0, 2.0)}, [-1.0, 2.0]),
        ({"scale": 2.0}, [-10.0, 10.0]),
        ({"scale": (2.0, 0.5)}, [-10.0, 2.5]),
        # Noise, then clip, then scale; whole numbers do.
        ({"noise": UniformNoiseCfg(9, 10), "clip": (-2, 2), "scale": 3}, [6.0, 6.0]),
    ],
)
def test_clip_and_scale_are_those_of_a_term_and_terms_stand_in_their_order(settings, expected):
    x = ObservationTermCfg(_of_each_env([-5.0, 5.0]), **settings)
    env = _env(1, x=x, a=ObservationTermCfg(_of_each_env([-7.0])))
    assert env.get_observations()["actor"].tolist() == [[*expected, -7.0]]
    assert env.observations.groups["actor"].slices == {"x": slice(0, 2), "a": slice(2, 3)}


def test_history_starts_filled_with_the_first_observation_of_an_episode():
    env = _env(
        x=ObservationTermCfg(lambda env: steps_lived(env) + 100.0, history_length=3),
        terminations={"end": TerminationTermCfg(at_step([3, 0]))},
    )
    assert env.get_observations()["actor"].tolist() == [[100.0] * 3] * 2
    obs = idle(env, 3)[0]["actor"]
    assert obs.tolist() == [[100.0] * 3, [101.0, 102.0, 103.0]]
    assert idle(env)[0]["actor"].tolist() == [[100.0, 100.0, 101.0], [102.0, 103.0, 104.0]]


def picture(env, rows=3):
    """Steps lived at every place, plus the place's number."""
    places = torch.arange(2.0 * rows * 4).view(1, 2, rows, 4)
    return places + 100.0 * env.episode_length_buf.view(-1, 1, 1, 1)


def test_an_image_keeps_its_shape_and_has_its_history_in_its_channels():
    term = ObservationTermCfg(picture, history_length=2, scale=0.5)
    env = tiny_env(observations={"actor": {"lived": LIVED}, "camera": {"all": term}})
    obs, *_ = idle(env, 2)
    assert obs["camera"].shape == (2, 4, 3, 4)
    places = torch.arange(24.0).view(2, 3, 4)
    before, now = obs["camera"][0].split(2)
    torch.testing.assert_close(before, 0.5 * (places + 100.0))
    torch.testing.assert_close(now, 0.5 * (places + 200.0))
    assert obs["actor"].tolist() == [[2.0]] * 2


def test_an_image_that_is_not_finite_is_told_by_its_term():
    def broken(env):
        return picture(env).masked_fill(torch.arange(4) == 2, torch.nan)

    camera = {"all": ObservationTermCfg(broken)}
    env = tiny_env(observations={"actor": {"lived": LIVED}, "camera": camera})
    obs, *_ = idle(env)
    assert (obs["camera"][..., 2] == 0.0).all()
    assert env.failures().terms == ("camera.all",)


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        (
            {"x": ObservationTermCfg(steps_lived, scale=(1.0, 2.0))},
            r"actor\.x\.scale has 2 values, and the term has 1",
        ),
        (
            {"x": ObservationTermCfg(values(1.0, 2.0))},
            r"actor\.x has shape \(2,\); it must be \(num_envs, si",
        ),
        (
            {"lived": LIVED, "all": ObservationTermCfg(picture)},
            r"actor\.all is an image among others; give it a group",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(terms, says):
    with pytest.raises(ConfigError, match=says):
        _env(**terms)


def test_a_group_may_have_a_history_and_may_be_taken_apart():
    apart = ObservationGroupCfg(
        {"near": ObservationTermCfg(picture), "far": ObservationTermCfg(picture, rows=5)}, False
    )
    whole = ObservationGroupCfg({"a": LIVED, "b": LIVED}, history_length=3)
    env = tiny_env(observations={"actor": whole, "camera": apart})
    obs, *_ = idle(env, 4)
    assert set(obs.keys()) == {"actor", "camera.near", "camera.far"}
    assert obs["camera.far"].shape == (2, 2, 5, 4)
    assert obs["actor"].tolist() == [[2.0, 3.0, 4.0, 2.0, 3.0, 4.0]] * 2


def test_a_bias_is_drawn_for_an_episode_and_noise_beside_it_for_a_step():
    zeros = _of_each_env(*[[0.0, 0.0]] * 400)
    biased = ObservationTermCfg(zeros, bias=UniformNoiseCfg(1.0, 3.0), history_length=2)
    noisy = ObservationTermCfg(zeros, noise=UniformNoiseCfg(), bias=GaussianNoiseCfg(0.5, 4.0))
    env = _env(400, biased=biased, noisy=noisy)
    episodes = []
    for _ in range(2):
        steps = [env.get_observations()["actor"].clone()]
        steps += [idle(env)[0]["actor"].clone() for _ in range(9)]
        episodes.append(torch.stack(steps))
        assert (episodes[-1][:, :, :4] == episodes[-1][0, :, [0, 1, 0, 1]]).all()
        env.reset()
    bias = episodes[0][0, :, :2]
    assert 1.0 <= bias.min() < 1.02
    assert 2.98 < bias.max() <= 3.0
    assert (episodes[1][0, :, :2] != bias).all()
    parts = episodes[0][:, :, 4:]
    assert parts.std(dim=0).mean() == pytest.approx(1 / 3**0.5, rel=0.1)  # the noise's
    means = parts.mean(dim=0)
    assert means.mean() == pytest.approx(4.0, abs=0.1)
    assert means.std() == pytest.approx((0.5**2 + 1 / 30) ** 0.5, rel=0.1)
