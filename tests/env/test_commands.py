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


def _env(num_envs, seconds, **changes):
    return tiny_env(
        num_envs,
        commands={"goal": CommandTermCfg(Draws, resampling_time_range=seconds)},
        observations={"actor": {"goal": ObservationTermCfg(lambda env: env.command("goal"))}},
        **changes,
    )


def test_a_command_is_there_in_the_first_observation():
    assert _env(2, (0.04, 0.04)).get_observations()["actor"].tolist() == [[1.0], [1.0]]


def test_a_command_gets_its_parameters():
    cfg = CommandTermCfg(Draws, resampling_time_range=(1.0, 1.0), start=10.0)
    assert tiny_env(1, commands={"goal": cfg}).command("goal").item() == 11.0


def test_a_command_stands_for_its_time_and_is_then_drawn_anew():
    env = _env(1, (0.05, 0.05), terminations={})
    draws = [idle(env)[0]["actor"].item() for _ in range(7)]
    assert draws == [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0]


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
    env.commands.release("goal")


def test_entries_have_labels_or_numbers_and_bounds():
    term = _env(2, (1.0, 1.0)).commands.terms["goal"]
    assert term.entries() == ("0",)
    assert [bound.tolist() for bound in term.bounds()] == [[-1.0], [1.0]]
    assert term.markers(0) == []
