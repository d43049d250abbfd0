"""Wrong flags end in a line or two; ``fuzz.py`` runs as many as one likes."""

from __future__ import annotations

import random

import fuzz
import pytest


@pytest.mark.slow
def test_nothing_that_a_user_types_ends_in_a_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fuzz, "SECONDS", 60)  # other tests may want the cores
    fuzzer = fuzz.Fuzzer(tmp_path, random.Random(15))
    for _ in range(80):
        fuzzer.wrong_flags()
    assert not fuzzer.problems, "\n\n".join(fuzzer.problems)
    assert fuzzer.outcomes["exit code 2"] > 30
