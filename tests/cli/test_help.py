"""The help of commands: short, and with every flag that the command takes."""

from __future__ import annotations

import re

import pytest
import tyro

from simtrain.cli.benchmark import BenchmarkFlags
from simtrain.cli.help import help_text, help_topic
from simtrain.cli.parse import MARKERS, parse_flags
from simtrain.cli.play import PlayConfig
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.env.cfg import ObservationGroupCfg, ObservationTermCfg, RewardTermCfg, TaskCfg
from simtrain.errors import ConfigError

TASKS = ("cartpole-balance", "go1-velocity-rough", "g1-tracking")


def _config(task: str) -> TrainConfig:
    return TrainConfig.of_task(task, discover().find(task).configuration())


def _flags_of_tyro(config: object, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit):
        tyro.cli(type(config), default=config, args=["--help"], config=MARKERS)
    found = re.findall(r"(?<!\S)--([a-z]\S*[^\s.,;])(?=\s)", capsys.readouterr().out)
    return set(found) - {"help"}


@pytest.mark.parametrize("task", TASKS)
def test_there_is_a_flag_in_the_help_for_each_that_the_command_takes(task, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    config = _config(task)
    group = ObservationGroupCfg({"speed": ObservationTermCfg(max)}, concatenate=False)
    config.env.observations["vision"] = group
    taken = _flags_of_tyro(config, capsys)
    assert len(taken) > 100
    text = help_text("train", config, "all")
    told = set(re.findall(r"^ {2,4}--(\S+)", text, re.MULTILINE))
    of_terms = {name for name in told if "<term>" in name}
    assert told - of_terms <= taken
    patterns = [re.escape(name).replace("<term>", r"[\w.-]+") for name in of_terms]
    assert not [n for n in taken - told if not any(re.fullmatch(p, n) for p in patterns)]


@pytest.mark.parametrize("task", TASKS)
def test_the_help_of_a_task_is_short_and_names_the_run_s_flags_and_the_groups(task, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = help_text(f"train {task}", _config(task), "")
    lines = text.splitlines()
    assert len(lines) <= 120
    for name in ("--num-envs INT", "--resume STR", "env.rewards ", "ppo.actor ", "distillation "):
        assert f"  {name}" in text
    of_run = [line for line in lines if line.startswith("  --")]
    assert max(map(len, of_run)) <= 80
    assert not [line for line in of_run if line.startswith(("  --env.", "  --ppo."))]


def test_what_all_terms_have_is_said_once():
    cfg = _config("go1-velocity-rough")
    text = help_text("train", cfg, "env.rewards")
    assert len(cfg.env.rewards) > 5
    assert text.count("negative for a penalty") == 1
    assert "--env.rewards.<term>.weight FLOAT" in text
    weight = cfg.env.rewards["action_rate"].weight
    assert f"    --env.rewards.action-rate.weight {weight}\n" in text
    assert "Squared change of the actions since the last step" in text


@pytest.mark.parametrize("task", TASKS)
def test_there_is_no_markup_in_help(task):
    assert "`" not in help_text("train", _config(task), "all").partition("\n")[2]


def test_a_group_has_its_flags_and_those_of_a_run_have_their_whole_text():
    cfg = _config("cartpole-balance")
    assert "--ppo.gamma FLOAT" in help_text("train", cfg, "ppo")
    assert "--ppo.actor.init-std" not in help_text("train", cfg, "ppo")
    assert "ppo.actor " in help_text("train", cfg, "ppo")
    brief, whole = (help_text("train", cfg, topic) for topic in ("", "--gpu_ids"))
    assert "auto the first GPU" not in brief
    assert "auto the first GPU" in " ".join(whole.split())


def test_a_small_command_has_the_whole_text_of_its_flags():
    text = help_text("benchmark [task...]", BenchmarkFlags(), "")
    assert text.startswith("usage: benchmark [task...] [flags]\n\nMeasure bare physics")
    assert "--repetitions INT" in text
    assert "the median counts. (default: 5)" in " ".join(text.split())
    task = TaskCfg("robot.xml", 0.01, 2, 5.0, rewards={"alive": RewardTermCfg(max, 1.0)})
    text = help_text("play", PlayConfig(env=task), "")
    assert "for everyone who can reach this machine" in " ".join(text.split())
    assert re.search(r"^  env.rewards +alive$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "topic"),
    [
        ("", None),
        ("--seed 1", None),
        ("--help", ""),
        ("-h", ""),
        ("--seed 1 --help", ""),
        ("--help --seed 1", ""),
        ("--help env.rewards", "env.rewards"),
        ("--help=env.rewards --seed 1", "env.rewards"),
        ("--help all", "all"),
    ],
)
def test_the_word_after_help_is_what_it_is_about(words, topic):
    assert help_topic(words.split()) == topic


def test_an_unknown_topic_is_a_mistake_that_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no flag 'env.rewrads' \(did you mean 'env.rewards'"):
        parse_flags("train", _config("cartpole-balance"), ["--help", "env.rewrads"])
