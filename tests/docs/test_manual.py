"""The manual against the code: its flags exist, and its table of flags has them all."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import tyro

from simtrain.cli.benchmark import BenchmarkFlags, split_flags
from simtrain.cli.parse import MARKERS, parse_flags, split_paths
from simtrain.cli.start import COMMANDS
from simtrain.config.tasks import default_config, discover
from simtrain.config.train import TrainConfig
from simtrain.env.cfg import TermCfg
from simtrain.run.metric_tags import PHASES
from simtrain.training.features.conditions import metric_tags, stop_condition

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = {"mkdocs", "mypy", "pytest", "python", "ruff", "tensorboard"}


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    monkeypatch.setenv("SIMTRAIN_TASKS", str(ROOT / "docs" / "examples"))


def _commands(page: Path) -> list[list[str]]:
    """The words after ``uv run`` in a page's blocks of bash."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words[words.index("run") + 1 :] for words in commands if "run" in words]


def _reference() -> ModuleType:
    path = ROOT / "docs" / "hooks" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_exists_and_takes_its_flags(page):
    scripts = ("simtrain", "train", "play")
    for command, *arguments in _commands(page):
        assert command in {*scripts, *OTHERS}
        if command == "simtrain" and arguments:
            command, *arguments = arguments
            assert command in COMMANDS
        if command == "train" and "--help" not in arguments:
            task, *flags = arguments
            parse_flags("train", default_config(task), flags)
        if command == "benchmark":
            tasks, flags = split_paths(arguments)
            assert {str(task) for task in tasks} <= set(discover().tasks)
            if "--until" in flags:
                flags, of_training = split_flags(flags)
                config = parse_flags("train", default_config(str(tasks[0])), of_training)
                config.until = flags[flags.index("--until") + 1]
                assert stop_condition(config) is not None
            parse_flags("benchmark", BenchmarkFlags(), flags).check()


def test_the_manual_shows_all_of_its_example():
    page = (ROOT / "docs" / "writing_a_task.md").read_text()
    example = (ROOT / "docs" / "examples" / "ball_balance" / "ball_balance.py").read_text()
    shown = re.findall(r'^--8<-- "ball_balance/ball_balance\.py:(\w+)"$', page, re.MULTILINE)
    sections = re.findall(r"# --8<-- \[start:(\w+)\]", example)
    assert sorted(shown) == sorted(sections)


def _terms(value: object) -> list[TermCfg]:
    if isinstance(value, TermCfg):
        return [value]
    items = value.values() if isinstance(value, dict) else getattr(value, "__dict__", {}).values()
    return [term for item in items for term in _terms(item)]


@pytest.mark.parametrize("task", ["go1-velocity-rough", "ball-balance"])
def test_the_table_of_flags_is_what_the_command_takes(task, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    config = default_config(task)
    with pytest.raises(SystemExit):
        tyro.cli(TrainConfig, default=config, args=["--help"], config=MARKERS)
    found = re.findall(r"(?<!\S)--[a-z][a-z0-9.-]*(?=\s)", capsys.readouterr().out)
    taken = {flag.rstrip(".") for flag in found} - {"--help"}
    assert len(taken) > 50

    page = _reference().on_page_markdown((ROOT / "docs" / "reference" / "flags.md").read_text())
    listed = set(re.findall(r"^\| `(--.*?)`", page, re.MULTILINE))
    named = [flag for flag in listed if not flag.endswith("<parameter>")]
    known = re.compile("|".join(re.sub(r"<.*?>", "[^.]+", re.escape(flag)) for flag in named))
    parameters = {name.replace("_", "-") for term in _terms(config.env) for name in term.params}
    missing = {flag for flag in taken if not known.fullmatch(flag)}
    # A mapping has a flag for each key.
    assert not {flag for flag in missing if not parameters.intersection(flag.split(".")[-2:])}
    optional = ("--env.terrain.", "--env.terrain")
    assert not {f for f in listed if "<" not in f and not f.startswith(optional)} - taken


def test_the_table_tells_values_defaults_and_meaning():
    flags = {flag.name: flag for flag in _reference().flags(TrainConfig)}
    assert flags["--engine"].values == "`auto`, `mujoco`, `warp`"
    assert (flags["--seed"].default, flags["--num-envs"].default) == ("`0`", "the task's")
    assert flags["--log-root"].help.startswith(r"Folder of all runs; this one goes to &lt;log-root")


def test_every_ready_made_term_is_in_the_reference():
    from simtrain import mdp

    page = (ROOT / "docs" / "reference" / "mdp.md").read_text()
    listed = re.findall(r"^<!-- terms: ([\w.]+) -->$", page, re.MULTILINE)
    assert sorted(listed) == sorted(mdp.TERM_MODULES)


def test_every_metric_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "files.md").read_text()
    tags = metric_tags(default_config("go1-velocity-rough"))
    cells = re.findall(r"^\| (`[A-Z]\w+/.*?) \|", page, re.MULTILINE)
    patterns = [re.escape(tag) for cell in cells for tag in re.findall(r"`(.*?)`", cell)]
    known = re.compile("|".join(re.sub("<.*?>", ".+", pattern) for pattern in patterns))
    assert len(tags) > 30
    assert not [tag for tag in tags if not known.fullmatch(tag)]


@pytest.mark.parametrize(
    "shown",
    ["see [Flags](flags.md)", "a **bold** word", "a `word", "## Flags", "::: simtrain.task"],
)  # fmt: skip
def test_markup_that_a_reader_sees_fails_the_build(shown):
    page = "<h1>Words</h1>\n<p>One.\n{}</p>\n<pre><code>``` **a** [b](c)</code></pre>"
    assert _reference().raw_markup(page.format(shown)) == [shown]
    assert _reference().raw_markup(page.format(f"a <code>{shown}</code> - or 2 * 3 | 4 [1]")) == []


def test_every_phase_is_explained():
    page = (ROOT / "docs" / "performance.md").read_text()
    assert re.findall(r"`Perf/time/(\w+)`", page) == list(PHASES)


def test_results_name_no_folder_of_the_machine_that_measured():
    for file in (ROOT / "docs" / "results").glob("*.json"):
        text = file.read_text()
        assert '"/' not in text, file
        assert "--log-root" not in text, file
