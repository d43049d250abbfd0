import io

from rich.console import Console

from simtrain.run.console import Status, TrainingConsole

STATUS = Status(
    iteration=7,
    iterations=150,
    env_steps=57_344,
    steps_per_second=51_234.5,
    mean_return=812.345,
    mean_length=998.6,
    max_episode_length=1000,
    seconds_left=83.4,
)
FIRST = Status(1, 150, 8192, 50_000.0, None, None, 1000, 100.0)


def _shown(*statuses: Status, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, highlight=False)
    with TrainingConsole("hop", 150, console) as view:
        for status in statuses:
            view.show(status)
        view.say("saved [model]")
    return file.getvalue()


def test_without_a_terminal_each_iteration_is_one_plain_line():
    assert _shown(FIRST, STATUS, terminal=False).splitlines() == [
        "iteration   1/150  env steps 8,192  50,000 steps/s  "
        "no episode has finished yet  left 0:01:40",
        "iteration   7/150  env steps 57,344  51,234 steps/s  "
        "return 812.35  length 999  left 0:01:23",
        "saved [model]",
    ]


def test_on_a_terminal_a_live_view_shows_the_latest_iteration():
    shown = _shown(FIRST, STATUS, terminal=True)
    last = shown[shown.rindex("hop") :]
    for part in ("7/150", "57,344", "51,234", "812.35", "999 of 1000", "0:01:23"):
        assert part in last
    assert "none yet" not in last
    assert "\x1b[?25l" in shown, "the cursor is hidden while the view is live"
    assert shown.rstrip().endswith("\x1b[?25h"), "and back afterwards"
    assert "saved [model]" in shown


def test_the_live_view_says_when_no_episode_has_finished():
    assert "none yet" in _shown(FIRST, terminal=True)
