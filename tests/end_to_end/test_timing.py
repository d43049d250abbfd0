"""The real `train` command tells where its time went, and traces iterations."""

from __future__ import annotations

import json
from pathlib import Path

from simtrain.cli.train import train
from simtrain.config.metric_tags import PHASES, TAG

FLAGS = [
    "--gpu-ids", "None", "--cpu-threads", "1", "--num-envs", "4", "--num-steps-per-env", "4",
    "--logger", "none", "--ppo.num-mini-batches", "1", "--ppo.num-learning-epochs", "1",
    "--ppo.actor.hidden-dims", "8", "--ppo.critic.hidden-dims", "8",
]  # fmt: skip


def _train(folder: Path, *flags: str) -> Path:
    assert train(["cartpole-balance", *FLAGS, "--log-root", str(folder), *flags]) == 0
    (run,) = folder.glob("*/*")
    return run


def test_a_run_logs_its_phases_and_ends_with_a_table(tmp_path, capsys):
    run = _train(tmp_path, "--max-iterations", "12", "--save-interval", "5")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all({TAG + phase for phase in PHASES} <= set(line) for line in lines)
    saving = [line["iteration"] for line in lines if line[TAG + "saving"] > 0.0]
    assert saving == [6, 11]  # that of an iteration is told by the next
    out = capsys.readouterr().out
    table = out[out.index("where the time went") :]
    for label in ("physics", "policy inference", "backward", "optimizer", "logging", "saving"):
        assert f"\n  {label} " in table
    assert "waiting" not in table  # one rank
    assert "iteration" in table
    assert "100.0 %" in table


def test_profile_traces_the_10th_to_12th_iteration_with_their_phases(tmp_path, capsys):
    run = _train(tmp_path, "--max-iterations", "13", "--profile")
    assert f"trace:      {run / 'trace.json'}" in capsys.readouterr().out
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    names = [event.get("name", "") for event in events if event.get("ph") == "X"]
    steps = {name for name in names if str(name).startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#9", "ProfilerStep#10", "ProfilerStep#11"}  # it counts from 0
    assert names.count("physics") == 3 * 4
    assert names.count("forward") == 3 * 2  # of policy and value
    assert "aten::addmm" in names


def test_a_trace_that_cannot_come_is_told(tmp_path, capsys):
    stop = ["--until", "Perf/time/physics<1000"]
    run = _train(tmp_path, "--max-iterations", "13", "--profile", *stop)
    assert (
        "warning: there is no trace (--profile): training ended before" in capsys.readouterr().out
    )
    assert not (run / "trace.json").exists()
