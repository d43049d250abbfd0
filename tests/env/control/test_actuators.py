"""What drives joints: servos, DC motors and learned networks, in place of the model's actuators."""

import numpy as np
import pytest
import torch
from going_on import assert_goes_on_the_same
from machine import ARM, everything, linear_network, machine, machine_env, machine_task

from simtrain import (
    DcMotorActuatorCfg,
    EventTermCfg,
    IdealPdActuatorCfg,
    JointPositionActionCfg,
    NetworkActuatorCfg,
    TerminationTermCfg,
    mdp,
)
from simtrain.env.control.actuators import check_networks
from simtrain.env.env import Env
from simtrain.env.model import check_task, compile_model, without_hardware
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg

YAW = {"yaw": JointPositionActionCfg("yaw", scale=3.0)}
STALL, SPEED = 8.0, 2.0


def _dc(joints="yaw", **changes):
    return DcMotorActuatorCfg(joints, saturation_effort=STALL, velocity_limit=SPEED, **changes)


def _seen(env, actions, before, after=None):
    """What is seen before and after every physics step of some control steps. Shape: ``(n, k)``."""
    seen, step = [], env.sim.step

    def spy(nstep=1, **more):
        assert nstep == 1
        row = before()
        step(nstep, **(more if after is None else {}))  # with `after`, forces are refreshed, too
        seen.append((*row, *(() if after is None else after())))

    env.sim.step = spy
    for action in actions:
        env.step(torch.tensor([[action]]))
    return np.array(seen)


def test_a_servo_takes_the_place_of_the_models_actuator():
    cfg = IdealPdActuatorCfg(
        ("pitch", "wheel"), stiffness={"pitch": 7.0, "wheel": 5.0}, damping=0.5, effort_limit=3.0
    )
    actions = {"all": JointPositionActionCfg(("pitch", "wheel"))}
    before = machine().compile()
    model = compile_model(machine_task(actuators={"x": cfg}, actions=actions))
    assert [model.actuator(i).name for i in range(6)] == [before.actuator(i).name for i in range(6)]
    for name, kp in (("pitch", 7.0), ("wheel", 5.0)):
        actuator = model.actuator(name)
        assert (actuator.gainprm[0], *actuator.biasprm[:3]) == (kp, 0.0, -kp, -0.5)
        assert actuator.forcerange.tolist() == [-3.0, 3.0]
    assert model.actuator("pitch").ctrlrange == pytest.approx(np.deg2rad([-100, 100]))
    # What is not given is that of the model's servo.
    cfg = IdealPdActuatorCfg("yaw", damping=1.0)
    yaw = compile_model(machine_task(actuators={"x": cfg}, actions=YAW)).actuator("yaw")
    assert (yaw.biasprm[:3].tolist(), yaw.forcerange.tolist()) == ([0, -40, -1], [-30, 30])


def test_a_joint_without_an_actuator_gets_one_and_the_keyframe_goes_on():
    actions = {"cart": JointPositionActionCfg("cart")}
    servo = IdealPdActuatorCfg("cart", stiffness=5.0, damping=1.0)
    env = machine_env(actuators={"x": servo}, actions=actions)
    assert env.model.actuator(6).name == "cart"
    env.step(torch.ones(1, 1))
    assert env.bind("ctrl")[0, 6] == pytest.approx(1.5)  # from the keyframe's 0.5


def test_a_dc_motor_does_no_more_than_its_line_allows():
    actions = [1.0] * 6 + [-1.0] * 12 + [0.0] * 150
    env = machine_env(actuators={"x": _dc(effort_limit=6.0)}, actions=YAW)
    force = env.bind("actuator_force")[:, 0]
    speed, force = _seen(env, actions, lambda: env.bind("qvel")[0, :1].tolist(), force.tolist).T
    most = np.clip(STALL * (1.0 - speed / SPEED), -6.0, 6.0)
    least = np.clip(STALL * (-1.0 - speed / SPEED), -6.0, 6.0)
    assert (force <= most + 1e-4).all()
    assert (force >= least - 1e-4).all()
    assert np.isclose(force, most, atol=1e-4).sum() > 10
    assert np.isclose(force, least, atol=1e-4).sum() > 10
    assert (np.isclose(force, 6.0, atol=1e-4).any(), np.isclose(force, -6.0).any()) == (True, True)
    assert force[-1] == pytest.approx(0.0, abs=0.1)  # it has arrived, as a servo


def test_mujocos_own_dc_motor_moves_the_same():
    envs = [machine_env(actions=YAW, actuators={"x": _dc(builtin=b)}) for b in (False, True)]
    assert [env._control.by_substep for env in envs] == [True, False]
    for step in range(60):
        for env in envs:
            env.step(torch.tensor([[1.0 if step < 20 else -1.0]]))
        torch.testing.assert_close(envs[1].bind("qpos"), envs[0].bind("qpos"), rtol=1e-4, atol=1e-5)
    assert envs[0].bind("qpos")[0, 0] < 0.0


def test_a_dc_motor_that_is_strong_enough_is_the_servo_to_the_bit_with_randomized_gains():
    draw = {"mode": "startup", "joints": "yaw"}
    events = {
        "gains": EventTermCfg(
            mdp.randomize_actuator_gains, stiffness=(0.5, 0.5), damping=(1.0, 1.0), **draw
        ),
        "bias": EventTermCfg(mdp.randomize_encoder_bias, bias=(0.1, 0.1), **draw),
    }
    strong = DcMotorActuatorCfg("yaw", saturation_effort=1e6, velocity_limit=1e6)
    envs = [machine_env(actions=YAW, actuators=a, events=events) for a in ({}, {"x": strong})]
    for env in envs:
        for _ in range(250):
            env.step(torch.full((1, 1), 0.2))
    assert torch.equal(envs[1].bind("qpos"), envs[0].bind("qpos"))
    assert envs[0].bind("qpos")[0, 0] == pytest.approx(0.2 + 0.6 - 0.1, abs=1e-2)


def _network(path, **changes):
    return {"wheel": NetworkActuatorCfg("wheel", network=path, **changes)}


WHEEL = {"wheel": JointPositionActionCfg("wheel", scale=1.0)}


def test_a_network_gets_errors_and_velocities_of_the_latest_physics_steps(tmp_path):
    # The effort is twice the error now, less a tenth of that of two steps ago, less the velocity.
    path = linear_network(tmp_path / "n.onnx", [2.0, -0.1, -1.0, 0.0])
    env = machine_env(
        actions=WHEEL, actuators=_network(path, history_steps=(0, 2), torque_scale=0.5)
    )
    fields = [env.bind(name)[0] for name in ("qpos", "qvel", "ctrl")]
    position, speed, ctrl = _seen(env, [1.0] * 5, lambda: [field[3].item() for field in fields]).T
    error = 1.0 - position
    earlier = np.array([0.0, 0.0, *error])[: len(error)]
    assert len(error) == 20
    expected = 0.5 * (2.0 * error - 0.1 * earlier - speed)
    np.testing.assert_allclose(ctrl - position, expected, atol=1e-5)
    env.reset()
    assert env.state()["actuators.wheel.history"].abs().max() == 0.0


def test_a_network_may_be_torchscript_and_have_velocities_first(tmp_path):
    script = linear_network(tmp_path / "n.pt", [-1.0, 2.0], 0.25)
    onnx = linear_network(tmp_path / "n.onnx", [2.0, -1.0], 0.25)
    orders = (script, "vel_pos"), (onnx, "pos_vel")
    envs = [
        machine_env(2, actions=WHEEL, actuators=_network(p, history_steps=(0,), input_order=o))
        for p, o in orders
    ]
    for _ in range(10):
        for env in envs:
            env.step(torch.tensor([[1.0], [-2.0]]))
    torch.testing.assert_close(envs[0].bind("qpos"), envs[1].bind("qpos"))
    assert envs[0].bind("qpos")[0, 3] > 0.05


def _mistakes(folder):
    linear_network(folder / "n.onnx", [1.0, 1.0])
    (folder / "bad.onnx").write_bytes(b"nothing")
    torch.save({"weight": torch.zeros(1)}, folder / "state.pt")
    by_name = {"saturation_effort": {"y.*": 1.0}, "velocity_limit": {"q": 1.0}}
    of_files = {
        "no.onnx": "no network file .*no.onnx",
        "": "no network file",
        "bad.onnx": "bad.onnx cannot be read",
        "state.pt": "state.pt cannot be read as TorchScript: save a scripted .* not its state_dict",
        "n.onnx": "does not make one number of 6 inputs",
    }
    return [
        (IdealPdActuatorCfg("wheel", stiffness=1.0), r"x: 'wheel' has no servo .* its damping"),
        (IdealPdActuatorCfg("weel", stiffness=1.0), r"x: no joint matches 'weel' \(did you mean"),
        (_dc("wheel"), "no servo in the model to take its stiffness from"),
        (_dc(stiffness=0.0), "the stiffness of 'yaw' is 0"),
        (DcMotorActuatorCfg("yaw", **by_name), "'q'"),
        *((NetworkActuatorCfg("wheel", network=folder / n), says) for n, says in of_files.items()),
    ]


@pytest.mark.parametrize("which", range(10))
def test_what_cannot_be_is_told(which, tmp_path):
    cfg, says = _mistakes(tmp_path)[which]
    with pytest.raises(ConfigError, match=says):
        check_task(machine_task(actuators={"x": cfg}, actions=YAW))


def test_two_that_are_for_one_joint_are_an_error():
    both = {"a": IdealPdActuatorCfg(ARM), "b": _dc()}
    with pytest.raises(ConfigError, match=r"actuators.b: 'yaw' has .* --env.actuators.a already"):
        compile_model(machine_task(actuators=both, actions=YAW))


def test_an_onnx_network_is_refused_where_a_gpu_simulates(tmp_path):
    """Before anything is built, for its Runtime would wait for the GPU at every physics step."""
    cfgs = _network(linear_network(tmp_path / "n.onnx", [1.0] * 6))
    check_networks(cfgs, "cpu")
    check_networks(_network(linear_network(tmp_path / "n.pt", [1.0] * 6)), "cuda:0")
    with pytest.raises(ConfigError, match=r"--env.actuators.wheel.network: .* as TorchScript"):
        Env(machine_task(actuators=cfgs, actions=WHEEL), 1, EngineCfg("warp", "cuda:0"))


def test_it_goes_on_the_same_from_a_saved_state(tmp_path):
    def make() -> Env:
        ends = {"time_out": TerminationTermCfg(mdp.time_out, time_out=True)}
        cfg = everything(tmp_path, terminations=ends, episode_length_s=0.2)
        return Env(cfg, 5, EngineCfg(threads=1))

    env = make()
    env.episode_length_buf = torch.arange(5)
    assert_goes_on_the_same(env, make, before=7, after=14)
    assert env.undeclared_changes() == []


@pytest.mark.usefixtures("fast_compilation")
def test_all_kinds_of_actions_and_actuators_are_the_same_on_both_engines(tmp_path):
    task = everything(tmp_path, drawn=False)
    exact, single = (Env(task, 8, EngineCfg(name, threads=1)) for name in ("mujoco", "warp"))
    for field in ("qpos", "qvel"):
        single.sim.write(field, exact.bind(field))
    single.sim.forward()
    generator = torch.Generator().manual_seed(0)
    for _ in range(15):
        actions = torch.randn(8, exact.num_actions, generator=generator).clamp(-2.0, 2.0)
        (obs, *_), (other, *_) = exact.step(actions), single.step(actions)
        torch.testing.assert_close(other["actor"], obs["actor"], rtol=1e-3, atol=1e-3)
    assert obs["actor"].std(dim=0).min() > 1e-3


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
