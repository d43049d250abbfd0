"""The real `train` command: what a run leaves behind, and that its seed decides all of it."""

from __future__ import annotations

import json

import pytest
import torch
from job import Job, assert_same_networks, metrics_of, timeless_metrics
from rsl_rl_runner import rsl_rl_runner

from simtrain.cli.train import train
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.run.metric_tags import PHASES, TAG
from simtrain.sim import EngineCfg
from simtrain.training.features.timing import LAST

TASK = "cartpole-balance"
ENVS, STEPS, ITERATIONS = 16, 16, 3
FLAGS = f"""
    --gpu-ids None --cpu-threads 2 --seed 5
    --num-envs {ENVS} --num-steps-per-env {STEPS} --max-iterations {ITERATIONS} --save-interval 2
    --env.episode-length-s 1.0 --env.rewards.upright.weight 2.0 --ppo.actor.hidden-dims 16 8
    --ppo.critic.hidden-dims 16 8
""".split()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> list[Job]:
    """Two runs of one seed, side by side."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    jobs = [Job(folder, TASK, *FLAGS) for folder in folders]
    for job in jobs:
        assert job.wait() == 0, job.output
    return jobs


@pytest.fixture(scope="module")
def run(jobs):
    return jobs[0].run


def test_metrics_have_a_line_for_each_iteration(run):
    lines = metrics_of(run)
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    assert [line["env_steps"] for line in lines] == [ENVS * STEPS * i for i in (1, 2, 3)]
    assert set(lines[-1]) == {
        "iteration", "env_steps", "wall_s",
        "Train/mean_step_reward", "Train/mean_reward", "Train/mean_episode_length",
        "Train/finished_envs",
        "Loss/value", "Loss/surrogate", "Loss/entropy", "Loss/kl", "Loss/learning_rate",
        "Policy/mean_std", "Perf/total_fps", "Perf/collection_time", "Perf/learning_time",
        "Episode_Reward/upright", "Episode_Termination/time_out", "Sim/nan_resets",
        *(f"Perf/time/{phase}" for phase in PHASES),
    }  # fmt: skip
    assert 0.0 < lines[-1]["Train/mean_reward"] <= 2.0
    assert lines[-1]["Train/mean_episode_length"] == 20.0
    assert lines[-1]["Train/finished_envs"] == 1.0
    assert lines[-1]["Episode_Termination/time_out"] == 1.0


def test_a_checkpoint_loads_without_running_code_and_in_rsl_rls_runner(run):
    path = run / "model_3.pt"
    saved = torch.load(path, weights_only=True)
    assert set(saved) == {
        "actor_state_dict", "critic_state_dict", "optimizer_state_dict", "iter", "infos"
    }  # fmt: skip
    infos = saved["infos"]
    assert saved["iter"] == 3
    assert (infos["task"], infos["env_steps"]) == (TASK, ENVS * STEPS * 3)
    assert len(infos["config_sha256"]) == 64

    env = Env(discover().find(TASK).make(), 4, EngineCfg(threads=1))
    runner = rsl_rl_runner(env, steps=4, hidden_dims=(16, 8))
    assert runner.load(str(path)).items() >= infos.items()
    for name in ("actor", "critic"):
        for key, value in getattr(runner.alg, name).state_dict().items():
            assert torch.equal(value, saved[f"{name}_state_dict"][key]), key
    assert runner.alg.learning_rate == pytest.approx(metrics_of(run)[-1]["Loss/learning_rate"])
    runner.learn(1)
    assert runner.get_inference_policy()(env.get_observations()).shape == (4, 1)


def test_the_output_has_a_line_for_each_iteration_and_says_what_to_type_next(jobs, run):
    lines = jobs[0].output.splitlines()
    for i in range(3):
        assert lines[1 + i].startswith(f"iteration {i + 1}/3  env steps {ENVS * STEPS * (i + 1)}  ")
    relative = run.relative_to(run.parents[2])
    assert lines[0] == f"run:        {relative}"
    assert lines[-4:] == [
        f"run:        {relative}",
        f"checkpoint: {relative / 'model_3.pt'}",
        f"picture:    {relative / 'report.png'}",
        f"curves:     uv run tensorboard --logdir {relative.parent}",
    ]


def test_the_same_seed_gives_the_same_metrics_and_policy_to_the_bit(jobs):
    first, second = (job.run for job in jobs)
    assert timeless_metrics(first) == timeless_metrics(second)
    assert_same_networks(first / "model_3.pt", second / "model_3.pt")


def test_a_run_ends_with_a_table_of_its_phases_and_profile_traces_some_iterations(here, capsys):
    flags = f"""
        --gpu-ids None --cpu-threads 1 --num-envs 4 --num-steps-per-env 4 --logger none
        --ppo.num-mini-batches 1 --ppo.num-learning-epochs 1 --ppo.actor.hidden-dims 8
        --ppo.critic.hidden-dims 8 --max-iterations {LAST + 1} --save-interval 5 --profile
    """
    assert train([TASK, *flags.split()]) == 0
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


@pytest.mark.usefixtures("fast_compilation")
def test_cartpole_trains_on_the_warp_engine(here, capsys):
    flags = "--gpu-ids None --engine warp --num-envs 64 --max-iterations 3 --deterministic True"
    # In this process, whose kernels are compiled already, rather than in one of its own.
    try:
        assert train([TASK, *flags.split()]) == 0
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    (run,) = here.glob("logs/*/*")
    lines = [(line["iteration"], line["Sim/overflow"]) for line in metrics_of(run)]
    assert lines == [(1, 0.0), (2, 0.0), (3, 0.0)]
    assert (run / "model_3.pt").is_file()
    assert "iteration 3/3" in capsys.readouterr().out
