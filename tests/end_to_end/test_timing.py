"""The real `train` command tells where its time went, and traces iterations."""

from __future__ import annotations

import json

from job import metrics_of

from simtrain.cli.train import train
from simtrain.run.metric_tags import TAG
from simtrain.training.features.timing import LAST

FLAGS = f"""
    cartpole-balance --gpu-ids None --cpu-threads 1 --num-envs 4 --num-steps-per-env 4 --logger none
    --ppo.num-mini-batches 1 --ppo.num-learning-epochs 1 --ppo.actor.hidden-dims 8
    --ppo.critic.hidden-dims 8 --max-iterations {LAST + 1} --save-interval 5 --profile
""".split()


def test_a_run_ends_with_a_table_of_its_phases_and_profile_traces_some_iterations(here, capsys):
    assert train(FLAGS) == 0
    (run,) = here.glob("logs/*/*")
    saving = [line["iteration"] for line in metrics_of(run) if line[TAG + "saving"] > 0.0]
    assert saving == [6, 11]  # that of an iteration is told by the next
    out = capsys.readouterr().out
    assert "trace.json" in out
    table = out[out.index("where the time went") :]
    for label in ("physics", "policy inference", "backward", "optimizer", "logging", "saving"):
        assert f"\n  {label} " in table

    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    names = [event.get("name", "") for event in events if event.get("ph") == "X"]
    steps = {name for name in names if str(name).startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#9", "ProfilerStep#10", "ProfilerStep#11"}  # it counts from 0
    assert names.count("physics") == 3 * 4
    assert names.count("forward") == 3 * 2  # of policy and value
    assert "aten::addmm" in names
