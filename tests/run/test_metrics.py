import json
import os
import resource

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from simtrain.errors import ConfigError
from simtrain.run.metric_tags import RETURN
from simtrain.run.metrics import MetricsWriter, check_idle

FILE_SIZE = resource.RLIMIT_FSIZE


def scalars(run, tag):
    events = EventAccumulator(str(run))
    events.Reload()
    return [(e.step, e.value) for e in events.Scalars(tag)]


def iterations(run):
    return [json.loads(line)["iteration"] for line in (run / "metrics.jsonl").open()]


def write(run, numbers, *, after=0, sizes=None):
    """Write some iterations; the warnings, and the sizes of TensorBoard's files after each."""
    writer = MetricsWriter(run, tensorboard=True, after=after, event_sizes=sizes)
    sizes = {}
    for number in numbers:
        writer.write(number, 8 * number, number / 2, {"a": float(number), RETURN: float(number)})
        sizes[number] = writer.event_sizes()
    writer.close()
    return writer.warnings, sizes


def test_each_iteration_is_a_line_of_json_and_a_step_of_tensorboard(tmp_path):
    writer = MetricsWriter(tmp_path, tensorboard=True)
    writer.write(1, 256, 0.5, {"Loss/value": float("nan")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["iteration"] == 1, "at once"
    writer.write(2, 512, 1.0, {"Loss/value": 1.0, "Train/mean_reward": 3.5})
    writer.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"iteration": 1, "env_steps": 256, "wall_s": 0.5, "Loss/value": None},
        {
            "iteration": 2, "env_steps": 512, "wall_s": 1.0,
            "Loss/value": 1.0, "Train/mean_reward": 3.5,
        },
    ]  # fmt: skip
    assert scalars(tmp_path, "Loss/value")[1] == (2, 1.0)
    assert scalars(tmp_path, "Train/mean_reward") == [(2, 3.5)]
    assert scalars(tmp_path, "Train/mean_reward/env_steps") == [(512, 3.5)]
    assert scalars(tmp_path, "Train/mean_reward/time") == [(1, 3.5)]


def test_a_resumed_run_has_every_iteration_once(tmp_path):
    _, sizes = write(tmp_path, range(1, 8))
    _, sizes = write(tmp_path, range(5, 8), after=4, sizes=sizes[4])
    write(tmp_path, range(7, 10), after=6, sizes=sizes[6])
    assert iterations(tmp_path) == list(range(1, 10))
    assert scalars(tmp_path, "a") == [(i, float(i)) for i in range(1, 10)]
    assert scalars(tmp_path, f"{RETURN}/env_steps") == [(8 * i, float(i)) for i in range(1, 10)]
    assert scalars(tmp_path, f"{RETURN}/time") == [(i // 2, float(i)) for i in range(1, 10)]
    write(tmp_path, [1], after=0)
    assert iterations(tmp_path) == [1]
    assert scalars(tmp_path, "a") == [(1, 1.0)]


def test_what_a_kill_left_half_written_is_cut_off(tmp_path):
    _, sizes = write(tmp_path, [1, 2, 3])
    (events,) = tmp_path.glob("events.*")
    for path in (tmp_path / "metrics.jsonl", events):
        path.write_bytes(path.read_bytes()[:-5])
    write(tmp_path, [3, 4], after=2, sizes=sizes[2])
    assert iterations(tmp_path) == [1, 2, 3, 4]
    assert scalars(tmp_path, "a") == [(i, float(i)) for i in (1, 2, 3, 4)]


def test_an_open_tensorboard_forgets_what_is_cut_off(tmp_path):
    _, sizes = write(tmp_path, [1, 2, 3])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    write(tmp_path, [], after=1, sizes=sizes[1])
    events.Reload()
    assert [e.step for e in events.Scalars("a")] == [1]
    assert [e.step for e in events.Scalars(f"{RETURN}/env_steps")] == [8]


def test_a_run_is_written_by_one_process(tmp_path):
    writer = MetricsWriter(tmp_path, tensorboard=False)
    for open_again in (check_idle, lambda run: MetricsWriter(run, tensorboard=False)):
        with pytest.raises(ConfigError, match="still being trained by another process"):
            open_again(tmp_path)
    writer.close()
    check_idle(tmp_path)


def test_numbers_wait_while_the_folder_is_gone(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    writer = MetricsWriter(run, tensorboard=False)
    writer.write(1, 8, 0.0, {})
    (run / "metrics.jsonl").unlink()
    run.rmdir()
    for i in (2, 3):
        writer.write(i, 8 * i, 0.0, {})
    assert writer.error == "No such file or directory"
    run.mkdir()
    writer.write(4, 32, 0.0, {})
    assert writer.error is None
    writer.close()
    assert iterations(run) == [2, 3, 4]


def test_numbers_wait_while_there_is_no_room(tmp_path):
    """The process may write files of 100 bytes; the end of the file is that of a line."""
    writer, before = MetricsWriter(tmp_path, tensorboard=False), resource.getrlimit(FILE_SIZE)
    resource.setrlimit(FILE_SIZE, (100, before[1]))
    try:
        for i in range(1, 5):
            writer.write(i, 8 * i, 0.0, {})
    finally:
        resource.setrlimit(FILE_SIZE, before)
    assert (writer.error, iterations(tmp_path)) == ("File too large", [1, 2])
    writer.write(5, 40, 0.0, {})
    assert writer.error is None
    writer.close()
    assert iterations(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("number", ["?", "2", "7", "90", "1" + "0" * 400])
def test_a_damaged_line_is_named_and_takes_no_other_with_it(tmp_path, number):
    write(tmp_path, range(1, 21))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"iteration": 3', f'"iteration": {number}'.encode())
    path.write_bytes(b"".join(lines))
    warnings, _ = write(tmp_path, [16], after=15)
    assert warnings == [f"{path} lacks 1 of the 15 iterations so far: 3"]
    resumed = path.read_bytes().splitlines(keepends=True)
    assert resumed[:15] == lines[:15]
    assert json.loads(resumed[15])["iteration"] == 16
    assert len(resumed) == 16


def test_metrics_that_are_no_file_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    check_idle(tmp_path)
    with pytest.raises(ConfigError, match=r"metrics.jsonl cannot be written: No such device"):
        MetricsWriter(tmp_path, tensorboard=False, after=3)


@pytest.mark.parametrize("content", [b"", b"a text\nof\nlines\n", bytes(5000), b"[" * 10**5])
def test_an_emptied_or_foreign_file_is_written_anew(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    (warning,), _ = write(tmp_path, [4], after=3)
    assert warning.endswith("metrics.jsonl lacks 3 of the 3 iterations so far: 1, 2, 3")
    assert iterations(tmp_path) == [4]
