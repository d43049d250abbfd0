"""What every engine promises (`simtrain.sim.engine.Engine`), on each of them."""

import mujoco
import numpy as np
import pytest
import torch
from engine_models import MIXED, MakeEngine, compile_xml
from torch import Tensor

from simtrain.sim.engine import Engine, Rays
from simtrain.sim.fields import acceleration_sensors

FIELDS = ("time", "qpos", "qvel", "ctrl", "mocap_quat", "xpos", "xquat", "xmat", "cvel", "qacc")
MORE_FIELDS = ("cacc", "cfrc_int", "actuator_force", "sensordata", "geom_xpos", "site_xmat")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return compile_xml(MIXED)


def mask(engine: Engine, *envs: int) -> Tensor:
    chosen = torch.zeros(engine.num_envs, dtype=torch.bool, device=engine.device)
    chosen[list(envs)] = True
    return chosen


def assert_unchanged(engine: Engine, after: Tensor, before: Tensor) -> None:
    """Exactly; on a GPU sums of the same numbers may differ in their last bits."""
    if engine.device.type == "cpu":
        assert torch.equal(after, before)
    else:
        torch.testing.assert_close(after, before)


def test_bound_fields_have_mujocos_shape_in_float32_and_keep_their_storage(
    make: MakeEngine, model
) -> None:
    engine, data = make(model), mujoco.MjData(model)
    bound = {field: engine.bind(field) for field in FIELDS + MORE_FIELDS}
    for field, tensor in bound.items():
        assert tensor.shape == (3, *np.shape(getattr(data, field))), field
        assert tensor.dtype == torch.float32
        assert tensor.device == engine.device
    addresses = {field: tensor.data_ptr() for field, tensor in bound.items()}
    engine.step(2)
    engine.write("qpos", 0.1, mask(engine, 0), slice(7, 8))
    engine.forward()
    engine.reset(mask(engine, 1))
    engine.set_state(engine.state())
    for field, tensor in bound.items():
        assert engine.bind(field) is tensor
        assert tensor.data_ptr() == addresses[field]


def test_steps_that_others_follow_lead_to_the_same(make: MakeEngine, model) -> None:
    engines = [make(model), make(model)]
    fields = ("qpos", "qvel", "xpos", "sensordata", "actuator_force")
    for engine in engines:
        for field in fields:
            engine.bind(field)
        engine.bind("ctrl").fill_(0.3)
    engines[0].step(3)
    engines[1].step(1, refresh=False)
    engines[1].step(1, refresh=False)
    once = make(model)
    once.bind("ctrl").fill_(0.3)
    once.step(2)
    assert_unchanged(once, engines[1].bind("qpos"), once.bind("qpos"))
    engines[1].step(1)
    for field in fields:
        assert_unchanged(engines[0], engines[1].bind(field), engines[0].bind(field))


def test_write_leaves_other_environments_and_entries_alone(make: MakeEngine, model) -> None:
    engine = make(model)
    engine.step(3)
    qpos, qvel = engine.bind("qpos"), engine.bind("qvel")
    before = qpos.clone(), qvel.clone()
    engine.write(
        "qpos", torch.tensor([[0.5], [0.6], [0.7]]).to(qpos), mask(engine, 0, 2), slice(7, 8)
    )
    engine.write("qvel", 2.0, mask(engine, 1), torch.tensor([0, 6], device=engine.device))
    expected = before[0].clone(), before[1].clone()
    expected[0][[0, 2], 7] = torch.tensor([0.5, 0.7]).to(qpos)
    expected[1][1, [0, 6]] = 2.0
    assert torch.equal(qpos, expected[0])
    assert torch.equal(qvel, expected[1])


@pytest.mark.parametrize("field", ["xpos", "sensordata", "body_mass", "nonsense"])
def test_only_state_and_expanded_fields_can_be_written(make: MakeEngine, model, field) -> None:
    with pytest.raises(ValueError, match=f"'{field}' cannot be written"):
        make(model).write(field, 0.0)


def test_derived_fields_follow_a_write_at_the_next_forward(make: MakeEngine, model) -> None:
    engine = make(model)
    engine.step(2)
    xpos, sensordata = engine.bind("xpos"), engine.bind("sensordata")
    before = xpos.clone(), sensordata.clone()
    engine.write("qpos", 1.5, mask(engine, 1), slice(2, 3))
    assert torch.equal(xpos, before[0])
    engine.forward()
    assert xpos[1, 2, 2] == 1.5
    for tensor, old in zip((xpos, sensordata), before, strict=True):
        assert_unchanged(engine, tensor[[0, 2]], old[[0, 2]])


def test_forward_leaves_what_depends_on_accelerations(make: MakeEngine, model) -> None:
    engine = make(model)
    fields = ("qacc", "cacc", "cfrc_int", "actuator_force", "qfrc_actuator", "qfrc_constraint")
    bound = [engine.bind(field) for field in fields]
    sensordata, late = engine.bind("sensordata"), acceleration_sensors(model).to(engine.device)
    engine.bind("ctrl").fill_(0.3)
    engine.step(2)
    before = [tensor.clone() for tensor in (*bound, sensordata[:, late])]
    engine.write("qvel", 1.0, mask(engine, 0))
    engine.forward()
    for tensor, old in zip((*bound, sensordata[:, late]), before, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize("keyframe", [None, 0])
def test_reset_goes_to_the_initial_state(make: MakeEngine, model, keyframe) -> None:
    engine = make(model, keyframe=keyframe)
    fields = ("time", "qpos", "qvel", "ctrl", "qacc_warmstart", "mocap_pos")
    bound = {field: engine.bind(field) for field in fields}
    initial = {field: tensor.clone() for field, tensor in bound.items()}
    engine.bind("ctrl").fill_(1.0)
    engine.write("mocap_pos", 3.0)
    engine.step(3)
    moved = {field: tensor.clone() for field, tensor in bound.items()}
    engine.reset(mask(engine, 0, 2))
    for field, tensor in bound.items():
        assert torch.equal(tensor[[0, 2]], initial[field][[0, 2]]), field
        assert torch.equal(tensor[1], moved[field][1]), field
    expected = mujoco.MjData(model)
    if keyframe is not None:
        mujoco.mj_resetDataKeyframe(model, expected, keyframe)
    np.testing.assert_allclose(bound["qpos"][0].cpu(), expected.qpos, atol=1e-7)
    assert bound["ctrl"][0].item() == pytest.approx(0.2 if keyframe == 0 else 0.0)


def test_reset_zeros_what_depends_on_accelerations(make: MakeEngine, model) -> None:
    engine = make(model)
    sensordata, late = engine.bind("sensordata"), acceleration_sensors(model).to(engine.device)
    bound = [engine.bind(field) for field in ("qacc", "cacc", "actuator_force")]
    xpos = engine.bind("xpos")
    engine.bind("ctrl").fill_(1.0)
    engine.step(2)
    before = [tensor.clone() for tensor in (*bound, sensordata)]
    position = xpos.clone()
    engine.reset(mask(engine, 2))
    for tensor, old in zip((*bound, sensordata), before, strict=True):
        assert torch.equal(tensor[:2], old[:2])
    for tensor in (*bound, sensordata[:, late]):
        assert not tensor[2].any()
    assert torch.equal(xpos, position)
    engine.forward()
    assert xpos[2, 2, 2].item() == pytest.approx(0.3)
    assert not sensordata[2, late].any()


def test_expanded_fields_differ_between_environments(make: MakeEngine, model) -> None:
    engine = make(model)
    gravity, damping = engine.expand("opt.gravity"), engine.expand("dof_damping")
    assert gravity.shape == (3, 3)
    assert damping.shape == (3, model.nv)
    np.testing.assert_allclose(gravity[0].cpu(), model.opt.gravity)
    engine.write(
        "opt.gravity", torch.tensor([0.0, 0.0, 1.0], device=engine.device), mask(engine, 1)
    )
    engine.write("dof_damping", 5.0, mask(engine, 2), slice(6, 7))
    qvel = engine.bind("qvel")
    engine.reset()
    engine.step(10)
    assert engine.expand("opt.gravity") is gravity
    assert qvel[0, 2].item() == pytest.approx(-9.81 * 0.02, rel=1e-5)
    assert qvel[1, 2].item() == pytest.approx(0.02, rel=1e-5)
    assert qvel[2, 2] == qvel[0, 2]
    assert 0 < qvel[2, 6] < qvel[0, 6]


def test_reset_follows_expanded_initial_values(make: MakeEngine, model) -> None:
    engine = make(model)
    engine.expand("qpos0")
    engine.expand("body_pos")
    engine.write("qpos0", 0.5, mask(engine, 1), slice(2, 3))
    engine.write("body_pos", 4.0, mask(engine, 2), slice(1, 2))
    engine.step()
    engine.reset()
    torch.testing.assert_close(engine.bind("qpos")[:, 2].cpu(), torch.tensor([0.3, 0.5, 0.3]))
    torch.testing.assert_close(
        engine.bind("mocap_pos")[:, 0, 2].cpu(), torch.tensor([2.0, 2.0, 4.0])
    )


def test_deferred_constants_are_in_the_end_those_of_mj_set_const(make: MakeEngine, model) -> None:
    engine = make(model)
    for field in ("body_mass", "body_inertia", "dof_armature"):
        engine.expand(field)
    for number, where in enumerate((mask(engine, 0), mask(engine, 2))):
        engine.write("body_mass", 1.5 + number, where)
        engine.write("body_inertia", 0.2 + number, where)
        engine.write("dof_armature", 0.3, where)
        engine.set_const(where, defer=True)
        engine.step()
    exact = []
    for env in range(3):
        exact.append(engine.get_model(env))
        mujoco.mj_setConst(exact[env], mujoco.MjData(exact[env]))
    subtree = engine.expand("body_subtreemass").cpu()
    assert torch.equal(subtree[1], torch.tensor(model.body_subtreemass).float())
    for env in range(3):  # motion depends on it at once
        torch.testing.assert_close(subtree[env].double(), torch.tensor(exact[env].body_subtreemass))
    engine.finish_const()
    for env in range(3):
        for field in ("body_invweight0", "dof_invweight0", "body_subtreemass", "cam_poscom0"):
            value = engine.expand(field)[env].cpu().double()
            torch.testing.assert_close(
                value, torch.tensor(getattr(exact[env], field)), rtol=1e-4, atol=1e-6
            )


def test_a_restored_state_continues_the_same_way(make: MakeEngine, model) -> None:
    engine, other = make(model), make(model)
    qpos, xpos, sensordata = (engine.bind(field) for field in ("qpos", "xpos", "sensordata"))
    engine.expand("body_mass")
    engine.write("body_mass", 2.0, mask(engine, 1))
    engine.set_const()
    engine.bind("ctrl")[:, 0] = torch.tensor([0.1, 0.2, 0.3])
    engine.write("qvel", 1.0, mask(engine, 2), slice(2, 6))
    engine.step(60)
    engine.reset(mask(engine, 0))
    saved = engine.state()
    now = qpos.clone(), xpos.clone(), sensordata.clone()
    futures = []
    for each in (engine, other, engine):
        each.set_state(saved)
        for field, value in zip(("qpos", "xpos", "sensordata"), now, strict=True):
            assert torch.equal(each.bind(field), value), field
        each.step(20)
        futures.append((each.bind("qpos").clone(), each.bind("sensordata").clone()))
    for future in futures[1:]:
        for tensor, expected in zip(future, futures[0], strict=True):
            assert_unchanged(engine, tensor, expected)


def test_a_state_of_another_size_is_refused(make: MakeEngine, model) -> None:
    with pytest.raises(ValueError, match="another model or number of environments"):
        make(model, 2).set_state(make(model, 3).state())


def test_after_step_only_accelerations_are_those_of_the_last_substep(make, model) -> None:
    engine = make(model)
    names = ("xpos", "cvel", "site_xmat", "subtree_com", "qfrc_bias", "qfrc_passive")
    late_names = ("qacc", "cacc", "cfrc_int", "actuator_force", "qfrc_constraint", "qfrc_smooth")
    bound = {field: engine.bind(field) for field in (*names, *late_names, "sensordata")}
    engine.bind("ctrl").fill_(0.4)
    engine.write("qvel", 0.7, index=slice(3, 7))
    engine.write("qpos", 0.12, index=slice(2, 3))
    engine.step(40)
    engine.step(4)

    data = mujoco.MjData(model)
    data.ctrl[:], data.qvel[3:7], data.qpos[2] = 0.4, 0.7, 0.12
    mujoco.mj_step(model, data, nstep=44)
    assert data.ncon > 0
    late = acceleration_sensors(model).numpy()
    expected = {field: getattr(data, field).copy() for field in late_names}
    sensordata = data.sensordata.copy()
    mujoco.mj_forward(model, data)
    expected |= {field: getattr(data, field).copy() for field in names}
    expected["sensordata"] = np.where(late, sensordata, data.sensordata)
    for field, tensor in bound.items():
        torch.testing.assert_close(
            tensor[1].cpu().double(),
            torch.from_numpy(expected[field]),
            rtol=2e-3,
            atol=2e-4,
            msg=field,
        )


def test_steps_without_refresh_can_give_what_depends_on_accelerations(make, model) -> None:
    engine, late = make(model), acceleration_sensors(model)
    qacc, sensordata = engine.bind("qacc"), engine.bind("sensordata")
    engine.bind("ctrl").fill_(0.4)
    engine.write("qpos", 0.12, index=slice(2, 3))
    data = mujoco.MjData(model)
    data.ctrl[:], data.qpos[2] = 0.4, 0.12
    for _ in range(40):
        engine.step(refresh=False, accelerations=True)
        mujoco.mj_step(model, data)
        numbers = (qacc[1], data.qacc), (sensordata[1, late], data.sensordata[late])
        for tensor, expected in numbers:
            exact = torch.as_tensor(expected, dtype=torch.float32)
            torch.testing.assert_close(tensor.cpu(), exact, rtol=2e-3, atol=2e-2)
    assert data.ncon > 0


GRASP = """
<mujoco>
  <default><joint type="slide" stiffness="100" springref="0.05" damping="20"/></default>
  <worldbody>
    <geom name="table" type="plane" size="0 0 1"/>
    <body name="cube" pos="0 0 1">
      <freejoint/> <geom type="box" size="0.02 0.02 0.01" pos="0 0 0.01"/>
      <geom type="box" size="0.02 0.02 0.01" pos="0 0 -0.01"/>
    </body>
    <body name="left" pos="0 0.06 1">
      <joint axis="0 -1 0"/> <geom name="left_pad" type="box" size="0.01 0.01 0.01"/>
    </body>
    <body name="right" pos="0 -0.06 1">
      <joint axis="0 1 0"/> <geom name="right_pad" type="box" size="0.01 0.01 0.01"/>
    </body>
  </worldbody>
  <sensor>
    <contact geom1="left_pad" body2="cube" data="found force" reduce="netforce"/>
    <contact geom1="right_pad" body2="cube" data="found force" reduce="netforce"/>
    <contact subtree1="cube" geom2="table" data="found force" reduce="netforce"/>
  </sensor>
</mujoco>
"""


def test_contacts_between_geoms_bodies_and_subtrees_are_told_apart(make: MakeEngine) -> None:
    engine = make(compile_xml(GRASP))
    sensors = engine.bind("sensordata")
    for env, (height, left, right) in enumerate(
        ((0.0195, 0, 0), (1, 0.0305, 0), (1, 0.0305, 0.0305))
    ):
        for index, number in ((2, height), (7, left), (8, right)):
            engine.write("qpos", number, mask(engine, env), slice(index, index + 1))
    engine.step()
    contacts = sensors.view(3, 3, 4).cpu()
    expected = torch.tensor([[False, False, True], [True, False, False], [True, True, False]])
    assert torch.equal(contacts[:, :, 0] > 0.0, expected)
    assert torch.equal(contacts[:, :, 1:].norm(dim=2) > 0.01, expected)
    assert contacts[2, 0, 2] * contacts[2, 1, 2] < 0.0  # they press against each other


@pytest.mark.parametrize("groups", [None, (0,), (1, 3)])
def test_rays_meet_the_first_geom_as_mj_ray_does(make: MakeEngine, groups) -> None:
    model = compile_xml(MIXED.replace('name="box" type', 'name="box" group="3" type'))
    engine, data = make(model), mujoco.MjData(model)
    count, arm = 200, model.body("arm").id
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(3, count, 3, generator=generator) * torch.tensor([3.0, 0.8, 0.6])
    points += torch.tensor([-0.3, -0.4, 0.2])
    targets = 0.3 * torch.randn(3, count, 3, generator=generator)
    directions = targets + torch.tensor([0.0, 0.0, 0.4]) - points
    directions /= directions.norm(dim=2, keepdim=True)
    rows = [rows.to(engine.device) for rows in (points, directions, torch.zeros(3, count))]
    rays = Rays(*rows, excluded_bodies=(-1,) * 150 + (arm,) * 50, groups=groups)
    for height in (0.3, 0.6):
        engine.write("qpos", height, mask(engine, 1), slice(2, 3))
        engine.forward()
        engine.cast(rays)
        for env in range(3):
            data.qpos[2] = height if env == 1 else 0.3
            mujoco.mj_kinematics(model, data)
            met = None if groups is None else np.isin(np.arange(6), groups).astype(np.uint8)
            expected = [
                mujoco.mj_ray(model, data, *row, met, 1, body, np.zeros(1, np.int32), None)
                for *row, body in zip(
                    points[env].double().numpy(),
                    directions[env].double().numpy(),
                    rays.excluded_bodies,
                    strict=True,
                )
            ]
            expected = torch.tensor(expected)
            torch.testing.assert_close(rays.distances[env].cpu(), expected, rtol=1e-3, atol=1e-3)
            assert (expected == -1.0).any()  # type: ignore[attr-defined]
            assert (expected > 0.0).any()


@pytest.mark.parametrize(
    ("use", "field", "hint"),
    [
        ("bind", "qposs", "did you mean 'qpos'"),
        ("bind", "body_mass", r"use expand\('body_mass'\)"),
        ("bind", "efc_force", "not an MjData array"),
        ("bind", "nefc", "integers or booleans"),
        ("bind", "eq_active", "integers or booleans"),
        ("bind", "subtree_linvel", "add one of subtreelinvel"),
        ("bind", "qLD", "do not keep it up to date"),
        ("bind", "energy", 'energy="enable"'),
        ("expand", "qpos", "bind"),
        ("expand", "body_masss", "'body_mass'"),
    ],
)
def test_fields_that_cannot_be_used_say_why(make: MakeEngine, model, use, field, hint) -> None:
    with pytest.raises(ValueError, match=hint):
        getattr(make(model), use)(field)


def test_a_failed_environment_is_found_and_harms_no_other(make: MakeEngine, model) -> None:
    engine, reference = make(model), make(model)
    for each in (engine, reference):
        each.step(3)
        assert not each.failed.any()
    engine.write("qvel", float("nan"), mask(engine, 1), slice(0, 1))
    for _ in range(3):
        engine.step(2)
        reference.step(2)
        assert engine.failed.tolist() == [False, True, False]
    engine.reset(mask(engine, 1))
    reference.reset(mask(reference, 1))
    for _ in range(3):
        engine.step(2)
        reference.step(2)
    assert not engine.failed.any()
    for field in ("qpos", "qvel"):
        torch.testing.assert_close(engine.bind(field), reference.bind(field))
