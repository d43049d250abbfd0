"""The README's task is a file that trains."""

from pathlib import Path

import pytest

import simtrain

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def _examples(monkeypatch):
    monkeypatch.setenv("SIMTRAIN_TASKS", str(ROOT / "docs" / "examples"))


def test_the_readme_shows_the_example():
    code = (ROOT / "docs" / "examples" / "level_arm" / "level_arm.py").read_text()
    assert code in (ROOT / "README.md").read_text()


@pytest.mark.usefixtures("_examples")
def test_the_arm_is_held_level_after_training(tmp_path):
    overrides = {"max_iterations": 40, "log_root": tmp_path, "gpu_ids": None, "cpu_threads": 1}
    run = simtrain.train(simtrain.train_config("level-arm", overrides))
    result = simtrain.evaluate(run, episodes=8).estimates
    assert result["mean_return"].value > 4.0  # of 5
