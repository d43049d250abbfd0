"""What README.md shows must run when it is copied."""

import json
import re
from pathlib import Path

from simtrain.cli.train import train

README = Path(__file__).parents[1] / "README.md"


def _block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    return block


def test_the_task_and_the_model_in_the_readme_train(tmp_path, monkeypatch):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "my_pendulum.py").write_text(_block("python", '@task("my-pendulum")'))
    (tmp_path / "tasks" / "pendulum.xml").write_text(_block("xml", '<joint name="hinge"'))
    monkeypatch.chdir(tmp_path)
    flags = "--gpu-ids None --cpu-threads 1 --num-envs 16 --max-iterations 2 --logger none"
    assert train(["my-pendulum", *flags.split()]) == 0
    (metrics,) = tmp_path.glob("logs/my-pendulum/*/metrics.jsonl")
    assert [json.loads(line)["iteration"] for line in metrics.read_text().splitlines()] == [1, 2]
