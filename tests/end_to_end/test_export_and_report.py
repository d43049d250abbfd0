"""The real `export` and `report` commands, on a run of the real `train`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from simtrain.cli.export import export
from simtrain.cli.report import report
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg
from simtrain.training.saved_policy import open_policy

TASK = "cartpole-swingup"
ITERATIONS = 3
FLAGS = f"""
    --gpu-ids None --cpu-threads 1 --num-envs 8 --num-steps-per-env 8 --save-interval 2
    --max-iterations {ITERATIONS} --logger none --ppo.actor.hidden-dims 16 16
    --env.episode-length-s 1.0
""".split()


def _run(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [Path(sys.executable).with_name(module.replace("_", "-")), *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    result = _run("train", TASK, *FLAGS, cwd=folder)
    assert result.returncode == 0, result.stderr
    (path,) = folder.glob("logs/*/*")
    return path


def test_a_trained_policy_is_exported_beside_its_run_and_acts_the_same(run, capsys):
    assert export([str(run)]) == 0
    out = capsys.readouterr().out
    assert f"policy:   {TASK}, iteration 3" in out
    files = ["model.xml", "mujoco_robot.py", "policy.json", "policy.onnx", "policy.pt2",
             "robot.onnx", "run_policy.py"]  # fmt: skip
    assert sorted(path.name for path in (run / "exported").iterdir()) == files
    assert all(f"written:  {run / 'exported' / name}" in out for name in files)

    saved = open_policy(run)
    env = Env(evaluation_task(saved.config.env), 4, EngineCfg(threads=1))
    policy = saved.policy(env.get_observations(), env.num_actions)
    session = onnxruntime.InferenceSession(run / "exported" / "policy.onnx")
    obs = env.get_observations()
    for _ in range(25):
        actions = policy(obs)
        (exported,) = session.run(None, {"obs": obs["actor"].numpy()})
        assert np.abs(exported - actions.numpy()).max() < 1e-5
        obs, *_ = env.step(torch.from_numpy(exported))


def test_a_checkpoint_is_exported_to_a_folder_in_the_formats_asked_for(run, tmp_path):
    flags = ["--output", str(tmp_path / "robot"), "--formats", "torchscript"]
    assert export([str(run / "model_2.pt"), *flags]) == 0
    assert sorted(path.name for path in (tmp_path / "robot").iterdir()) == [
        "model.xml", "policy.json", "policy.pt"
    ]  # fmt: skip
    told = json.loads((tmp_path / "robot" / "policy.json").read_text())
    assert (told["iteration"], told["checkpoint"]) == (2, "model_2.pt")
    assert told["files"] == {"torchscript": "policy.pt"}


def test_a_run_is_reported_into_its_own_folder(run):
    assert (run / "report.png").stat().st_size > 10_000  # drawn at the end of training
    assert report([str(run)]) == 0
    assert f"<td>{ITERATIONS * 64}</td>" in (run / "report.html").read_text()


def test_mistakes_are_told(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    other = tmp_path / "other"
    shutil.copytree(run, other)
    config = (run / "config.yaml").read_text()
    (other / "config.yaml").write_text(re.sub(r"(hidden_dims:\s+- )16", r"\g<1>8", config))
    swapped = tmp_path / "swapped"
    shutil.copytree(run, swapped)
    (swapped / "config.yaml").write_text(config.replace(TASK, "cartpole-balance"))
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.yaml").write_text(config)
    for arguments, message in {
        "": "name one run, checkpoint or task",
        f"{run} {run}": "name one run, checkpoint or task: .*, not 2",
        "nowhere": "there is no run, checkpoint or task nowhere",
        f"{empty}": "has no checkpoint yet",
        f"{other}": "config.yaml is not the configuration that model_3.pt was trained with; --with",
        f"{other} --with-changes": "the checkpoint is of another network",
        f"{swapped}": f"is of the task '{TASK}', but lies in a run of 'cartpole-balance'",
        f"{run} --formats tflite": "--formats is 'tflite'; it must be one of onnx, pt2, torc",
        f"{run} --formats": "--formats needs one or more of onnx, pt2, torchscript",
        f"{run} --formats torchscript --verify": "--verify runs policy.onnx; leave onnx among",
        f"{run} --ship --verify": "--verify does not go with --ship; verify first",
        f"{run} --verify --verify-threshold 2": "--verify-threshold is 2.0; it must be 1 or less",
        f"{run} --output file": "--output file cannot be made: .*/file is not a folder",
        f"{run} --output /proc/robot": "--output /proc/robot cannot be written",
    }.items():
        with pytest.raises(ConfigError, match=message) as error:
            export(arguments.split())
        assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "empty", "file", "other", "swapped"
    ]  # fmt: skip


def test_a_truncated_checkpoint_ends_with_exit_code_2_and_one_line(run, tmp_path):
    whole = (run / "model_3.pt").read_bytes()
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    (tmp_path / "model_3.pt").write_bytes(whole[: len(whole) // 2])
    result = _run("export", "model_3.pt", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: model_3.pt is not a checkpoint, or it is damaged: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert not (tmp_path / "exported").exists()


def test_help_does_not_wait_for_what_the_commands_need(tmp_path):
    program = """
import sys
from simtrain.cli.export import export
from simtrain.cli.report import report
for command in (export, report):
    try:
        command(["--help"])
    except SystemExit as end:
        assert end.code == 0
heavy = "torch mujoco onnx onnxruntime matplotlib numpy tensordict".split()
print("heavy:", *[name for name in heavy if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "heavy:"
    assert "usage: export <run, checkpoint or task>" in result.stdout
    assert "usage: report <run>..." in result.stdout
