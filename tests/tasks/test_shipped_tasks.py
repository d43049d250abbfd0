"""What holds for every task that ships, and what their recipes promise."""

import os
from pathlib import Path

import mujoco
import pytest
import torch

from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.env.model import check_task
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg

FOLDER = Path(__file__).resolve().parents[2] / "tasks"
ALL = discover(quiet=True).tasks
TASKS = [name for name, task in ALL.items() if Path(task.source).is_relative_to(FOLDER)]


def _task(name):
    return discover().find(name).make()


# The others are evaluated with their policies, see test_shipped_policies.py.
@pytest.mark.parametrize("name", [name for name in TASKS if not ALL[name].trained.exists()])
def test_twenty_steps_give_finite_observations_and_rewards(name):
    cfg = _task(name)
    check_task(cfg)
    env = Env(cfg, 4, EngineCfg(threads=1))
    for _ in range(20):
        observations, rewards, _, _ = env.step(0.3 * torch.randn(4, env.num_actions))
        assert all(group.isfinite().all() for group in observations.values())
        assert rewards.isfinite().all()


@pytest.mark.parametrize("name", [n for n in TASKS if "velocity" in n])
def test_the_critic_sees_the_truth_and_the_actor_does_not(name):
    actor, critic = (_task(name).observation_terms()[group] for group in ("actor", "critic"))
    noisy = {name for name, term in actor.items() if term.noise}
    assert {"base_ang_vel", "projected_gravity", "joint_pos"} <= noisy
    assert all(term.noise is None for term in critic.values())
    assert set(actor) < set(critic)
    assert "base_lin_vel" in set(critic) - set(actor)  # no robot measures it


def test_a_blind_go1_remembers_and_has_the_groups_of_its_teacher_besides():
    blind, teacher = _task("go1-velocity-rough-blind"), _task("go1-velocity-rough")
    seen = blind.observations["proprioception"]
    assert seen.keys() == teacher.observations["actor"].keys() - {"height_scan"}
    assert not any(term.history_length for term in seen.values())
    for group, terms in teacher.observations.items():
        assert blind.observations[group].keys() == terms.keys()
    assert (blind.ppo.actor.obs_groups, blind.ppo.actor.model) == (("proprioception",), "gru")
    assert blind.ppo.critic.obs_groups == ("critic",)


@pytest.mark.parametrize("name", ["go1-velocity-flat", "go1-velocity-rough"])
def test_another_scene_may_take_the_robots_place(name, tmp_path):
    robot = os.path.relpath(FOLDER / "go1" / "go1.xml", tmp_path)
    (tmp_path / "scene.xml").write_text(
        f'<mujoco><include file="{robot}"/>'
        '<worldbody><geom name="ground" type="plane" size="0 0 1"/></worldbody></mujoco>'
    )
    cfg = _task(name)
    cfg.model = tmp_path / "scene.xml"
    env = Env(cfg, 2, EngineCfg(threads=1))
    planes = env.model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    assert planes.any() == (cfg.terrain is None)
    assert env.step(torch.zeros(2, 12))[0]["actor"].isfinite().all()


def test_a_model_without_a_floating_base_is_told(tmp_path):
    (tmp_path / "arm.xml").write_text(
        "<mujoco><worldbody><body><joint name='FR_hip_joint'/><geom size='1'/></body></worldbody>"
        "<keyframe><key name='home'/></keyframe></mujoco>"
    )
    cfg = _task("go1-velocity-flat")
    cfg.model = tmp_path / "arm.xml"
    with pytest.raises(ConfigError, match=r"no joint matches '.*_thigh_joint'"):
        check_task(cfg)
