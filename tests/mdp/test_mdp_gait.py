import math

import pytest
import torch
from walker import CONTACTS, FEET, HINGES, set_contact, set_state, value, walker_env, walker_task

from simtrain import CommandTermCfg, JointPositionActionCfg, Mirror, ObservationTermCfg, mdp
from simtrain.env.env import Env
from simtrain.env.model import check_task
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg
from simtrain.training.reflection import mirror_maps

VELOCITY = CommandTermCfg(
    mdp.UniformVelocityCommand,
    (1e6, 1e6),
    lin_vel_x=(0.5, 0.5),
    lin_vel_y=(0.0, 0.0),
    ang_vel_z=(0.0, 0.0),
    rel_standing_envs=0.5,
)


def _task(offsets=(0.0, 0.5), reference=None, **params):
    clock = CommandTermCfg(mdp.GaitClock, (1e6, 1e6), sites=FEET, offsets=offsets, **params)
    action = JointPositionActionCfg(HINGES, reference=reference)
    commands = {"velocity": VELOCITY, "gait": clock}
    return walker_task(commands=commands, actions={"joint_pos": action})


def _env(num_envs=1, **params):
    return Env(_task(**params), num_envs, EngineCfg(threads=1))


def _walking(**params):
    env = _env(**params)
    env.commands.hold("velocity", [0.5, 0.0, 0.0])
    env.commands.compute()
    return env


def _set_phase(env, phase):
    env.declared("commands.gait.phase")["commands.gait.phase"].copy_(torch.tensor(phase))
    env.commands.terms["gait"].update()


def _phase(env):
    sin, cos = env.command("gait").unbind(1)
    return torch.atan2(sin, cos) / (2.0 * math.pi) % 1.0


def test_the_clock_runs_at_its_frequency_where_the_robot_is_to_walk_and_shows_nothing_elsewhere():
    env = _env(400, frequency=(1.0, 2.0))
    moving = env.command("velocity")[:, 0] > 0.0
    assert 120 < moving.sum() < 280
    before = _phase(env)
    env.step(torch.zeros(400, 2))
    assert (env.command("gait")[~moving] == 0.0).all()
    assert torch.allclose(env.command("gait")[moving].norm(dim=1), torch.ones(()))
    frequencies = (_phase(env) - before)[moving] % 1.0 / env.step_dt
    assert frequencies.min() >= 1.0 - 1e-3
    assert frequencies.max() <= 2.0 + 1e-3
    assert frequencies.mean() == pytest.approx(1.5, abs=0.1)
    assert before[moving].std() == pytest.approx(math.sqrt(1 / 12), abs=0.04)  # uniform


def test_feet_swing_in_turns_each_for_the_rest_of_its_period():
    env = _walking(frequency=(2.5, 2.5), stance=0.6)
    term, swings = env.commands.terms["gait"], []
    for _ in range(20):  # a period
        term.update()
        swings.append(term.swing()[0].clone())
    swings = torch.stack(swings)
    assert (swings > 0.0).sum(dim=0).tolist() == [8, 8]
    assert not (swings > 0.0).all(dim=1).any()
    # From nothing to all of the swing, in equal steps.
    left = swings[:, 0][swings[:, 0] > 0.0].sort().values
    assert torch.allclose(left.diff(), torch.full((7,), 0.125), atol=1e-4)
    env.commands.hold("velocity", [0.0, 0.0, 0.0])
    env.commands.compute()
    assert term.swing().tolist() == [[0.0, 0.0]]


def test_the_clock_runs_on_for_the_time_in_which_a_robot_comes_to_rest():
    env = _env(400, stopping_time=0.1)  # 5 steps
    term, walks = env.commands.terms["gait"], env.command("velocity")[:, 0] > 0.0
    assert torch.equal(env.command("gait").norm(dim=1) > 0.5, walks)  # also if it begins at rest
    env.commands.hold("velocity", [0.0, 0.0, 0.0])
    assert torch.equal(term.swing().amax(dim=1) > 0.0, walks)
    for _ in range(5):
        env.commands.compute()
        assert torch.equal(env.command("gait").norm(dim=1) > 0.5, walks)
    env.commands.compute()
    assert (env.command("gait") == 0.0).all()
    assert (term.swing() == 0.0).all()


def test_feet_are_rewarded_for_touching_in_stance_and_for_their_height_in_swing():
    env = _walking(frequency=(0.0, 0.0), stance=0.5)
    _set_phase(env, [0.75])  # the left foot is amid its swing
    for touches, expected in (([0, 1], 1.0), ([1, 1], 0.5), ([1, 0], 0.0)):
        set_contact(env, [touches])
        assert value(env, mdp.feet_contact_by_phase, sensors=CONTACTS, gait="gait") == expected
    # Both sites are 0.05 m high, as on the ground; the left one should be 0.1 m higher.
    set_state(env, torch.tensor([[0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]))
    params = {"sites": FEET, "gait": "gait", "swing_height": 0.1, "sole": 0.05}
    height = value(env, mdp.feet_height_by_phase, std=0.1, **params)
    assert height == pytest.approx(math.exp(-1.0), rel=1e-3)


def test_joints_that_move_cost_something_only_while_the_clock_stands():
    env = _walking()
    params = {"joints": HINGES, "gait": "gait"}
    set_state(env, torch.zeros(1, 9), torch.tensor([[0.0] * 6 + [3.0, -4.0]]))
    assert value(env, mdp.joint_vel_at_rest_l2, **params) == 0.0
    env.commands.hold("velocity", [0.0, 0.0, 0.0])
    env.commands.compute()
    assert value(env, mdp.joint_vel_at_rest_l2, **params) == pytest.approx(25.0)


def test_actions_can_be_relative_to_legs_that_bend_in_their_swing():
    bend, clock = {"left_hinge": 0.4, "right_hinge": -0.2}, {"frequency": (0.0, 0.0)}
    env = _env(2, bend=bend, stance=0.5, reference="gait", **clock)
    env.commands.hold("velocity", [0.5, 0.0, 0.0])
    # The left foot is amid its swing in one environment; in the other, the right one in a quarter.
    env.commands.compute()
    _set_phase(env, [0.75, 0.125])
    env.step(torch.tensor([[0.0, 0.0], [0.1, 0.1]]))
    home = torch.tensor([0.1, -0.2])
    moved = torch.tensor([[0.4, 0.0], [0.1, 0.1 - 0.2 * 0.5]])
    assert torch.allclose(env.bind("ctrl"), home + moved, atol=1e-6)
    env.commands.hold("velocity", [0.0, 0.0, 0.0])
    env.commands.compute()
    env.step(torch.zeros(2, 2))
    assert torch.allclose(env.bind("ctrl"), home.expand(2, 2))


def test_joints_are_rewarded_for_being_where_a_motion_has_them():
    env = _walking(frequency=(0.0, 0.0), stance=0.5, bend={"left_hinge": 0.4})
    _set_phase(env, [0.75])
    params = {"joints": HINGES, "command": "gait", "std": 0.5}
    # By hand: 0.4 too far for one joint of two, which is at its start.
    assert value(env, mdp.track_reference_joint_pos_exp, **params) == pytest.approx(
        math.exp(-(0.4**2) / 2.0 / 0.5**2), rel=1e-4
    )
    _set_phase(env, [0.25])
    assert value(env, mdp.track_reference_joint_pos_exp, **params) == pytest.approx(1.0)


def _reflection(offsets, **params):
    shown = ObservationTermCfg(mdp.generated_commands, command="gait")
    commands = _task(offsets=offsets, **params).commands
    changes = {"keyframe": None, "symmetry": Mirror(), "commands": commands}
    env = walker_env(observations={"actor": {"gait": shown}}, **changes)
    return mirror_maps(env, env.device).observations["actor"]


def test_a_reflected_clock_is_half_a_period_later_if_its_feet_are():
    shown = torch.tensor([[0.3, 0.7]])
    assert torch.equal(_reflection((0.0, 0.5))(shown), -shown)
    assert torch.equal(_reflection((0.25, 0.25))(shown), shown)
    with pytest.raises(ConfigError, match=r"all differ by 0.5; they are \(0.0, 0.3\)"):
        _reflection((0.0, 0.3))
    with pytest.raises(ConfigError, match="bend is not symmetric: that of 'left_hinge'"):
        _reflection((0.0, 0.5), bend={"left_hinge": 0.4, "right_hinge": 0.3})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"reference": "velocity"}, "a UniformVelocityCommand has no motion of joints"),
        ({"reference": "gait", "bend": {"knee": 0.1}}, "no joint matches 'knee'; there are"),
        ({"reference": "gate"}, r"no command 'gate' \(did you mean 'gait'\?\); there are"),
        ({"offsets": (0.0, 0.5, 0.5)}, "3 offsets for 2 feet: left_foot, right_foot"),
        ({"stance": 1.0}, "stance is 1.0; it must be 0.999 or less"),
    ],
)
def test_a_clock_that_cannot_be_is_refused(params, message):
    cfg = _task(**params)
    with pytest.raises(ConfigError, match=message):
        Env(cfg, check_task(cfg) and 1, EngineCfg())
    with pytest.raises(ConfigError, match="'velocity' is no GaitClock"):
        value(_env(), mdp.feet_contact_by_phase, sensors=CONTACTS, gait="velocity")
