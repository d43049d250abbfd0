"""The real `export` command, on a trained run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mujoco
import pytest
from refusal import refused

from simtrain.cli.export import export

TASK = "cartpole-balance"


@pytest.fixture
def run(trained_run: Path, here: Path) -> Path:
    """A copy, for what is written into it."""
    return shutil.copytree(trained_run, here / "run")


def test_a_trained_policy_is_exported_beside_its_run(run, capsys):
    assert export([str(run)]) == 0
    out = capsys.readouterr().out
    assert f"policy:   {TASK}, iteration 2" in out
    files = ["model.xml", "mujoco_robot.py", "policy.json", "policy.onnx", "policy.pt2",
             "robot.onnx", "run_policy.py"]  # fmt: skip
    assert sorted(path.name for path in (run / "exported").iterdir()) == files
    assert all(f"written:  {run / 'exported' / name}" in out for name in files)


def test_a_checkpoint_is_exported_to_a_folder_in_the_formats_asked_for(run, here):
    assert export([str(run / "model_1.pt"), "--output", "robot", "--formats", "torchscript"]) == 0
    names = sorted(path.name for path in (here / "robot").iterdir())
    assert names == ["model.xml", "policy.json", "policy.pt"]
    told = json.loads((here / "robot" / "policy.json").read_text())
    assert (told["iteration"], told["checkpoint"]) == (1, "model_1.pt")
    assert told["files"] == {"torchscript": "policy.pt"}


def test_conditions_have_thresholds_of_their_own(run, here, capsys):
    """A word is for every condition with it in its name, a whole name for that condition alone."""
    assert export([str(run)]) == 0
    spec = mujoco.MjSpec.from_file(str(run / "exported" / "model.xml"))
    spec.option.gravity = [0.0, 0.0, -200.0]  # the pole falls at once
    Path("other.xml").write_text(spec.to_xml())
    verify = [str(run), "--verify-only", "--verify-model", "other.xml", "--episodes", "2"]
    capsys.readouterr()
    words = ["0.9", "late=0", "in other.xml=0.99"]
    assert export([*verify, "--verify-threshold", *words]) == 1
    told = capsys.readouterr()
    assert [line.split("(")[1] for line in told.out.splitlines() if "verified" in line] == [
        "the task's physics)",
        "one step late)",
        "in other.xml, one step late)",
    ]
    (line,) = (line for line in told.err.splitlines() if line.startswith("error"))
    assert line.endswith("of its return (in other.xml); --verify-threshold is 0.99")
    progress = told.err.splitlines()
    assert progress[0] == "playing the policy in its task"
    assert "one step late: episodes 1 to 2 of 2" in progress
    with refused("--verify-threshold fog=0.9 names no condition; there are: the task's", here):
        export([*verify, "--verify-threshold", "fog=0.9"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--verify-threshold", "fog=0.9"], "fog=0.9 names no condition; there are: the task's"),
        (["--verify-model", "other.xml"], "other.xml has no joint 'slider'"),
    ],
)
def test_what_verify_refuses_is_told_before_the_export(run, here, flags, message):
    Path("other.xml").write_text(
        "<mujoco><worldbody><body><joint name='hip'/><geom size='1'/></body></worldbody></mujoco>"
    )
    folder = Path("new")
    with refused(message, here):
        export([str(run), "--output", str(folder), "--verify", *flags])
    assert not folder.exists()


def test_mistakes_are_told(run, here):
    Path("file").touch()
    for arguments, message in {
        "": "name one run, checkpoint or task",
        "run run": "simtrain export <run, checkpoint or task>`, not 2",
        "nowhere": "there is no run, checkpoint or task nowhere",
        "run --formats tflite": "--formats is 'tflite'; it must be one of onnx, pt2, torc",
        "run --formats": "--formats needs one or more values",
        "run --formats torchscript --verify": "--verify runs policy.onnx; leave onnx among",
        "run --ship --verify": "--verify does not go with --ship; verify first",
        "run --verify --verify-threshold 2": "--verify-threshold is 2; it must be between 0 and 1",
        "run --verify --verify-model no.xml": "--verify-model no.xml is not a file",
        "run --output file": f"--output file cannot be made: {here}/file is not a folder",
    }.items():
        with refused(message, here):
            export(arguments.split())
    assert not Path("run", "exported").exists()
