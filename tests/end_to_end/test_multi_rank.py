"""Two Gloo ranks through the real command, from a user's folder; what ends one ends all."""

import os
import shutil
import signal

import pytest
import torch
import yaml
from job import TWO_RANKS, Job, make_tasks, metrics_of, timeless_metrics

TASK = "user-pendulum"
ITERATIONS = 40
STEPS = 2 * 4 * 8
FLAGS = (*TWO_RANKS, "--total-env-steps", str(ITERATIONS * STEPS - 1), "--save-interval", "10")
ENDLESS = (TASK, *TWO_RANKS, "--save-interval", "1000000", "--torchrunx-log-dir", "")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A finished run of two ranks on a task in the user's ./tasks."""
    folder = tmp_path_factory.mktemp("user")
    make_tasks(folder)
    (folder / "tmp").mkdir()
    job = Job(folder, TASK, *FLAGS, TMPDIR=str(folder / "tmp"))
    assert job.wait() == 0, job.output
    return job


def test_no_temporary_file_is_left(job):
    left = {path.name for path in (job.folder / "tmp").iterdir()}
    assert not {name for name in left if not name.startswith("torchinductor_")}  # torch's cache


def test_the_command_shows_what_rank_0_does(job):
    assert "2 ranks on cpu, cpu: 4 environments each (--num-envs is per rank), 64 env" in job.output
    assert job.output.count(f"/{ITERATIONS}  env steps ") == ITERATIONS
    assert job.output.count("the task says hello from rank 0") == 1
    assert "the task says hello from rank 1" not in job.output


def test_metrics_are_of_all_ranks_also_those_that_one_rank_alone_has(job):
    lines = metrics_of(job.run)
    assert [line["env_steps"] for line in lines] == [STEPS * (i + 1) for i in range(ITERATIONS)]
    assert lines[-1]["Curriculum/mine"] == 5.0
    assert lines[-1]["Episode_Termination/time_out"] == 1.0
    assert 0.0 < lines[-1]["Episode_Reward/upright"] <= 1.0


def test_the_run_directory_holds_what_rank_0_wrote_a_part_of_rank_1_and_the_logs_of_both(job):
    names = {path.name for path in job.run.iterdir()}
    assert names - {n for n in names if n.startswith("events.")} == {
        *("config.yaml", "metrics.jsonl", "report.png", "resume.pt", "resume.previous.pt"),
        *("resume.rank1.pt", "resume.previous.rank1.pt"),
        *("torchrunx", "model_10.pt", "model_20.pt", "model_30.pt", "model_40.pt"),
    }
    assert torch.load(job.run / "model_40.pt", weights_only=True)["iter"] == ITERATIONS
    assert yaml.safe_load((job.run / "config.yaml").read_text())["devices"] == ["cpu", "cpu"]
    logs = {path.name: path.read_text() for path in job.run.glob("torchrunx/*/*")}
    assert set(logs) == {"localhost.log", "localhost[0].log", "localhost[1].log"}
    assert "the task says hello from rank 1" in logs["localhost[1].log"]
    opened = {path.name for path in (job.folder / "tasks").glob("opened-*")}
    assert opened == {"opened-0", "opened-1"}
    by_rank = [(job.folder / "tasks" / f"opened-{rank}").read_text() for rank in range(2)]
    assert "metrics.jsonl" in by_rank[0]
    assert ".rank1." not in by_rank[0]
    assert all("/.resume.rank1.pt." in path for path in by_rank[1].splitlines())


@pytest.mark.slow
def test_fewer_ranks_go_on_and_it_is_said_that_this_is_not_exact(job, start, tmp_path):
    shutil.copytree(job.run, tmp_path / "user" / "logs" / TASK / job.run.name)
    one_rank = ("--gpu-ids", "None", "--cpu-workers", "1")
    steps = str(ITERATIONS * STEPS + STEPS)
    resumed = start(TASK, "--resume", "latest", *one_rank, "--total-env-steps", steps, warm=True)
    assert resumed.wait() == 0, resumed.output
    assert "the continuation is not exact: 1 rank instead of 2" in resumed.output
    lines = timeless_metrics(resumed.run)
    assert [line["env_steps"] for line in lines[-3:]] == [2560, 2592, 2624]
    assert (resumed.run / "resume.rank1.pt").exists()  # of the state before the last


def test_an_exception_in_a_rank_ends_the_job_with_its_traceback_once(start):
    job = start(*ENDLESS, "--env.rewards.upright.break-rank", "1")
    assert job.wait() == 1, job.output
    assert " steps/s " in job.output
    assert "error: rank 1 on cpu failed:\nTraceback" in job.output
    assert job.output.count("Traceback") == 1
    assert job.output.rstrip().endswith(
        "ValueError: no step number 21\nin the term rewards.upright"
    )


def test_a_killed_rank_ends_the_job_with_the_command_to_resume(start):
    job = start(*ENDLESS, "--save-interval", "1")
    job.wait_until_saved()
    os.kill(job.ranks()[-1], signal.SIGKILL)
    assert job.wait() == 1, job.output
    assert " on cpu was killed: Signal 9 (SIGKILL)" in job.output
    assert "Traceback" not in job.output
    relative = job.run.relative_to(job.folder)
    assert f"to resume: uv run train {TASK} --resume {relative}" in job.output


@pytest.mark.slow
def test_a_rank_that_is_stuck_in_a_term_ends_the_job_and_is_named_with_the_place(start):
    """The other rank, which waits for it in a collective, is not to blame."""
    stuck = ("--env.rewards.upright.break-rank", "1", "--env.rewards.upright.stuck-after", "18")
    job = start(*ENDLESS, *stuck, "--save-interval", "1", "--collective-timeout", "8")
    job.wait_for("warning: rank 1 on cpu (process ")
    assert job.wait() == 1, job.output
    (line,) = (line for line in job.output.splitlines() if line.startswith("error: "))
    assert line.startswith("error: rank 1 on cpu (process ")
    assert " on localhost) has kept the others waiting for 8 s, and is in iteration 3, at " in line
    assert "tasks/pendulum.py:" in line
    assert line.endswith(" in Upright.__call__ (--collective-timeout)")


def test_ctrl_c_saves_and_stops_all_ranks(start):
    """Also with W&B, which has a process of its own and is offline without an API key."""
    wandb = ("--logger", "wandb", "--wandb-project", "tests")
    job = start(*ENDLESS, *wandb, WANDB_API_KEY="", NETRC="none")
    job.wait_for(" steps/s ")
    job.interrupt()
    assert job.wait() == 130, job.output
    assert "stopped by SIGINT; the policy so far is saved" in job.output
    assert "W&B: no API key, so offline" in job.output
    (checkpoint,) = job.run.glob("model_*.pt")
    iteration = torch.load(checkpoint, weights_only=True)["iter"]
    assert len(metrics_of(job.run)) == iteration
    (uploads,) = job.run.glob("wandb/offline-run-*")
    (kept,) = uploads.glob("files/model_*.pt")
    assert kept.name == checkpoint.name
    (record,) = uploads.glob("*.wandb")
    for written in (b"Perf/total_fps", b"num_steps_per_env"):
        assert written in record.read_bytes()
