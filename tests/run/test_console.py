import io

from rich.console import Console

from simtrain.cli.terminal import print_table
from simtrain.run.console import Status, TrainingConsole, fitted

METRICS = {"Perf/total_fps": 51_234.5, "Train/mean_step_reward": 0.81234}
EPISODES = {"Train/mean_reward": 812.345, "Train/mean_episode_length": 998.6}
EPISODES |= {"Episode_Reward/a": 0.1, "Episode_Reward/b": -2.0, "Episode_Reward/c": 0.02}
EPISODES |= {"Episode_Reward/d": 1.23456}
FIRST = Status(1, 150, 8192, METRICS, 1000, 100.0)
EARLY = Status(6, 150, 49_152, {**METRICS, **EPISODES, "Train/finished_envs": 0.31}, 1000, 84.0)
STATUS = Status(7, 150, 57_344, {**METRICS, **EPISODES, "Train/finished_envs": 1.0}, 1000, 83.4)


def _shown(*statuses: Status, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80, highlight=False)
    with TrainingConsole("hop", 150, console) as view:
        for status in statuses:
            view.show(status)
        view.say("saved [model]")
    return file.getvalue()


def test_without_a_terminal_each_iteration_is_one_plain_line():
    assert _shown(FIRST, EARLY, STATUS, terminal=False).splitlines() == [
        "iteration   1/150  env steps 8,192  51,234 steps/s  reward/step 0.8123  "
        "no whole episode yet  left 0:01:40",
        "iteration   6/150  env steps 49,152  51,234 steps/s  reward/step 0.8123  "
        "return 812.35  length 999 (incomplete)  left 0:01:24  "
        "largest rewards: b -2, d 1.23, a 0.1",
        "iteration   7/150  env steps 57,344  51,234 steps/s  reward/step 0.8123  "
        "return 812.35  length 999  left 0:01:23  largest rewards: b -2, d 1.23, a 0.1",
        "saved [model]",
    ]


def test_on_a_terminal_a_live_view_shows_the_latest_iteration():
    shown = _shown(FIRST, STATUS, terminal=True)
    last = shown[shown.rindex("hop") :]
    for part in ("7/150", "57,344", "51,234", "0.8123", "812.35", "999 of 1000", "0:01:23"):
        assert part in last
    assert "none yet" not in last
    assert "incomplete" not in last
    assert shown.rstrip().endswith("\x1b[?25h"), "the cursor is back"
    assert "saved [model]" in shown
    assert "largest rewards: b -2, d 1.23, a 0.1" in last
    assert "none yet" in _shown(FIRST, terminal=True)
    assert "are incomplete: 31 % of environments" in _shown(EARLY, terminal=True)


def test_a_terminal_breaks_no_word_and_no_command():
    text = f"error: {'word ' * 14}and so on; `uv run simtrain list-tasks --all` lists all of them"
    narrow = Console(file=io.StringIO(), force_terminal=True, width=80)
    *lines, last = fitted(text, narrow).splitlines()
    assert [len(line) for line in lines] == [80]
    assert last == "so on; `uv run simtrain list-tasks --all` lists all of them"
    command = f"to go on: uv run train {'hop ' * 20}".rstrip()
    assert fitted(command, narrow).splitlines() == ["to go on:", command.removeprefix("to go on: ")]
    assert fitted(text, Console(file=io.StringIO(), width=80)) == text


def test_a_table_that_is_too_wide_stands_on_its_side():
    def shown(width: int) -> list[str]:
        console = Console(file=io.StringIO(), width=width)
        print_table(console, ("checkpoint", "return", "length"), [("a/b.pt", "1 ± 2", "1000")])
        return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]

    assert shown(40) == ["checkpoint   return   length", "a/b.pt        1 ± 2     1000"]
    assert shown(24) == ["a/b.pt", "return   1 ± 2", "length    1000"]
