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


@pytest.mark.usefixtures("_two_gpus")
def test_ranks_get_the_number_and_the_user_reads_it(monkeypatch, tmp_path, capsys):
    numbers = []

    def launch_ranks(job, function, task, values, *more, **others):
        numbers.append((job.world_size, values["num_envs"]))
        return TrainingResult(None, None)

    monkeypatch.setattr("simtrain.training.job.launch_ranks", launch_ranks)
    train([TASK, "--gpu-ids", "0", "1", "--log-root", str(tmp_path)])
    assert numbers == [(2, ON_GPU)]
    text = "4,096 environments on each GPU, the task's default there (--num-envs)"
    assert text in capsys.readouterr().out


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
