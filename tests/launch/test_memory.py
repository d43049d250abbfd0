"""More than the machine's memory is refused with the figures, before anything is made."""

from __future__ import annotations

import pytest
from tiny_task import tiny_env

from simtrain.cli.train import train
from simtrain.errors import ConfigError
from simtrain.launch import memory


def test_what_fits_is_not_refused_and_what_does_not_is_told_with_the_number_that_would(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    memory.check_memory(2**30, 100)
    message = (
        r"^100 environments need about 2 GiB of memory, and 1 GiB are free; use --num-envs 50,"
    )
    with pytest.raises(ConfigError, match=message):
        memory.check_memory(2**31, 100)
    with pytest.raises(ConfigError, match=r"100 environments in each of 4 ranks need .* fewer"):
        memory.check_memory(2**31, 100, 4)


def test_a_container_has_the_memory_that_it_is_given(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 400\nfile 500\n")
    monkeypatch.setattr(memory, "_CONTAINER", tmp_path)
    assert memory.available_memory() == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() > 2**20


@pytest.mark.parametrize(
    "flags",
    [
        "--num-envs 16000000",
        "--num-steps-per-env 100000 --num-envs 100000",
        "--ppo.critic.hidden-dims 65536 65536 65536",
        "--cpu-workers 60 --num-envs 200000",
    ],
)
def test_a_training_that_does_not_fit_leaves_no_folder(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"need about .* GiB of memory, and .* GiB are free; use"):
        train(["cartpole-balance", "--gpu-ids", "None", *flags.split()])
    assert list(tmp_path.iterdir()) == []


def test_environments_alone_are_checked_too(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 10_000)
    with pytest.raises(ConfigError, match="3 environments need about"):
        tiny_env(3)
