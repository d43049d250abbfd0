"""One command that has all others, what completes it in a shell, and what it does not wait for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from simtrain.cli import start
from simtrain.cli.start import list_tasks
from simtrain.config.tasks import Registry, discover

ROOT = Path(__file__).resolve().parents[2]


def _simtrain(monkeypatch: pytest.MonkeyPatch, words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simtrain", *words.split()])
    monkeypatch.setattr(start, "end_at_once_on_signals", lambda *signals: None)
    monkeypatch.setattr(start, "import_when_used", lambda *names: None)
    with pytest.raises(SystemExit) as end:
        start.simtrain()
    return end.value.code


@pytest.fixture
def _two_tasks(monkeypatch):
    """The registry has two tasks, whose file prints when it is imported."""
    names = ("cartpole-balance", "cartpole-swingup")
    registry = Registry({name: discover().tasks[name] for name in names}, {})

    def noisy(**options: bool) -> Registry:
        print("importing")
        return registry

    monkeypatch.setattr("simtrain.config.tasks.discover", noisy)


def test_commands_are_those_of_simtrain_and_some_have_a_name_of_their_own():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in {"simtrain", *start.COMMANDS} - {"new", "export"}:
        module, _, function = scripts.pop(name).partition(":")
        assert module == "simtrain.cli.start"
        assert callable(getattr(start, function))
    assert not scripts


def test_simtrain_alone_names_its_commands(monkeypatch, capsys):
    assert _simtrain(monkeypatch, "") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(start.COMMANDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("exprt x", "simtrain has no command 'exprt' (did you mean 'export' or 'report'?); it has"),
        ("evaluate --seed 1", "the run comes first: "),
        ("--tyro-print-completion csh", "--tyro-print-completion takes the name of a shell, bash"),
    ],
)
def test_mistakes_are_told_in_a_line(words, message, monkeypatch, capsys):
    assert _simtrain(monkeypatch, words) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.usefixtures("_two_tasks")
def test_bash_completes_commands_tasks_flags_values_and_files(monkeypatch, capsys, tmp_path):
    assert _simtrain(monkeypatch, "--tyro-print-completion bash") == 0
    printed = capsys.readouterr()
    assert (printed.out[:2], printed.err) == ("# ", "importing\n")
    (tmp_path / "simtrain.bash").write_text(printed.out)
    (tmp_path / "logs").mkdir()
    lines = {
        "tra": "train",
        "train cartpole-b": "cartpole-balance",
        "train cartpole-balance --env.rew": "--env.rewards.upright.weight "
        "--env.rewards.upright.cart-joints --env.rewards.upright.pole-joints",
        "train cartpole-balance --logger ": "tensorboard wandb none",
        "motion rec": "record",
        "play run --vide": "--video",
        "play run --video lo": "logs",
        "evaluate lo": "logs",
        "li": "list-tasks",
        "new --mod": "--model",
    }
    script = ["source ./simtrain.bash"]
    for line in lines:
        words = ["simtrain", *line.split(" ")]
        script += [f"COMP_WORDS=({' '.join(word or repr('') for word in words)})"]
        script += [f"COMP_CWORD={len(words) - 1}; COMPREPLY=()"]
        # As bash calls what it was told to by `complete -F`.
        script += ["function=$(complete -p simtrain | sed 's/.*-F //')"]
        script += [f'$function "{words[-1]}" "{words[-2]}"', 'echo "${COMPREPLY[*]}"']
    result = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert dict(zip(lines, result.stdout.splitlines(), strict=True)) == lines


def test_an_old_name_of_a_command_runs_it_and_says_the_new_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["list-tasks", "--help"])
    with pytest.raises(SystemExit) as end:
        list_tasks()
    printed = capsys.readouterr()
    assert end.value.code == 0
    assert "usage" in printed.out
    assert printed.err.startswith("note: write `simtrain list-tasks`")


def test_help_and_lists_wait_for_neither_torch_nor_what_takes_as_long(tmp_path):
    says = {
        "train --help": "cartpole-balance",
        "list-tasks": "cartpole-balance",
        "evaluate --help": "--episodes INT",
        "benchmark --help": "--repetitions INT",
        "export --help": "usage: simtrain export <run, checkpoint or task>",
        "report --help": "usage: simtrain report <run>...",
        "train go1-velocity-rough --help env.rewards": "--env.rewards.<term>.weight FLOAT",
    }
    program = f"""
import sys
from simtrain.cli.start import simtrain
heavy = "torch._C scipy mujoco mujoco_warp warp rsl_rl tensordict._td tensorboard wandb.sdk".split()
for command in {list(says)}:
    sys.argv[1:] = command.split()
    try:
        simtrain()
    except SystemExit as end:
        assert not end.code, command
    print("heavy:", *[name for name in heavy if name in sys.modules])
"""
    *outputs, rest = re.split("heavy:(.*)\n", _output(program, tmp_path))
    assert rest == ""
    for output, text in zip(outputs[::2], says.values(), strict=True):
        assert text in output
    assert outputs[1::2] == [""] * 6 + [" mujoco"]  # a task imports it


def test_training_imports_what_it_uses_and_a_task_may_still_compile(tmp_path):
    program = """
import sys
from simtrain.cli.start import import_when_used, simtrain
import_when_used("torch", "xml", "not_installed")
import torch
import xml
print("torch._C" in sys.modules, "not_installed" in sys.modules)
import xml.dom.minidom
print(xml is sys.modules["xml"], xml.dom.minidom.Node.__name__)
sys.argv[1:] = "train cartpole-balance --max-iterations 2 --num-envs 8".split()
try:
    simtrain()
finally:
    print("wandb.sdk" in sys.modules, torch.ones(2).sum().item())
    print("compiles:", any(name.startswith("torch._dynamo.") for name in sys.modules))
    print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
    print("compiles:", any(name.startswith("torch._dynamo.") for name in sys.modules))
"""
    lines = _output(program, tmp_path).splitlines()
    assert lines[:2] == ["False False", "True Node"]
    assert lines[-4:] == ["False 2.0", "compiles: False", "2.0", "compiles: True"]


def _output(program: str, folder: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout
