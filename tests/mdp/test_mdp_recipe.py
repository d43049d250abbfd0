"""Figures of `velocity_task` follow the size of the robot and the number of its legs."""

from pathlib import Path

import pytest

from simtrain.mdp.locomotion.recipe import rough_velocity_task, velocity_task


def make(hip_height: float, legs: int, **more):
    return velocity_task(
        Path("scene.xml"),
        joints=".*",
        feet=".*_foot",
        foot_geoms=".*_foot",
        base="trunk",
        hip_height=hip_height,
        base_height=1.1 * hip_height,
        offsets=(0.0, 0.5) * (legs // 2),
        bend={"knee": 0.5},
        action_scale=0.2,
        lin_vel_x=(-1.0, 1.0),
        lin_vel_y=(-0.5, 0.5),
        ang_vel_z=(-1.0, 1.0),
        frequency=2.0,
        swing_height=0.1 * hip_height,
        **more,
    )


@pytest.mark.parametrize("legs", [2, 4])
def test_a_robot_four_times_as_high_is_judged_at_twice_the_velocity_and_half_the_rate(legs):
    low, high = make(0.25, legs), make(1.0, legs)

    def ratio(term: str, name: str) -> float:
        return high.rewards[term].params[name] / low.rewards[term].params[name]

    assert ratio("track_lin_vel_xy", "std") == pytest.approx(2.0, rel=0.05)
    assert ratio("track_ang_vel_z", "std") == pytest.approx(0.5, rel=0.05)
    assert ratio("feet_height", "std") == pytest.approx(4.0, rel=0.05)
    pushes = [cfg.events["push"].params["velocity_range"]["x"][1] for cfg in (low, high)]
    assert pushes[1] / pushes[0] == pytest.approx(2.0, rel=0.05)
    discounts = [1.0 - cfg.ppo.gamma for cfg in (low, high)]
    assert discounts[1] / discounts[0] == pytest.approx(0.5, rel=0.05)
    assert discounts[1] == pytest.approx(0.016, abs=5e-4)


def test_a_robot_on_two_legs_ends_when_it_sinks_and_is_pushed_later():
    biped, quadruped = make(0.8, 2), make(0.8, 4)
    assert 0.5 < biped.terminations["sank"].params["minimum_height"] < 0.6
    assert "sank" not in quadruped.terminations
    assert biped.events["push"].after_steps > quadruped.events["push"].after_steps > 0


def test_steps_of_rough_ground_are_as_high_as_legs_can_climb():
    stairs = {
        legs: rough_velocity_task(make(0.5, legs), hip_height=0.5).terrain.sub_terrains["stairs_up"]
        for legs in (2, 4)
    }
    assert stairs[2].params["step_height"] == (0.015, 0.075)
    assert stairs[4].params["step_height"] == (0.035, pytest.approx(0.265, abs=0.01))
    assert stairs[4].proportion == 2.0


def test_the_policy_sees_what_a_robot_measures_late_and_the_critic_the_truth():
    cfg = make(0.3, 4, timestep=0.005, decimation=4)
    actor, critic = (cfg.observation_terms()[group] for group in ("actor", "critic"))
    assert "base_lin_vel" in critic.keys() - actor.keys()
    assert set(actor) < set(critic)
    lags = {name: term.delay_max_lag for name, term in actor.items() if term.delay_max_lag}
    assert all(actor[name].noise for name in lags)
    assert lags == dict.fromkeys(("base_ang_vel", "projected_gravity", "joint_pos", "joint_vel"), 1)
    assert actor["last_action"].history_length == actor["joint_pos"].history_length > 1
    action = cfg.actions["joint_pos"]
    assert action.delay_max_lag * cfg.timestep == pytest.approx(0.02)
    assert actor["joint_vel"].delay_hold_prob == action.delay_hold_prob == 1.0
    for term in critic.values():
        assert (term.noise, term.delay_max_lag, term.history_length) == (None, 0, 0)
