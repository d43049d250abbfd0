"""What holds for every task that ships, and what their recipes promise."""

import os
from pathlib import Path

import mujoco
import pytest
import torch

from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.sim import EngineCfg

FOLDER = Path(__file__).resolve().parents[2] / "tasks"


def _task(name):
    return discover().find(name).make()


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
