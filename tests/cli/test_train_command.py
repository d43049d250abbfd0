"""How many environments a training has where nobody says so."""

from __future__ import annotations

import pytest

from simtrain.cli.train import train
from simtrain.config.tasks import default_config, discover
from simtrain.config.train import TrainConfig
from simtrain.config.tree import continued, resolved
from simtrain.env.cfg import TaskCfg
from simtrain.launch.hosts import HostGpus
from simtrain.training.context import TrainingResult

TASK, ON_CPU, ON_GPU = "cartpole-balance", 256, 4096


@pytest.fixture
def _two_gpus(monkeypatch):
    gpus = HostGpus(None, ("GPU-1", "GPU-2"))
    monkeypatch.setattr("simtrain.launch.plan.find_gpus", lambda: gpus)


@pytest.fixture
def chosen(monkeypatch):
    """The configurations that jobs would be run with from now on."""
    configs: list[TrainConfig] = []
    monkeypatch.setattr(
        "simtrain.training.job.run_job", lambda config, *job: (configs.append(config), 0)
    )
    return configs


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize(
    ("flags", "num_envs"),
    [
        ("", ON_GPU),
        ("--gpu-ids 0 1 --ppo.gamma 0.5", ON_GPU),
        ("--gpu-ids None", ON_CPU),
        ("--gpu-ids None --engine warp", ON_CPU),
        ("--engine mujoco", ON_CPU),
        ("--num-envs 8192", 8192),
    ],
)
def test_a_task_has_a_number_of_environments_for_gpus(flags, num_envs, chosen):
    assert train([TASK, *flags.split()]) == 0
    assert [config.num_envs for config in chosen] == [num_envs]
    assert (chosen[0].ppo.gamma == 0.5) == ("gamma" in flags)


def test_settings_follow_the_samples_of_an_iteration(chosen):
    """Four times as many: mini-batches keep their size, and there are half as many iterations."""
    train([TASK])
    train([TASK, "--num-envs", "1024"])
    train([TASK, "--cpu-workers", "2", "--gpu-ids", "None", "--num-envs", "512"])
    train([TASK, "--num-envs", "1024", "--ppo.desired-kl", "0.02", "--max-iterations", "7"])
    train([TASK, "--num-envs", "64"])
    own, more, ranks, given, fewer = chosen
    assert own.ppo == own.env.ppo == fewer.ppo
    assert fewer.max_iterations == own.max_iterations == 2 * more.max_iterations
    assert more.ppo.num_mini_batches == 4 * own.ppo.num_mini_batches
    assert more.ppo.desired_kl == pytest.approx(2.0 * own.ppo.desired_kl)
    assert (ranks.ppo, ranks.max_iterations) == (more.ppo, more.max_iterations)
    assert (given.ppo.desired_kl, given.max_iterations) == (0.02, 7)
    assert given.ppo.num_mini_batches == more.ppo.num_mini_batches


def test_stages_follow_the_samples_too_within_limits():
    task = discover().find("g1-velocity-rough").configuration()
    default = TrainConfig.of_task("g1-velocity-rough", task)
    own, many = (default.for_samples(n * default.samples(1)) for n in (1, 10_000))
    assert own == default
    assert many.env.events["push"].after_steps == own.env.events["push"].after_steps / 5
    held = [config.env.events["hold_upright"].params["steps"] for config in (many, own)]
    assert held[0] == held[1] / 5
    steps = [config.env.curricula["command_ranges"].params["steps"] for config in (many, own)]
    assert steps[0] == steps[1] / 5
    tracking = discover().find("g1-tracking").configuration()
    same = TrainConfig.of_task("g1-tracking", tracking)
    faster = same.for_samples(4 * same.samples(1)).env.curricula["narrow"].params
    assert faster["rate"] == 2.0 * tracking.curricula["narrow"].params["rate"]
    assert many.max_iterations == own.max_iterations / 5
    assert many.ppo.num_mini_batches == 16 * own.ppo.num_mini_batches


@pytest.mark.usefixtures("_two_gpus")
def test_the_user_reads_what_is_changed_and_what_makes_no_sense(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        "simtrain.training.job.Attempts.train", lambda *_: TrainingResult(None, None)
    )
    for flags in ("None --num-envs 4096 --total-env-steps 1000000", "0 1"):
        train([TASK, "--log-root", str(tmp_path / flags[0]), "--gpu-ids", *flags.split()])
    shown = capsys.readouterr().out
    assert "131,072 env steps an iteration, 16 times the task's default: with --max-ite" in shown
    assert "warning: --total-env-steps is 8 iterations of 131,072 env steps" in shown
    assert "4,096 environments on each GPU, the task's default there (--num-envs)" in shown


@pytest.mark.usefixtures("_two_gpus")
def test_a_resumed_run_keeps_its_number(trained_run, chosen):
    train([TASK, "--gpu-ids", "auto", "--resume", str(trained_run)])
    assert chosen[0].num_envs == 8
    default, run = default_config(TASK), TrainConfig.of_task(TASK, _declared(), on_gpu=True)
    assert continued(default, resolved(default), resolved(run)).num_envs == run.num_envs == ON_GPU


def _declared() -> TaskCfg:
    return discover().find(TASK).configuration()


def test_a_task_without_a_number_for_gpus_has_one_for_all():
    cfg = _declared()
    cfg.num_envs_on_gpu = None
    assert TrainConfig.of_task(TASK, cfg, on_gpu=True).num_envs == ON_CPU


def test_help_has_both_numbers(capsys):
    with pytest.raises(SystemExit):
        train([TASK, "--help"])
    help_text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "256 environments where physics runs on the CPU, and 4,096 on each GPU" in help_text
