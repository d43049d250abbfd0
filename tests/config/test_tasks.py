import os
import sys
import warnings
from pathlib import Path

import pytest

from simtrain.cli.train import list_tasks
from simtrain.config.tasks import default_config, discover, task
from simtrain.errors import ConfigError

TASK = '''
from pathlib import Path
from simtrain import TaskCfg, task

@task("{name}")
def make():
    """{description}

    More about it.
    """
    return TaskCfg(model=Path("robot.xml"), timestep=0.01, decimation=1, episode_length_s=1.0)
'''


def _write(path: Path, name: str, description: str = "A task.", before: str = "") -> Path:
    """Write the file of a task, which runs the code `before` first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}\n{TASK.format(name=name, description=description)}")
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, with the environment naming no task folders."""
    folder = tmp_path / "project" / "work"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SIMTRAIN_TASKS", raising=False)
    return folder


def test_tasks_come_from_all_places_in_the_designs_order(here, tmp_path, monkeypatch):
    _write(tmp_path / "first" / "one.py", "from-variable-1")
    _write(tmp_path / "second" / "two" / "two.py", "from-variable-2")
    folders = [str(tmp_path / "first"), "", str(tmp_path / "second")]
    monkeypatch.setenv("SIMTRAIN_TASKS", os.pathsep.join(folders))
    _write(here / "tasks" / "mine.py", "from-here")
    _write(here.parent / "tasks" / "robot" / "robot.py", "from-parent")
    _write(tmp_path / "site" / "plugin_of_order.py", "from-entry-point")
    _entry_points(tmp_path / "site", "anything = plugin_of_order", monkeypatch)
    names = list(discover().tasks)
    # The robots' tasks stand among the repository's, as do those of an extra that may be installed.
    assert [name for name in names if not name.startswith(("dmc", "g1", "go1", "yam"))] == [
        "from-entry-point",
        "from-variable-1",
        "from-variable-2",
        "from-here",
        "from-parent",
        "cartpole-balance",
        "cartpole-swingup",
    ]


def _entry_points(site: Path, line: str, monkeypatch) -> None:
    """Make `site` look like the place where a package of tasks is installed."""
    info = site / "robot_tasks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: robot-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[simtrain.tasks]\n{line}\n")
    monkeypatch.syspath_prepend(site)


def test_a_tasks_warnings_are_told_once_and_not_by_ranks(here):
    warn = "import warnings\nwarnings.warn('this walk is old')"
    _write(here / "tasks" / "walk.py", "walk", before=warn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        default_config("walk", quiet=True)
        assert told == []
        default_config("walk")
        default_config("walk")
    assert [str(each.message) for each in told] == ["this walk is old"]


def test_an_entry_point_may_name_a_function(here, tmp_path, monkeypatch):
    _write(tmp_path / "site" / "plugin_with_function.py", "plugged")
    _entry_points(tmp_path / "site", "one = plugin_with_function:make", monkeypatch)
    task = discover().find("plugged")
    assert task.source == "entry point one = plugin_with_function:make"
    assert (task.description, task.make().decimation) == ("A task.", 1)


def test_an_entry_point_without_a_task_or_that_does_not_import_is_reported_and_hides_no_task(
    here, tmp_path, monkeypatch
):
    (tmp_path / "site" / "package_of_none").mkdir(parents=True)
    (tmp_path / "site" / "package_of_none" / "__init__.py").touch()
    lines = "all = package_of_none\ngone = package_that_is_gone"
    _entry_points(tmp_path / "site", lines, monkeypatch)
    registry = discover()
    assert "cartpole-balance" in registry.tasks
    without, gone = registry.broken.values()
    assert "has no task" in without
    assert "No module named 'package_that_is_gone'" in gone


def test_two_files_with_one_name_are_an_error_that_names_both(here):
    mine = _write(here / "tasks" / "mine.py", "hop")
    other = _write(here.parent / "tasks" / "other" / "other.py", "hop")
    with pytest.raises(ConfigError, match="two tasks are called 'hop'") as error:
        discover()
    assert str(mine) in str(error.value)
    assert str(other) in str(error.value)


def test_a_task_imported_by_another_file_counts_once(here):
    _write(here / "tasks" / "base_of_hop.py", "hop")
    (here / "tasks" / "variant.py").write_text("from base_of_hop import make\n")
    assert discover().find("hop").source == str(here / "tasks" / "base_of_hop.py")


@pytest.mark.parametrize(
    ("line", "last"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def make(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import pytest; pytest.skip('no')", "Skipped: no"),
    ],
)
def test_a_broken_task_file_hides_no_other_and_is_reported_with_its_traceback(here, line, last):
    broken = here / "tasks" / "broken.py"
    _write(here / "tasks" / "sound.py", "sound")
    broken.write_text(f"import os\n\n{line}\n")
    registry = discover()
    assert {"sound", "cartpole-balance"} <= set(registry.tasks)
    trace = registry.broken[str(broken)]
    assert trace.startswith("Traceback (most recent call last):\n")
    assert f'"{broken}", line 3' in trace
    assert last in trace.splitlines()[-1]
    assert "importlib" not in trace
    assert not [name for name in sys.modules if name.endswith("tasks.broken")]


def test_an_object_that_raises_when_it_is_asked_hides_no_task(here):
    proxy = "class Proxy:\n    def __getattr__(self, name): raise RuntimeError\nproxy = Proxy()"
    _write(here / "tasks" / "walk.py", "walk", before=proxy)
    assert "walk" in discover().tasks


def test_what_is_no_file_is_no_task_file(here):
    _write(here / "tasks" / "walk.py", "walk")
    os.mkfifo(here / "tasks" / "pipe.py")
    for name, target in ((".#walk.py", "somebody@machine.1"), ("loop.py", "loop.py")):
        (here / "tasks" / name).symlink_to(target)
    (here / "tasks" / "linked.py").symlink_to("walk.py")
    registry = discover()
    assert "walk" in registry.tasks
    assert not registry.broken


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\nb", 3])
def test_a_name_that_is_no_folders_is_refused(name):
    with pytest.raises(ConfigError, match="a task cannot be called"):
        task(name)


def test_descriptions_are_listed_as_they_are(here, capsys):
    _write(here / "tasks" / "walk.py", "walk", "At 0.5 [m/s] :cat:")
    assert list_tasks([]) == 0
    assert "At 0.5 [m/s] :cat:" in capsys.readouterr().out


def test_a_task_that_exits_is_told(here):
    path = _write(here / "tasks" / "walk.py", "walk")
    path.write_text(path.read_text().replace("    return", "    raise SystemExit(3)\n    return"))
    with pytest.raises(ConfigError, match=r"task 'walk' in .*walk.py raised SystemExit: 3"):
        default_config("walk")


def test_the_variable_must_name_folders(here, monkeypatch):
    monkeypatch.setenv("SIMTRAIN_TASKS", "no/such/folder")
    with pytest.raises(ConfigError, match="SIMTRAIN_TASKS names no/such/folder, which is not a"):
        discover()


def test_files_beside_a_task_are_its_own(here):
    (here / "tasks").mkdir()
    (here / "tasks" / "_parts.py").write_text("1 / 0")  # no task file, by its name
    for folder in ("a", "b"):
        path = here / "tasks" / folder / "walk.py"
        _write(path, f"walk-{folder}", before="import parts_")
        path.write_text(path.read_text().replace('"robot.xml"', "parts_.NAME"))
        (path.parent / "parts_.py").write_text(f"NAME = 'robot_{folder}.xml'")
    tasks = discover().tasks
    assert str(tasks["walk-a"].make().model) == "robot_a.xml"
    assert str(tasks["walk-b"].make().model) == "robot_b.xml"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another")
STRANGER = 64321


@needs_root
@pytest.mark.parametrize("whose", ["folder", "subfolder", "file", "link to folder", "link to file"])
def test_what_belongs_to_another_user_is_skipped_and_that_is_said(here, tmp_path, capsys, whose):
    file = _write(here / "tasks" / "robot" / "robot.py", "from-stranger")
    _write(here.parent / "tasks" / "mine.py", "mine")
    paths = {"folder": file.parents[1], "subfolder": file.parent, "file": file}
    path = paths[whose.removeprefix("link to ")]
    if whose.startswith("link"):
        path.symlink_to(path.rename(tmp_path / "elsewhere.py"))
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    found = {*discover().tasks, *discover(quiet=True).tasks}
    assert ("mine" in found, "from-stranger" in found) == (True, False)
    assert capsys.readouterr().err == (
        f"warning: skipping {path}, which belongs to user {STRANGER}; if you trust its code, set "
        f"SIMTRAIN_TASKS={here / 'tasks'}\n"
    )


@needs_root
@pytest.mark.parametrize(
    "variable", [("SIMTRAIN_TASKS", "tasks"), ("SUDO_UID", str(STRANGER))], ids=["named", "sudo"]
)
def test_a_named_folder_and_what_belongs_to_the_user_of_sudo_are_trusted(
    here, capsys, monkeypatch, variable
):
    os.chown(_write(here / "tasks" / "mine.py", "mine"), STRANGER, STRANGER)
    if variable[0] == "SIMTRAIN_TASKS":
        os.chown(here / "tasks", STRANGER, STRANGER)
    monkeypatch.setenv(*variable)
    assert "mine" in discover().tasks
    assert capsys.readouterr().err == ""


def test_what_belongs_to_no_known_user_is_skipped_without_root_too(here, capsys, monkeypatch):
    _write(here / "tasks" / "mine.py", "mine")
    mine = (here / "tasks").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert ("mine" in discover().tasks) == (mine == 0)  # root's own are everybody's
    assert ("skipping" in capsys.readouterr().err) == (mine != 0)


def test_a_working_directory_that_was_removed_is_reported(here):
    here.rmdir()
    with pytest.raises(ConfigError, match="the working directory was removed"):
        discover(quiet=True)
