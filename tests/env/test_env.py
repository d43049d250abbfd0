import pytest
import torch
from tiny_task import alive, at_step, idle, steps_lived, tiny_env

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
from simtrain.errors import ConfigError


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
    before = [("actions",), ("termination", 0.02, 1), ("reward", 0.02, 1)]
    after = ["command updated", "interval event", "observation"]
    assert calls == [*before, *((what, 0.02, 1) for what in after)]
    calls.clear()
    idle(env)
    assert calls == [
        ("actions",),
        *(("termination", 0.04, 2), ("reward", 0.04, 2), ("curriculum", 0.04, 2)),
        ("reset event", 0.0, 2),
        *((what, 0.0, 0) for what in ("command drawn", *after)),
    ]


def test_a_finished_environment_is_observed_at_the_start_of_its_new_episode():
    env, lengths = tiny_env(2, keyframe="bent"), torch.tensor([8, 3])
    buffer = env.episode_length_buf
    env.episode_length_buf = lengths
    env.step(torch.ones(2, 1))
    obs, _, dones, extras = env.step(torch.ones(2, 1))
    assert (dones.tolist(), extras["time_outs"].tolist()) == ([True, False], [True, False])
    assert obs["actor"][0].item() == pytest.approx(0.1)
    assert obs["actor"][1].item() > 0.1
    assert env.bind("ctrl")[:, 0].tolist() == [0.0, 1.0]
    assert (env.episode_length_buf is buffer, buffer.tolist()) == (True, [0, 5])
    assert lengths.tolist() == [8, 3]


class RandomGoal(CommandTerm):
    def __init__(self, env):
        self.command = env.buffer("command", (1,), reset=None)

    def resample(self, mask):
        fresh = torch.rand_like(self.command)
        self.command.copy_(torch.where(mask.unsqueeze(1), fresh, self.command))


def _push(env, mask):
    env.sim.write("qvel", torch.randn(env.num_envs, 1), mask, slice(6, 7))


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
        events={
            "uniform": EventTermCfg(
                mdp.reset_joints_uniform, mode="reset", joints="left_.*", position=(-1.0, 1.0)
            ),
            "gaussian": EventTermCfg(
                mdp.reset_joints_gaussian, mode="reset", joints="right_.*", velocity_std=1.0
            ),
            "push": EventTermCfg(_push, mode="interval", interval_range_s=(0.03, 0.1)),
        },
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


def test_reset_starts_a_new_episode_everywhere():
    env = tiny_env(2, rewards={"alive": RewardTermCfg(alive, weight=1.0)})
    qpos = env.bind("qpos")
    env.step(torch.ones(2, 1))
    assert qpos[:, 7].tolist() == pytest.approx([0.0003] * 2)
    obs = env.reset()
    assert obs["actor"].tolist() == [[0.0], [0.0]]
    assert qpos[:, 7].tolist() == [0.0, 0.0]  # refreshed in place
    assert env.episode_length_buf.tolist() == [0, 0]
    assert env.rewards.episode_sums.abs().sum() == 0.0
    assert env.actions.abs().sum() == 0.0


def test_another_default_dtype_is_refused_before_anything_is_computed():
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match=r"is torch.float64, and it must be float32"):
            tiny_env()
    finally:
        torch.set_default_dtype(torch.float32)
