import pytest
import torch
from tiny_task import tiny_env

from simtrain import EventTermCfg, mdp

LEFT_SLIDE, LEFT_HINGE = 7, 8


def _reset_env(func, num_envs=4000, **params):
    return tiny_env(
        num_envs, keyframe="bent", events={"spread": EventTermCfg(func, "reset", **params)}
    )


def test_uniform_resets_fill_their_bounds_around_the_initial_position():
    env = _reset_env(
        mdp.reset_joints_uniform, joints="left_.*", position=(-0.2, 0.4), velocity=(1.0, 3.0)
    )
    position, velocity = env.bind("qpos")[:, LEFT_HINGE], env.bind("qvel")[:, LEFT_HINGE - 1]
    assert 0.0 <= position.min() < 0.01
    assert 0.59 < position.max() <= 0.6
    assert position.mean() == pytest.approx(0.3, abs=0.01)
    assert 1.0 <= velocity.min() < 1.02
    assert 2.98 < velocity.max() <= 3.0
    # Joints that were not named start where the keyframe says, at rest.
    assert torch.allclose(env.bind("qpos")[:, 9:], torch.tensor([0.3, 0.4]))
    assert (env.bind("qvel")[:, 8:] == 0.0).all()


def test_gaussian_resets_have_their_standard_deviations():
    env = _reset_env(
        mdp.reset_joints_gaussian, joints=".*_slide", position_std=0.5, velocity_std=2.0
    )
    std, mean = torch.std_mean(env.bind("qpos")[:, [7, 9]], dim=0)
    torch.testing.assert_close(mean, torch.tensor([0.1, 0.3]), atol=0.04, rtol=0.0)
    torch.testing.assert_close(std, torch.tensor([0.5, 0.5]), atol=0.03, rtol=0.0)
    std, mean = torch.std_mean(env.bind("qvel")[:, [6, 8]], dim=0)
    torch.testing.assert_close(mean, torch.zeros(2), atol=0.12, rtol=0.0)
    torch.testing.assert_close(std, torch.tensor([2.0, 2.0]), atol=0.1, rtol=0.0)


@pytest.mark.parametrize(
    ("func", "params"),
    [
        (mdp.reset_joints_uniform, {"position": (-1.0, 1.0), "velocity": (-1.0, 1.0)}),
        (mdp.reset_joints_gaussian, {"position_std": 1.0, "velocity_std": 1.0}),
    ],
)
def test_reset_events_leave_unmasked_environments_alone(func, params):
    env = _reset_env(func, num_envs=3, joints=".*_slide", **params)
    qpos, qvel = env.bind("qpos").clone(), env.bind("qvel").clone()
    env.events.reset(torch.tensor([False, True, False]))
    for before, now in ((qpos, env.bind("qpos")), (qvel, env.bind("qvel"))):
        assert torch.equal(now[[0, 2]], before[[0, 2]])
        assert not torch.equal(now[1], before[1])
