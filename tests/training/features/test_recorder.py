"""The record of a run: configuration, metrics and console, also where a run is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from tiny_training import make_context, run_for, tiny_config, tiny_trainer

from simtrain.training.features.recorder import Recorder


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_every_iteration_is_written_and_shown(tmp_path):
    config = tiny_config()
    context, trainer = make_context(tmp_path, config), tiny_trainer(config)
    recorder = Recorder(context, trainer)
    done = run_for(trainer, 3, recorder)
    assert [row["iteration"] for row in rows(tmp_path)] == context.console.iterations == [1, 2, 3]  # type: ignore[attr-defined]
    for row, iteration in zip(rows(tmp_path), done, strict=True):
        assert row["env_steps"] == iteration.env_steps
        assert row["Loss/value"] == iteration.metrics["Loss/value"]
    assert recorder.error is None
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert (written["config"]["task"], written["devices"]) == ("tiny", ["cpu"])
    assert list(tmp_path.glob("events.out.tfevents.*"))
