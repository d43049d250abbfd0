import pytest
import torch
from tiny_task import alive, at_step, idle, steps_lived, tiny_env, tiny_task

from simtrain import (
    ActionTermCfg,
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
)
from simtrain.env.commands import CommandTerm
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.env import Env
from simtrain.sim import EngineCfg


def test_a_step_runs_in_the_order_of_the_design():
    calls = []

    def note(what, value=lambda env: torch.ones(env.num_envs)):
        """A term that notes its name, the simulated time and the length of the episode."""

        def term(env, *mask):
            time = round(float(env.bind("time")[0]), 3)
            calls.append((what, time, int(env.episode_length_buf[0])))
            return value(env)

        return term

    class Push(ActionTerm):
        dim = 1

        def apply(self, actions, ctrl):
            calls.append(("actions",))

    class PushCfg(ActionTermCfg):
        def build(self, model, initial_qpos, device):
            return Push()

    class Goal(CommandTerm):
        def __init__(self, env):
            self.env = env
            self.command = env.buffer("command", (1,), reset=None)

        def resample(self, mask):
            if mask.any():
                note("command drawn")(self.env)

        def update(self):
            note("command updated")(self.env)

    env = tiny_env(
        1,
        actions={"push": PushCfg()},
        observations={"actor": {"x": ObservationTermCfg(note("observation", steps_lived))}},
        rewards={"alive": RewardTermCfg(note("reward"), weight=1.0)},
        terminations={"end": TerminationTermCfg(note("termination", at_step([2])))},
        events={
            "reset": EventTermCfg(note("reset event"), mode="reset"),
            "push": EventTermCfg(
                note("interval event"), mode="interval", interval_range_s=(1.0, 1.0)
            ),
        },
        commands={"goal": CommandTermCfg(Goal, resampling_time_range=(10.0, 10.0))},
        curricula={"harder": CurriculumTermCfg(note("curriculum"))},
    )
    calls.clear()
    idle(env)
    assert calls == [
        ("actions",),
        ("termination", 0.02, 1),
        ("reward", 0.02, 1),
        ("command updated", 0.02, 1),
        ("interval event", 0.02, 1),
        ("observation", 0.02, 1),
    ]
    calls.clear()
    idle(env)
    assert calls == [
        ("actions",),
        ("termination", 0.04, 2),
        ("reward", 0.04, 2),
        ("curriculum", 0.04, 2),
        ("reset event", 0.0, 2),
        ("command drawn", 0.0, 0),
        ("command updated", 0.0, 0),
        ("interval event", 0.0, 0),
        ("observation", 0.0, 0),
    ]


def test_the_env_says_what_rsl_rl_asks_for():
    env = tiny_env(3)
    obs, rewards, dones, extras = env.step(torch.zeros(3, 1))
    assert (env.num_envs, env.num_actions, env.max_episode_length) == (3, 1, 10)
    assert (env.step_dt, env.physics_dt) == (0.02, 0.01)
    assert obs.batch_size == (3,)
    assert (rewards.shape, rewards.dtype) == ((3,), torch.float32)
    assert (dones.shape, dones.dtype) == ((3,), torch.bool)
    assert (extras["time_outs"].shape, extras["time_outs"].dtype) == ((3,), torch.bool)
    assert (env.episode_length_buf.shape, env.episode_length_buf.dtype) == ((3,), torch.long)


def test_setting_the_episode_lengths_copies_them():
    env = tiny_env(2)
    lengths = torch.tensor([9, 4])
    buffer = env.episode_length_buf
    env.episode_length_buf = lengths
    dones = idle(env)[2]
    assert dones.tolist() == [True, False]
    assert env.episode_length_buf is buffer
    assert buffer.tolist() == [0, 5]
    assert lengths.tolist() == [9, 4]


def test_a_finished_environment_is_observed_at_the_start_of_its_new_episode():
    env = tiny_env(2, keyframe="bent", terminations={"end": TerminationTermCfg(at_step([2, 0]))})
    env.step(torch.ones(2, 1))
    obs, *_ = env.step(torch.ones(2, 1))
    assert obs["actor"][0].item() == pytest.approx(0.1)
    assert obs["actor"][1].item() > 0.1
    assert env.bind("ctrl")[:, 0].tolist() == [0.0, 1.0]


def test_rewards_and_terminations_see_the_state_before_the_reset():
    def position(env):
        return env.bind("qpos")[:, 7]

    env = tiny_env(
        1,
        rewards={"position": RewardTermCfg(position, weight=1.0)},
        terminations={"gone": TerminationTermCfg(lambda env: position(env) > 1e-4)},
    )
    _, rewards, dones, _ = env.step(torch.ones(1, 1))
    assert dones.item()
    assert rewards.item() == pytest.approx(0.0003 * env.step_dt)
    assert position(env).item() == 0.0


class RandomGoal(CommandTerm):
    def __init__(self, env):
        self.command = env.buffer("command", (1,), reset=None)

    def resample(self, mask):
        fresh = torch.rand_like(self.command)
        self.command.copy_(torch.where(mask.unsqueeze(1), fresh, self.command))


def _push(env, mask):
    env.sim.write("qvel", torch.randn(env.num_envs, 1), mask, slice(6, 7))


_EVENTS = {
    "uniform": EventTermCfg(
        mdp.reset_joints_uniform, mode="reset", joints="left_.*", position=(-1.0, 1.0)
    ),
    "gaussian": EventTermCfg(
        mdp.reset_joints_gaussian, mode="reset", joints="right_.*", velocity_std=1.0
    ),
    "push": EventTermCfg(_push, mode="interval", interval_range_s=(0.03, 0.1)),
}


def _random_env():
    return tiny_env(
        4,
        observations={
            "actor": {
                "position": ObservationTermCfg(
                    mdp.joint_pos, joints=".*_slide", noise=UniformNoiseCfg(), history_length=3
                ),
                "goal": ObservationTermCfg(lambda env: env.command("goal")),
            }
        },
        commands={"goal": CommandTermCfg(RandomGoal, resampling_time_range=(0.03, 0.1))},
        events=_EVENTS,
    )


def test_a_reset_changes_nothing_in_other_environments():
    """To the bit: physics, noise, events and commands, whoever else was reset on the way."""
    trajectories = []
    for first_length in (0, 7):
        torch.manual_seed(1)
        env = _random_env()
        env.episode_length_buf = torch.tensor([first_length, 0, 0, 0])
        generator = torch.Generator().manual_seed(2)
        steps = []
        for _ in range(9):
            actions = torch.rand(4, 1, generator=generator)
            obs, rewards, dones, _ = env.step(actions)
            steps.append((obs["actor"].clone(), rewards.clone(), dones.clone(), env.sim.state()))
        trajectories.append(steps)
    undisturbed, disturbed = trajectories
    assert not torch.stack([dones for _, _, dones, _ in undisturbed]).any()
    assert [bool(dones[0]) for _, _, dones, _ in disturbed] == [False, False, True] + [False] * 6
    for (obs, rewards, _, state), (obs2, rewards2, _, state2) in zip(*trajectories, strict=True):
        assert torch.equal(obs[1:], obs2[1:])
        assert torch.equal(rewards[1:], rewards2[1:])
        assert torch.equal(state["state"][1:], state2["state"][1:])
    assert not torch.equal(undisturbed[-1][0][0], disturbed[-1][0][0])


def test_the_same_seed_gives_the_same_trajectory():
    trajectories = []
    for _ in range(2):
        torch.manual_seed(3)
        env = _random_env()
        trajectories.append(torch.stack([idle(env)[0]["actor"].clone() for _ in range(12)]))
    assert torch.equal(*trajectories)


def test_any_number_of_threads_gives_the_same_physics_to_the_bit():
    states = []
    for threads in (1, 2):
        torch.manual_seed(4)
        env = Env(tiny_task(events=_EVENTS), 33, EngineCfg(threads=threads))
        for _ in range(20):
            env.step(torch.rand(33, 1))
        states.append(env.sim.state()["state"])
    assert torch.equal(*states)


def test_terms_hold_on_to_a_field_that_is_refreshed_in_place():
    env = tiny_env(1)
    qpos = env.bind("qpos")
    env.step(torch.ones(1, 1))
    assert qpos[0, 7].item() == pytest.approx(0.0003)
    env.reset()
    assert qpos[0, 7].item() == 0.0


def test_reset_starts_a_new_episode_everywhere():
    env = tiny_env(2, rewards={"alive": RewardTermCfg(alive, weight=1.0)})
    env.step(torch.ones(2, 1))
    obs = env.reset()
    assert obs["actor"].tolist() == [[0.0], [0.0]]
    assert env.episode_length_buf.tolist() == [0, 0]
    assert env.rewards.episode_sums.abs().sum() == 0.0
    assert env.actions.abs().sum() == 0.0
