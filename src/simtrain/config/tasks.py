"""Finds tasks by name. Imports task files, and nothing heavier than they do.

Tasks are looked for, in this order, in the folders of ``SIMTRAIN_TASKS``, in ``./tasks`` of the
working directory and its parents, in the tasks that ship with simtrain, and in the entry-point
group ``simtrain.tasks`` of installed packages. One name in two files is an error. In ``./tasks``,
which nobody named, what belongs to another user is not imported; git knows the same rule.
"""

import importlib.metadata
import importlib.util
import inspect
import os
import pwd
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from simtrain.config.train import TrainConfig
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError, did_you_mean, warnings_once, what_raised

TaskFunction = Callable[[], TaskCfg]
_told: set[Path] = set()


@dataclass(frozen=True)
class Task:
    """A name, the function that declares the task, and the file or entry point it is from."""

    name: str
    make: TaskFunction
    source: str

    def configuration(self, *, quiet: bool = False) -> TaskCfg:
        """Call the function, `quiet` without its warnings; ConfigError if it raises, or returns
        something else.
        """
        task = f"task {self.name!r} in {self.source}"
        try:
            with warnings_once(quiet=quiet):
                cfg = self.make()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{task} {what_raised(error)}") from error
        if not isinstance(cfg, TaskCfg):
            raise ConfigError(f"{task} returned {type(cfg).__name__}, not a TaskCfg")
        return cfg

    @property
    def trained(self) -> Path:
        """The file of the policy that ships with the task, if one does: beside the task's file."""
        file = self.source if Path(self.source).is_file() else inspect.getfile(self.make)
        return Path(file).with_name("trained") / f"{self.name}.pt"

    @property
    def description(self) -> str:
        """First line of the function's docstring."""
        return (inspect.getdoc(self.make) or "").split("\n", 1)[0]


@dataclass(frozen=True)
class Registry:
    """All tasks that were found, and the task files that could not be imported."""

    tasks: dict[str, Task]
    broken: dict[str, str]  # file -> traceback

    def find(self, name: str) -> Task:
        """The task of this name; else a ConfigError with the nearest, and files not imported."""
        if name in self.tasks:
            return self.tasks[name]
        hint = "`uv run list-tasks` lists all"
        if self.broken:
            hint = "these task files could not be imported: " + "; ".join(
                f"{path} ({text.strip().splitlines()[-1]})" for path, text in self.broken.items()
            )
        raise ConfigError(f"there is no task {name!r}{did_you_mean(name, self.tasks)}; {hint}")


def task(name: str) -> Callable[[TaskFunction], TaskFunction]:
    """Declare a task: a function that returns its `TaskCfg`; the docstring describes it."""

    def register(make: TaskFunction) -> TaskFunction:
        make.__simtrain_tasks__ = (*getattr(make, "__simtrain_tasks__", ()), name)  # type: ignore[attr-defined]
        return make

    return register


def discover(*, quiet: bool = False) -> Registry:
    """Import every task file; ConfigError for a name twice, or a folder that does not exist.

    What is skipped, as it belongs to another user, and warnings are told once, unless `quiet`.
    """
    registry = Registry({}, {})
    for source, load in _sources(quiet):
        try:
            with warnings_once(quiet=quiet):
                loaded = load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it must hide no other
            registry.broken[source] = _traceback_below_import(error)
            continue
        for found in _tasks_of(loaded, source):
            other = registry.tasks.get(found.name, found)
            if other.make is not found.make:
                first = "both in" if other.source == source else f"{other.source} and"
                text = f"two tasks are called {found.name!r}: {first} {source}"
                raise ConfigError(f"{text}; rename one of them")
            registry.tasks[found.name] = found
    return registry


def find_beside_tasks(path: str) -> Path:
    """A file that a task names: as it is, or else below a folder of tasks; ConfigError if none."""
    candidates = (
        folder / path for folder in (*_named_folders(), *_found_folders(), *_own_folders())
    )
    found = next((c for c in (Path(path), *candidates) if c.exists()), None)
    if found is None:
        raise ConfigError(f"there is no file {path}, here or in a folder of tasks")
    return found


def _sources(quiet: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """The name of every task file and entry point, once, and the function that imports it."""
    seen: set[Path] = set()
    named = {folder.resolve() for folder in (*_named_folders(), *_own_folders())}
    for folder in (*_named_folders(), *_found_folders(), *_own_folders()):
        is_checked = folder.resolve() not in named
        if is_checked and _is_strangers(folder, folder, quiet):
            continue
        for found in sorted({*folder.glob("*.py"), *folder.glob("*/*.py")}):
            path = found.resolve()
            if path in seen or path.name.startswith("_"):
                continue
            if is_checked and any(_is_strangers(p, folder, quiet) for p in (found.parent, found)):
                continue
            seen.add(path)
            yield str(path), partial(_import_file, path)
    for point in importlib.metadata.entry_points(group="simtrain.tasks"):
        yield f"entry point {point.name} = {point.value}", point.load


def _named_folders() -> Iterator[Path]:
    for entry in filter(None, os.environ.get("SIMTRAIN_TASKS", "").split(os.pathsep)):
        folder = Path(entry).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"SIMTRAIN_TASKS names {entry}, which is not a folder")
        yield folder


def _found_folders() -> Iterator[Path]:
    here = Path.cwd()
    yield from filter(Path.is_dir, (parent / "tasks" for parent in (here, *here.parents)))


def _own_folders() -> Iterator[Path]:
    package = Path(__file__).resolve().parents[1]
    yield from filter(Path.is_dir, (parent / "tasks" for parent in (package.parents[1], package)))


def _is_strangers(path: Path, folder: Path, quiet: bool) -> bool:
    """Whether a path, or what it links to, belongs to neither this user nor root; if so, say it."""
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0 and (user := os.environ.get("SUDO_UID", "")).isdigit():
        trusted.add(int(user))
    strangers = {path.lstat().st_uid, path.stat().st_uid if path.exists() else 0} - trusted
    if strangers and not quiet and path not in _told:
        _told.add(path)
        owner = " and ".join(map(_user_name, strangers))
        way = f"if you trust its code, set SIMTRAIN_TASKS={folder}"
        print(f"warning: skipping {path}, which belongs to {owner}; {way}", file=sys.stderr)
    return bool(strangers)


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a container often does not know the users of the machine
        return f"user {number}"


def _import_file(path: Path) -> ModuleType:
    """Import a task file under a name of its own, and so what it imports from beside it."""
    name = f"simtrain_tasks.{path.parent.name}.{path.stem}"
    while name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path):
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = set(sys.modules)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
        for imported in set(sys.modules) - before:
            file = getattr(sys.modules[imported], "__file__", None)
            if file is not None and Path(file).is_relative_to(path.parent):
                del sys.modules[imported]
    return module


def _tasks_of(loaded: Any, source: str) -> Iterator[Task]:
    """Tasks declared in a module, or by the task function that an entry point names."""
    is_module = isinstance(loaded, ModuleType)
    for value in list(vars(loaded).values()) if is_module else [loaded]:
        for name in getattr(value, "__simtrain_tasks__", ()):
            # Not those that a module only imports.
            if not is_module or value.__module__ == loaded.__name__:
                yield Task(name, value, source)


def _traceback_below_import(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)]
    return "".join([*lines, *traceback.format_exception_only(error)])


def default_config(task: str, *, quiet: bool = False) -> TrainConfig:
    """The configuration that a task asks for, without flags; ConfigError if there is none."""
    return TrainConfig.of_task(task, discover(quiet=quiet).find(task).configuration(quiet=quiet))
