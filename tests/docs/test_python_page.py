"""The manual's page about Python: its code runs, from top to bottom; and what the page says."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

import simtrain
from simtrain.errors import ConfigError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
TASK = "cartpole-balance"


pytestmark = pytest.mark.usefixtures("here")


def test_the_code_of_the_page_runs(tmp_path, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 4
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    first, second = sorted((tmp_path / "logs" / TASK).iterdir())
    assert [names["run"].resolve(), len(_lines(first)), len(_lines(second))] == [second, 8, 5]
    assert "effort" in names["cfg"].env.rewards
    assert names["evaluation"].estimates["mean_episode_length"].value == 200.0
    assert "going on with" in capsys.readouterr().out


def _lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_ctrl_c_ends_training_which_is_saved_and_returns(tmp_path, monkeypatch):
    def interrupt() -> None:
        while not any(file.stat().st_size for file in tmp_path.glob("logs/*/*/metrics.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    cfg = simtrain.train_config(TASK, {"num_envs": 8, "max_iterations": 10**6})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    run = simtrain.train(cfg)
    as_before = torch.get_num_threads(), os.environ.get("CUDA_VISIBLE_DEVICES")
    torch.set_num_threads(threads)
    assert as_before == (3, None)
    done = len(_lines(run))
    assert (run / f"model_{done}.pt").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert cfg.resume is None


def test_environments_are_made_with_changes_of_the_task():
    env = simtrain.make_env(TASK, 3, {"episode-length-s": 2.0, "rewards.upright.weight": 3.0})
    assert (env.num_envs, env.max_episode_length) == (3, 40)
    assert env.cfg.rewards["upright"].weight == 3.0
    with pytest.raises(ConfigError, match=r"shape \(3, 2\); a step takes .*, here \(3, 1\)"):
        env.step(torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rewards.upright.wight": 1.0}, "no setting 'rewards.upright.wight' (did you mean 'rew"),
        ({"rewards.upright.pole_joints": 3}, "rewards.upright.pole_joints cannot be 3; it is 'h"),
        ({"decimation": 0}, "decimation is 0; it must be 1 or more"),
    ],
)
def test_changes_that_cannot_be_are_told(overrides, message):
    with pytest.raises(ConfigError) as error:
        simtrain.make_env(TASK, 2, overrides)
    assert message in str(error.value)


def test_terms_that_other_processes_would_not_find_are_told_before_a_run_is_made(tmp_path):
    cfg = simtrain.train_config(TASK, {"cpu_workers": 2, "gpu_ids": None})
    cfg.env.rewards["one"] = simtrain.RewardTermCfg(lambda env: env.steps, weight=1.0)
    with pytest.raises(ConfigError, match="has terms that its file does not have"):
        simtrain.train(cfg)
    assert not list(tmp_path.iterdir())
