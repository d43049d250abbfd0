import pytest
import torch
from tiny_task import STEP_DT, idle, tiny_env, tiny_task

from simtrain import EventTermCfg, mdp
from simtrain.env.model import evaluation_task

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


def _pushed(mode="reset", **params):
    event = EventTermCfg(mdp.apply_body_force, mode, bodies="box", params=params)
    env = tiny_env(3, events={"push": event})
    speeds = []
    for _ in range(9):
        idle(env)
        speeds.append(env.bind("qvel")[:, :6].clone())
    return torch.stack(speeds)


def test_a_force_lasts_as_long_as_it_is_told_to():
    # The box has 1 kg.
    force = {"x": (3.0, 3.0)}
    impulse = _pushed(force_range=force, duration_s=(0.0, 0.0))[:, :, 0]
    torch.testing.assert_close(impulse, torch.full((9, 3), 3.0 * STEP_DT))
    lasting = _pushed(force_range=force, duration_s=(0.06, 0.06))[:, :, 0]
    steps = torch.tensor([1.0, 2.0] + 7 * [3.0])
    torch.testing.assert_close(lasting[:, 0], steps * 3.0 * STEP_DT)
    through = _pushed(force_range=force)[:, :, 0]
    torch.testing.assert_close(through[:, 0], torch.arange(1.0, 10.0) * 3.0 * STEP_DT)


def test_forces_are_each_environments_own_and_end_with_the_episode():
    event = EventTermCfg(
        mdp.apply_body_force, "reset", bodies="box", force_range={"y": (-1, 1), "yaw": (-2, 2)}
    )
    env = tiny_env(500, events={"push": event})
    applied = env.bind("xfrc_applied")[:, env.model.body("box").id].clone()
    assert not applied[:, [0, 2, 3, 4]].any()
    for column, bound in ((1, 1.0), (5, 2.0)):
        assert -bound <= applied[:, column].min() < -0.95 * bound
        assert 0.95 * bound < applied[:, column].max() <= bound
    idle(env, 5)
    assert torch.equal(env.bind("xfrc_applied")[:, 1], applied)
    idle(env, 5)  # the episodes end
    assert not torch.isclose(env.bind("xfrc_applied")[:, 1], applied)[:, 1].any()


def test_intervals_begin_forces_that_follow_ends():
    params = {"force_range": {"x": (3.0, 3.0)}, "duration_s": (0.04, 0.04), "bodies": "box"}
    event = EventTermCfg(
        mdp.apply_body_force, "interval", interval_range_s=(0.05, 0.05), params=params
    )
    env = tiny_env(1, events={"push": event})
    forces = []
    for _ in range(9):
        idle(env)
        forces.append(env.bind("xfrc_applied")[0, 1, 0].item())
    assert forces == [0.0, 0.0, 3.0, 3.0, 0.0, 3.0, 3.0, 0.0, 3.0]


def _speed_up(env, mask):
    env.sim.write("qvel", env.bind("qvel")[:, :1] + 1.0, mask, slice(0, 1))


def test_events_of_mode_step_happen_at_every_step_of_training():
    events = {"wind": EventTermCfg(_speed_up, "step", after_steps=3)}
    env = tiny_env(2, events=events)
    idle(env, 2)
    assert not env.bind("qvel")[:, 0].any()
    idle(env, 4)
    assert env.bind("qvel")[:, 0].tolist() == [4.0, 4.0]
    assert evaluation_task(tiny_task(events=events)).events == {}
