"""The help of commands: short, and with every flag that the command takes."""

from __future__ import annotations

import re

import pytest
import tyro

from simtrain.cli.benchmark import BenchmarkFlags
from simtrain.cli.help import help_text, help_topic
from simtrain.cli.new import NewConfig
from simtrain.cli.parse import MARKERS, parse_flags
from simtrain.config.tasks import default_config
from simtrain.env.cfg import ObservationGroupCfg, ObservationTermCfg
from simtrain.errors import ConfigError


@pytest.mark.parametrize("task", ["cartpole-balance", "go1-velocity-rough", "g1-tracking"])
def test_there_is_a_flag_in_the_help_for_each_that_the_command_takes(task, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    config = default_config(task)
    group = ObservationGroupCfg({"speed": ObservationTermCfg(max)}, concatenate=False)
    config.env.observations["vision"] = group
    with pytest.raises(SystemExit):
        tyro.cli(type(config), default=config, args=["--help"], config=MARKERS)
    flags = re.findall(r"(?<!\S)--([a-z]\S*[^\s.,;])(?=\s)", capsys.readouterr().out)
    taken = set(flags) - {"help"}
    assert len(taken) > 100
    text = help_text("train", config, "all")
    assert "`" not in text.partition("\n")[2]
    shown = set(re.findall(r"^ {2,4}--(\S+)", text, re.MULTILINE))
    assert not [name for name in shown if "*" in name and "-joint" in name]  # a pattern as it is
    shown = {name.replace("_", "-") for name in shown}  # the parser takes both
    of_terms = {name for name in shown if "<term>" in name}
    assert shown - of_terms <= taken
    patterns = [re.escape(name).replace("<term>", r"[\w.-]+") for name in of_terms]
    assert not [n for n in taken - shown if not any(re.fullmatch(p, n) for p in patterns)]


def test_the_help_of_a_task_is_short_and_names_the_run_s_flags_and_the_groups(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = help_text("train", default_config("go1-velocity-rough"), "")
    lines = text.splitlines()
    assert len(lines) <= 190
    for name in ("--num-envs INT", "--resume STR", "env.rewards ", "ppo.actor ", "distillation "):
        assert f"  {name}" in text
    of_run = [line for line in lines if line.startswith("  --")]
    assert max(map(len, of_run)) <= 80
    assert not [line for line in of_run if line.startswith(("  --env.", "  --ppo."))]


def test_what_all_terms_have_is_said_once():
    config = default_config("go1-velocity-rough")
    text = help_text("train", config, "env.rewards")
    assert text.count("negative for a penalty") == 1
    assert "--env.rewards.<term>.weight FLOAT" in text
    weight = config.env.rewards["action_rate"].weight
    assert f"    --env.rewards.action-rate.weight {weight}\n" in text
    assert "Squared change of the actions since the last step" in text


def test_a_group_and_a_flag_have_their_whole_text():
    config = default_config("cartpole-balance")
    ppo = help_text("train", config, "ppo")
    assert "--ppo.gamma FLOAT" in ppo
    assert "ppo.actor " in ppo
    assert "--ppo.actor.init-std" not in ppo
    assert "auto the first GPU" in " ".join(help_text("train", config, "--gpu_ids").split())
    small = " ".join(help_text("benchmark [task...]", BenchmarkFlags(), "").split())
    assert small.startswith("usage: benchmark [task...] [flags] Measure bare physics")
    assert "the median counts. (default: 5)" in small


def test_a_command_s_own_flags_come_before_those_that_it_shares():
    flags = re.findall(r"^  --([a-z-]+)", help_text("new <name>", NewConfig(), ""), re.MULTILINE)
    assert flags[0] == "model"
    assert {"viewer", "speed"} < set(flags[6:])


@pytest.mark.parametrize(
    ("words", "topic"),
    [
        ("--seed 1", None),
        ("--seed 1 -h", ""),
        ("--help --seed 1", ""),
        ("--help env.rewards", "env.rewards"),
        ("--help=env.rewards --seed 1", "env.rewards"),
    ],
)
def test_the_word_after_help_is_what_it_is_about(words, topic):
    assert help_topic(words.split()) == topic


def test_an_unknown_topic_is_a_mistake_that_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no flag 'env.rewrads' \(did you mean 'env.rewards'"):
        parse_flags("train", default_config("cartpole-balance"), ["--help", "env.rewrads"])


def test_a_parameter_s_help_has_the_text_of_its_term_and_short_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    text = help_text("train", default_config("go1-velocity-flat"), "env.commands.gait.frequency")
    first, _, about = text.partition("\n\n")
    assert "(default: 2.88 3.52)" in first
    assert "stopping_time" in about
