import json

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from simtrain.run.metrics import MetricsWriter


def test_each_iteration_is_a_line_of_json_and_a_step_of_tensorboard(tmp_path):
    writer = MetricsWriter(tmp_path, tensorboard=True)
    writer.write(1, 256, 0.5, {"Loss/value": 2.0})
    writer.write(2, 512, 1.0, {"Loss/value": 1.0, "Train/mean_reward": 3.5})
    writer.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"iteration": 1, "env_steps": 256, "wall_s": 0.5, "Loss/value": 2.0},
        {
            "iteration": 2, "env_steps": 512, "wall_s": 1.0,
            "Loss/value": 1.0, "Train/mean_reward": 3.5,
        },
    ]  # fmt: skip
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("Loss/value")] == [(1, 2.0), (2, 1.0)]
    assert [(e.step, e.value) for e in events.Scalars("Train/mean_reward")] == [(2, 3.5)]


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path):
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.write(1, 8, 0.1, {})
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["iteration"] == 1
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_what_is_not_finite_is_null_in_the_json(tmp_path):
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.write(1, 8, 0.1, {"Loss/value": float("nan"), "Loss/kl": 0.5})
    writer.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["Loss/value"], line["Loss/kl"]) == (None, 0.5)
