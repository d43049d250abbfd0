"""Wrong flags and damaged files end in a line or two; ``fuzz.py`` runs as many as one likes."""

from __future__ import annotations

import random

import pytest
from fuzz import Fuzzer

CASES = 120


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["wrong_flags", "damaged_files"])
def test_nothing_that_a_user_gives_ends_in_a_traceback_or_other_numbers(
    kind, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    fuzzer = Fuzzer(tmp_path, random.Random(15))
    for _ in range(CASES):
        getattr(fuzzer, kind)()
    assert not fuzzer.problems, "\n\n".join(fuzzer.problems)
    assert fuzzer.outcomes["exit code 2"] > CASES / 5
