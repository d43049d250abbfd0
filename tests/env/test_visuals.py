"""Models without what is only there to be looked at: the same physics, and the same names."""

import mujoco
import numpy as np
import pytest
from tiny_task import tiny_env, tiny_task

from simtrain import EventTermCfg, RewardTermCfg, mdp
from simtrain.config.tasks import discover
from simtrain.env.model import compile_model
from simtrain.env.names import names_of

LOOKS = """
<mujoco>
  <asset><material name="red" rgba="1 0 0 1"/></asset>
  <default><geom material="red"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 1"/>
    <body name="box" pos="0 0 .3">
      <freejoint/>
      <geom name="box" size=".1"/>
      <geom name="heavy" size=".1" pos=".3 .1 0" contype="0" conaffinity="0"/>
      <geom name="eye" size=".02" pos="0 .1 0" mass="0" contype="0" conaffinity="0"/>
      <geom {unnamed} size=".02" pos="0 -.1 0" mass="0" contype="0" conaffinity="0"/>
      <site name="front"/>
    </body>
    <body name="cart" pos="0 2 1">
      <joint name="left_slide" type="slide" axis="1 0 0"/> <geom name="cart" size=".1"/>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="left_slide"/></actuator>
  <sensor>{sensor}</sensor>
</mujoco>
"""
SAME = ("body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_invweight0", "qpos0")


def looks(unnamed: str = 'name="ear"', sensor: str = "") -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(LOOKS.format(unnamed=unnamed, sensor=sensor))


def geoms(**changes) -> list[str]:
    """What is left of them in a task's model."""
    model = compile_model(tiny_task(**{"model": looks, **changes}))
    return [model.geom(i).name for i in range(model.ngeom)]


def with_geoms(pattern) -> dict:
    params = {"field": "geom_friction", "ranges": (1.0, 2.0)}
    event = EventTermCfg(mdp.randomize_field, mode="reset", geoms=pattern, params=params)
    return {"events": {"friction": event}}


def test_geoms_that_touch_nothing_are_left_out_unless_asked_for() -> None:
    assert geoms() == ["floor", "box", "cart"]
    full = compile_model(tiny_task(model=looks), visuals=True)
    assert (full.ngeom, full.nmat) == (6, 1)


def test_geoms_that_a_term_names_stay() -> None:
    assert geoms(**with_geoms(("box", "ey."))) == ["floor", "box", "eye", "cart"]
    reward = RewardTermCfg(lambda env, eye_geoms: env.bind("geom_xpos")[:, eye_geoms.ids, 2], 1.0)
    reward.params["eye_geoms"] = "eye"
    env = tiny_env(1, model=looks, rewards={"eye": reward})
    height = reward.func(env, env.terms()["rewards.eye"].params["eye_geoms"])  # type: ignore[attr-defined]
    assert height.item() == pytest.approx(0.3)
    # A pattern that matches geoms without a name keeps all of them.
    changes = {"model": lambda: looks(unnamed=""), **with_geoms(".*")}
    assert geoms(**changes) == ["floor", "box", "heavy", "eye", "", "cart"]
    assert geoms(model=changes["model"]) == ["floor", "box", "cart"]


def test_nothing_is_left_out_where_a_sensor_sees_it_or_it_feels_a_fluid() -> None:
    spec = looks()
    spec.geom("eye").fluid_ellipsoid = 1.0
    sensors = '<rangefinder site="front"/>', '<distance body1="box" body2="cart" cutoff="9"/>'
    for full in (spec, *(looks(sensor=sensor) for sensor in sensors)):
        assert len(geoms(model=lambda spec=full: spec)) == 6


@pytest.mark.parametrize("name", ["go1-velocity-flat", "cartpole-balance", None])
def test_a_robot_moves_the_same_with_and_without_its_looks(name: str | None) -> None:
    cfg = tiny_task(model=looks) if name is None else discover().find(name).make()
    bare, full = compile_model(cfg), compile_model(cfg, visuals=True)
    assert bare.nmat < full.nmat
    for kind in ("body", "joint", "site", "sensor", "actuator", "keyframe"):
        assert names_of(bare, kind) == names_of(full, kind)
    for field in SAME:
        np.testing.assert_array_equal(getattr(bare, field), getattr(full, field))
    random = np.random.default_rng(0)
    both = [mujoco.MjData(model) for model in (bare, full)]
    for model, data in zip((bare, full), both, strict=True):
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, data, 0)
    home = both[0].ctrl.copy()
    for _ in range(40):
        ctrl = home + random.normal(0.0, 0.3, bare.nu)
        for model, data in zip((bare, full), both, strict=True):
            data.ctrl[:] = ctrl
            mujoco.mj_step(model, data, nstep=5)
    for field in ("qpos", "qvel", "qacc", "sensordata"):
        np.testing.assert_array_equal(getattr(both[0], field), getattr(both[1], field))
