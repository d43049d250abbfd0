"""When commands are drawn, held and released."""

from tiny_task import at_step, idle, tiny_env

from simtrain import CommandTermCfg, ObservationTermCfg, TerminationTermCfg
from simtrain.env.commands import CommandTerm


class Draws(CommandTerm):
    """Commands that count how often they were drawn, from `start` on."""

    def __init__(self, env, start=0.0):
        self.command = env.buffer("command", (1,), reset=None).fill_(start)
        self.updates = 0

    def resample(self, mask):
        self.command += mask.unsqueeze(1).float()

    def update(self):
        self.updates += 1


def _env(num_envs, seconds, start=0.0, **changes):
    goal = CommandTermCfg(Draws, resampling_time_range=seconds, start=start)
    return tiny_env(
        num_envs,
        commands={"goal": goal},
        observations={"actor": {"goal": ObservationTermCfg(lambda env: env.command("goal"))}},
        **changes,
    )


def test_a_command_is_drawn_first_and_anew_when_its_time_has_passed():
    env = _env(1, (0.05, 0.05), start=10.0, terminations={})
    draws = [env.get_observations()["actor"].item()]
    draws += [idle(env)[0]["actor"].item() for _ in range(7)]
    assert draws == [11.0, 11.0, 11.0, 12.0, 12.0, 12.0, 13.0, 13.0]


def test_times_are_drawn_for_each_environment():
    env = _env(200, (0.03, 0.09), terminations={})
    assert env.commands.terms["goal"].updates == 1
    first = idle(env, 2)[0]["actor"].squeeze(1)
    assert first.unique().tolist() == [1.0, 2.0]
    assert env.commands.terms["goal"].updates == 3


def test_a_new_episode_has_a_new_command_and_others_keep_theirs():
    env = _env(2, (10.0, 10.0), terminations={"end": TerminationTermCfg(at_step([2, 0]))})
    assert idle(env, 2)[0]["actor"].tolist() == [[2.0], [1.0]]


def test_a_held_command_stays_in_all_environments_through_resets_until_it_is_released():
    env = _env(2, (0.05, 0.05), terminations={"end": TerminationTermCfg(at_step([2, 0]))})
    env.commands.hold("goal", [7.5])
    assert env.command("goal").tolist() == [[7.5], [7.5]]
    for _ in range(6):
        assert idle(env)[0]["actor"].tolist() == [[7.5], [7.5]]
    env.commands.release("goal")
    # Drawn anew at once, not when its time has come.
    assert idle(env)[0]["actor"].tolist() == [[8.5], [8.5]]
