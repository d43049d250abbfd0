"""Two Gloo ranks through the real command, from a user's folder."""

import json
import shutil

import pytest
import torch
import yaml
from job import TWO_RANKS, Job, make_tasks, timeless_metrics

ITERATIONS = 40
STEPS = 2 * 4 * 8
FLAGS = (*TWO_RANKS, "--total-env-steps", str(ITERATIONS * STEPS - 1), "--save-interval", "10")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A finished run of two ranks on a task in the user's ./tasks."""
    folder = tmp_path_factory.mktemp("user")
    make_tasks(folder)
    job = Job(folder, "user-pendulum", *FLAGS)
    assert job.wait() == 0, job.output
    return job


def test_the_command_shows_what_rank_0_does(job):
    assert "2 ranks on cpu, cpu: 4 environments each (--num-envs is per rank), 64 env" in job.output
    assert job.output.count(f"/{ITERATIONS}  env steps ") == ITERATIONS
    assert job.output.count("the task says hello from rank 0") == 1
    assert "the task says hello from rank 1" not in job.output


def test_env_steps_count_over_all_ranks_and_end_the_run(job):
    lines = [json.loads(line) for line in (job.run / "metrics.jsonl").read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == [STEPS * (i + 1) for i in range(ITERATIONS)]


def test_metrics_of_all_ranks_are_logged_also_those_that_one_rank_alone_has(job):
    last = json.loads((job.run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["Curriculum/mine"] == 5.0
    assert last["Episode_Termination/time_out"] == 1.0
    assert 0.0 < last["Episode_Reward/upright"] <= 1.0


def test_only_rank_0_opens_files_for_writing_below_the_log_root(job):
    opened = {path.name for path in (job.folder / "tasks").glob("opened-*")}
    assert opened == {"opened-0"}
    assert "metrics.jsonl" in (job.folder / "tasks" / "opened-0").read_text()


def test_the_run_directory_holds_what_one_rank_would_write_and_the_logs_of_both(job):
    names = {path.name for path in job.run.iterdir()}
    checkpoints = {f"model_{i}.pt" for i in (10, 20, 30, 40)}
    assert names - {n for n in names if n.startswith("events.")} == {
        "config.yaml",
        "metrics.jsonl",
        "report.png",
        "resume.pt",
        "resume.previous.pt",
        "torchrunx",
        *checkpoints,
    }
    assert torch.load(job.run / "model_40.pt", weights_only=True)["iter"] == ITERATIONS
    assert yaml.safe_load((job.run / "config.yaml").read_text())["devices"] == ["cpu", "cpu"]
    logs = {path.name: path.read_text() for path in job.run.glob("torchrunx/*/*")}
    assert set(logs) == {"localhost.log", "localhost[0].log", "localhost[1].log"}
    assert "the task says hello from rank 1" in logs["localhost[1].log"]


@pytest.mark.slow
def test_a_killed_job_goes_on_as_if_nothing_had_happened(job, tmp_path):
    make_tasks(tmp_path)
    killed = Job(tmp_path, "user-pendulum", *FLAGS)
    killed.wait_until(lambda: any(tmp_path.glob("logs/*/*/resume.pt")))
    killed.kill()
    killed.process.wait()
    resumed = Job(tmp_path, "user-pendulum", "--resume", "latest")
    assert resumed.wait() == 0, resumed.output
    assert f"going on with logs/user-pendulum/{killed.run.name} after iteration" in resumed.output
    assert "not exact" not in resumed.output
    assert timeless_metrics(resumed.run) == timeless_metrics(job.run)
    assert [line["iteration"] for line in timeless_metrics(resumed.run)] == list(
        range(1, ITERATIONS + 1)
    )


def test_fewer_ranks_go_on_and_it_is_said_that_this_is_not_exact(job, tmp_path):
    make_tasks(tmp_path)
    shutil.copytree(job.run, tmp_path / "logs" / "user-pendulum" / job.run.name)
    one_rank = ("--gpu-ids", "None", "--cpu-workers", "1")
    steps = str(ITERATIONS * STEPS + STEPS)
    resumed = Job(
        tmp_path, "user-pendulum", "--resume", "latest", *one_rank, "--total-env-steps", steps
    )
    assert resumed.wait() == 0, resumed.output
    assert "the continuation is not exact: 1 rank instead of 2" in resumed.output
    lines = timeless_metrics(resumed.run)
    assert [line["env_steps"] for line in lines[-3:]] == [2560, 2592, 2624]
