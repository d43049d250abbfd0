"""All of it together: the same on both engines, saved and restored, and without waiting."""

from __future__ import annotations

import pytest
import torch
from going_on import assert_goes_on_the_same
from machine import everything
from waiting import RefuseWaiting

from simtrain import TerminationTermCfg, mdp
from simtrain.env.env import Env
from simtrain.env.model import without_hardware
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg


def test_it_is_the_same_on_both_engines(fast_compilation, tmp_path):
    cfg = everything(tmp_path, drawn=False)
    exact, single = Env(cfg, 4, EngineCfg(threads=1)), Env(cfg, 4, EngineCfg("warp"))
    for _ in range(15):
        actions = torch.randn(4, 9)
        obs, *_ = exact.step(actions)
        other, *_ = single.step(actions)
        torch.testing.assert_close(other["actor"], obs["actor"], rtol=1e-3, atol=1e-3)
    assert obs["actor"].std(dim=0).min() > 1e-3


def test_it_goes_on_the_same_from_a_saved_state(tmp_path):
    def make() -> Env:
        ends = {"time_out": TerminationTermCfg(mdp.time_out, time_out=True)}
        return Env(
            everything(tmp_path, terminations=ends, episode_length_s=0.2), 5, EngineCfg(threads=1)
        )

    env = make()
    env.episode_length_buf = torch.arange(5)
    assert_goes_on_the_same(env, make, before=7, after=14)


def test_without_hardware_nothing_is_late_and_motors_are_servos(tmp_path):
    cfg = everything(tmp_path)
    with pytest.raises(ConfigError, match=r"actuators\.learned is a network"):
        without_hardware(cfg)
    del cfg.actuators["learned"], cfg.actions["roll"]
    env = Env(without_hardware(cfg), 1, EngineCfg(threads=1))
    assert not env._control.by_substep
    yaw = env.model.actuator("yaw")
    assert (yaw.biasprm[1], yaw.forcerange.tolist()) == (-40.0, [-5.0, 5.0])
    assert cfg.actions["reach"].delay_max_lag == 5  # the task itself is as it was


@pytest.mark.parametrize("num_envs", [1, 5])
def test_a_step_does_not_wait_for_the_device(num_envs, tmp_path):
    env = Env(everything(tmp_path, episode_length_s=0.1), num_envs, EngineCfg(threads=1))
    actions = torch.zeros(num_envs, 9)
    env.step(actions)
    with torch.inference_mode(), RefuseWaiting():
        for _ in range(6):
            env.step(actions)
    assert env.undeclared_changes() == []
