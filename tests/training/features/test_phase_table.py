"""The table at the end of a run: where the time went."""

from __future__ import annotations

import io

from rich.console import Console

from simtrain.training.features.timing import phase_table


def test_the_table_tells_milliseconds_and_shares_of_phases_and_their_groups():
    file = io.StringIO()
    seconds = {"physics": 0.5, "rewards": 0.25, "forward": 0.2, "saving": 0.05, "waiting": 0.0}
    Console(file=file, width=80).print(phase_table(seconds))
    rows = [line.split() for line in file.getvalue().splitlines()]
    assert rows == [
        ["where", "the", "time", "went", "ms", "share"],
        ["rollout", "750.00", "75.0", "%"],
        ["physics", "500.00", "50.0", "%"],
        ["rewards", "250.00", "25.0", "%"],
        ["update", "200.00", "20.0", "%"],
        ["forward", "200.00", "20.0", "%"],
        ["between", "50.00", "5.0", "%"],
        ["saving", "50.00", "5.0", "%"],
        ["iteration", "1,000.00", "100.0", "%"],
    ]
