"""The trained policies that ship are as good as the figures beside them say, in the task of now."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mujoco
import pytest
import yaml
from scipy.stats import binom, t

from simtrain.config.tasks import discover
from simtrain.deployment.conditions import AS_TRAINED, find_conditions
from simtrain.deployment.export import export_policy
from simtrain.deployment.verify import Verifier
from simtrain.env.model import evaluation_task
from simtrain.sim import EngineCfg
from simtrain.training.evaluator import Evaluation, Evaluator
from simtrain.training.saved_policy import open_policy

FOLDER = Path(__file__).resolve().parents[2] / "tasks"
TASKS = {
    name: task.trained
    for name, task in discover(quiet=True).tasks.items()
    if Path(task.source).is_relative_to(FOLDER)
}
EPISODES = 16


def misfits(figures: dict[str, Any], evaluation: Evaluation) -> list[str]:
    """Estimates that are too far from the figures of a file to be of the same policy and task.

    A mean may differ by four standard errors of so few episodes, and by 1 %; failures may be as
    many as the upper end of the rate's interval lets happen once in 10,000 evaluations.
    """
    count, few, found = figures["episodes"], len(evaluation.returns), []
    assert figures["estimates"].keys() == evaluation.estimates.keys()
    for name, (value, low, high) in figures["estimates"].items():
        now = evaluation.estimates[name].value
        deviation = (high - low) / 2.0 * math.sqrt(count) / t.ppf(0.975, count - 1)
        near = abs(now - value) <= 4.0 * deviation / math.sqrt(few) + 0.01 * abs(value)
        if name == "failure_rate":
            near = now * few <= binom.ppf(1.0 - 1e-4, few, high)
        if not near:
            found.append(f"{name} is {now:.4g}, and was {value:.4g}")
    return found


SHIPPED = (
    "cartpole-balance",
    "cartpole-swingup",
    "go1-velocity-flat",
    "g1-velocity-flat",
    "g1-tracking",
    "yam-lift-cube",
)


@pytest.mark.parametrize("task", SHIPPED)
def test_a_shipped_policy_is_as_good_as_its_file_says(task):
    trained = TASKS[task]
    assert trained.stat().st_size < 1e6
    saved = open_policy(trained)
    cfg, actor = evaluation_task(saved.config.env), saved.config.ppo.actor
    evaluator = Evaluator(cfg, EPISODES, engine=EngineCfg(threads=1), seed=1)
    evaluation = evaluator(actor, saved.content["actor_state_dict"])
    figures = yaml.safe_load(trained.with_suffix(".yaml").read_text())["evaluation"]
    found = "; ".join(misfits(figures, evaluation))
    assert not found, f"{found}: train {task} again, and `uv run simtrain export <run> --ship` it"


# Some are enough in the fast suite.
SLOW = ("cartpole-balance", "g1-tracking", "g1-velocity-flat")
OTHERS = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SHIPPED]


@pytest.mark.parametrize("task", OTHERS)
def test_a_shipped_policy_is_as_good_without_simtrain(task, tmp_path):
    saved = open_policy(TASKS[task])
    saved.config.env.episode_length_s = 4.0
    export_policy(saved, tmp_path, ("onnx",))
    found = Verifier(saved, 4)(tmp_path, {AS_TRAINED: {}})
    assert found.differences == []
    assert found.kept(AS_TRAINED).value >= 0.95
    assert found.played[AS_TRAINED].failed == found.own.failed


def somebody_elses_go1(file: Path, own: Path) -> None:
    """Write a Go1 that differs from `own` as MuJoCo Playground's does.

    Dry friction and damping in the joints, other inertias of rotors, capsules as feet, motors with
    their own limits, another time step and solver; no floor, and a main class without contacts.
    """
    spec = mujoco.MjSpec.from_file(str(own))
    spec.option.timestep, spec.option.iterations, spec.option.ls_iterations = 0.004, 20, 5
    spec.option.solver = mujoco.mjtSolver.mjSOL_CG
    spec.default.geom.contype = spec.default.geom.conaffinity = 0
    spec.default.geom.friction = [0.05, 0.0, 0.0]
    for joint in (joint for joint in spec.joints if joint.type == mujoco.mjtJoint.mjJNT_HINGE):
        joint.frictionloss, joint.armature = 0.3, 0.005
        joint.damping = [0.3, 0.0, 0.0]
    for geom in list(spec.geoms):
        if geom.name.endswith("_foot_collision"):
            geom.type = mujoco.mjtGeom.mjGEOM_CAPSULE
            geom.size = [0.023, 0.01, 0.0]
        elif geom.parent.name == "world":
            spec.delete(geom)
    for actuator in list(spec.actuators):
        joint = actuator.target
        spec.delete(actuator)
        motor = spec.add_actuator(name=joint, target=joint, ctrlrange=[-20.0, 20.0])
        motor.trntype = mujoco.mjtTrn.mjTRN_JOINT
    for element in (*spec.keys, *spec.sensors):
        spec.delete(element)
    file.write_text(spec.to_xml())


def test_the_go1_walks_in_somebody_elses_model(tmp_path):
    saved = open_policy(TASKS["go1-velocity-flat"])
    saved.config.env.episode_length_s = 5.0
    export_policy(saved, tmp_path, ("onnx",))
    other = tmp_path / "other.xml"
    somebody_elses_go1(other, tmp_path / "model.xml")
    names = "in other.xml", "in other.xml, one step late"
    conditions = {name: find_conditions(tmp_path, other)[name] for name in names}
    model = conditions[names[0]]["other"]
    assert model.opt.timestep == 0.004
    assert (model.actuator_forcerange == [-20.0, 20.0]).all()
    assert (model.dof_frictionloss[6:] == 0.3).all()
    found = Verifier(saved, 8)(tmp_path, conditions)
    for name in names:
        assert 0.8 < found.kept(name).value < 0.999
        assert not any(found.played[name].failed)
        assert found.played[name].estimates["lin_vel_error"].value < 0.3


def test_the_tasks_that_ship_a_policy_and_nothing_else_do():
    shipped = {name: trained for name, trained in TASKS.items() if trained.exists()}
    assert set(shipped) == set(SHIPPED)
    files = {path for path in FOLDER.glob("*/trained/*") if path.suffix in (".pt", ".yaml")}
    assert files == {path.with_suffix(s) for path in shipped.values() for s in (".pt", ".yaml")}
