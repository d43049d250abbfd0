"""Every field that can be drawn moves the simulation, and alike on both engines."""

from __future__ import annotations

import mujoco
import pytest
import torch
from engine_models import MIXED
from tiny_task import tiny_task

from simtrain import EventTermCfg, JointEffortActionCfg, ObservationTermCfg, mdp
from simtrain.env.env import Env
from simtrain.env.model import check_task
from simtrain.env.terms import Term
from simtrain.sim import EngineCfg

pytestmark = pytest.mark.usefixtures("fast_compilation")

MODEL = (
    MIXED.replace('name="box" pos', 'name="box" simple="false" pos')
    .replace('name="arm" pos', 'name="arm" simple="false" pos')
    .replace('damping=".1"', 'damping=".1" armature=".01" range="-20 20" frictionloss=".01"')
    .replace('<motor name="hinge"', '<motor name="hinge" ctrlrange="-9 9" forcerange="-2 2"')
    .replace(
        "<actuator>", '<contact><pair name="sole" geom1="floor" geom2="box"/></contact><actuator>'
    )
)


def _field(field: object, **params: object) -> EventTermCfg:
    return EventTermCfg(mdp.randomize_field, "startup", params={"field": field, **params})


def _added(field: str, **params: object) -> EventTermCfg:
    return _field(field, operation="add", **params)


CASES = {
    "mass": _field(("body_mass", "body_inertia"), bodies="arm", ranges=(2.0, 3.0)),
    "center": _added("body_ipos", bodies="arm", ranges={"x": (0.03, 0.05)}),
    "place": _added("body_pos", bodies="arm", ranges={"z": (0.1, 0.2)}),
    "pose": _added("body_quat", bodies="arm", ranges={"roll": (0.2, 0.5)}),
    "armature": _field("dof_armature", joints="hinge", ranges=(2.0, 3.0)),
    "damping": _field("dof_damping", joints="hinge", ranges=(2.0, 3.0)),
    "friction loss": _added("dof_frictionloss", joints="hinge", ranges=(0.3, 0.4)),
    "range": _field("jnt_range", joints="hinge", ranges={"upper": (0.01, 0.02)}),
    "default position": _added("qpos0", joints="hinge", ranges=(0.2, 0.3)),
    "effort": _field("actuator_forcerange", actuators="hinge", ranges=(0.1, 0.2)),
    "size": _field("geom_size", geoms="box", ranges=(0.5, 0.7)),
    "friction of a pair": _field("pair_friction", pairs="sole", ranges=(0.1, 0.2)),
    "gravity": _added("opt.gravity", ranges={"x": (0.5, 1.0)}),
}
CASES["pseudo-inertia"] = EventTermCfg(
    mdp.randomize_pseudo_inertia, "startup", bodies="box|arm",
    alpha=(0.1, 0.2), d=(-0.2, 0.2), s=(-0.2, 0.2), t=(0.02, 0.04),
)  # fmt: skip


def _trajectories(engine: str) -> torch.Tensor:
    """Of an environment for each case, and one of the model itself."""
    task = tiny_task(
        model=lambda: mujoco.MjSpec.from_string(MODEL),
        episode_length_s=100.0,
        actions={"hinge": JointEffortActionCfg("hinge")},
        observations={"actor": {"q": ObservationTermCfg(mdp.joint_pos, joints="hinge")}},
        events=CASES,
    )
    check_task(task)
    task.events = {}
    env = Env(task, len(CASES) + 1, EngineCfg(engine, threads=1))
    torch.manual_seed(0)
    for i, (name, cfg) in enumerate(CASES.items()):
        Term(cfg, env, f"test.{name}")(torch.arange(env.num_envs) == i)
    env.update_constants(defer=False)
    env.reset()
    env.sim.write("qvel", torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    states = []
    for _ in range(30):
        env.step(torch.full((env.num_envs, 1), 0.8))
        tip = env.bind("site_xpos")[:, env.model.site("tip").id]
        states.append(torch.cat((env.bind("qpos"), tip), dim=1))
    return torch.stack(states, dim=1)


def test_each_field_has_an_effect_and_the_same_on_both_engines() -> None:
    exact, single = (_trajectories(engine) for engine in ("mujoco", "warp"))
    for i, name in enumerate(CASES):
        assert (exact[i] - exact[-1]).abs().max() > 3e-3, f"{name} changes nothing"
        torch.testing.assert_close(
            single[i], exact[i], rtol=1e-3, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )
