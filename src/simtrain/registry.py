"""Finds tasks by name. Imports task files, and nothing heavier than they do.

Tasks are looked for, in this order, in the folders of ``SIMTRAIN_TASKS``, in ``./tasks`` of the
working directory and its parents, in the tasks that ship with simtrain, and in the entry-point
group ``simtrain.tasks`` of installed packages. The first place that has a name wins only over
itself: one name in two files is an error.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from simtrain.config import TrainConfig
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError, did_you_mean

TaskFunction = Callable[[], TaskCfg]


@dataclass(frozen=True)
class Task:
    """A task that was found: a name and the function that declares it."""

    name: str
    make: TaskFunction
    source: str
    """The file that declares it."""

    def configuration(self) -> TaskCfg:
        """What the task function returns.

        Raises:
            ConfigError: it raises, or returns something else.
        """
        try:
            cfg = self.make()
        except ConfigError:
            raise
        except Exception as error:
            what = "".join(traceback.format_exception_only(error)).strip()
            line = traceback.extract_tb(error.__traceback__)[-1]
            raise ConfigError(
                f"task {self.name!r} in {self.source} raised {what} ({line.filename}:{line.lineno})"
            ) from error
        if not isinstance(cfg, TaskCfg):
            raise ConfigError(
                f"task {self.name!r} in {self.source} returned {type(cfg).__name__}, not a TaskCfg"
            )
        return cfg

    @property
    def description(self) -> str:
        """First line of the function's docstring."""
        return (inspect.getdoc(self.make) or "").split("\n", 1)[0]


@dataclass(frozen=True)
class Registry:
    """All tasks that were found, and the task files that could not be imported."""

    tasks: dict[str, Task]
    broken: dict[str, str]
    """File -> traceback."""

    def find(self, name: str) -> Task:
        """The task of this name.

        Raises:
            ConfigError: there is none; names the nearest, and files that did not import.
        """
        if name in self.tasks:
            return self.tasks[name]
        message = f"there is no task {name!r}{did_you_mean(name, self.tasks)}"
        if self.broken:
            message += "; these task files could not be imported: " + "; ".join(
                f"{path} ({text.strip().splitlines()[-1]})" for path, text in self.broken.items()
            )
        else:
            message += "; `uv run list-tasks` lists all"
        raise ConfigError(message)


def task(name: str) -> Callable[[TaskFunction], TaskFunction]:
    """Declare a task: a function without arguments that returns its `TaskCfg`.

    The first line of its docstring is the task's description.
    """

    def register(make: TaskFunction) -> TaskFunction:
        make.__simtrain_tasks__ = (*getattr(make, "__simtrain_tasks__", ()), name)  # type: ignore[attr-defined]
        return make

    return register


def discover() -> Registry:
    """Import every task file there is.

    Raises:
        ConfigError: two tasks have the same name, or ``SIMTRAIN_TASKS`` names a folder that does
            not exist.
    """
    tasks: dict[str, Task] = {}
    broken: dict[str, str] = {}
    for where, load in _sources():
        try:
            module = load()
        except (Exception, SystemExit):  # noqa: BLE001 - it can fail in any way, and hides no other
            broken[where] = _traceback_below_import()
            continue
        for found in _tasks_of(module, where):
            other = tasks.get(found.name)
            if other is not None and other.make is not found.make:
                both = f"{other.source} and {found.source}"
                raise ConfigError(
                    f"two tasks are called {found.name!r}: "
                    f"{both if other.source != found.source else f'both in {found.source}'}; "
                    "rename one of them"
                )
            tasks[found.name] = found
    return Registry(tasks, broken)


def _sources() -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    """Every task file and entry point once: how it is called, and how to import it."""
    seen: set[Path] = set()
    for folder in _folders():
        for path in sorted({*folder.glob("*.py"), *folder.glob("*/*.py")}):
            path = path.resolve()
            if path not in seen and not path.name.startswith("_"):
                seen.add(path)
                yield str(path), lambda path=path: _import_file(path)  # type: ignore[misc]
    for point in importlib.metadata.entry_points(group="simtrain.tasks"):
        yield f"entry point {point.name} = {point.value}", point.load


def _folders() -> Iterator[Path]:
    for entry in filter(None, os.environ.get("SIMTRAIN_TASKS", "").split(os.pathsep)):
        folder = Path(entry).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"SIMTRAIN_TASKS names {entry}, which is not a folder")
        yield folder
    here = Path.cwd()
    for parent in (here, *here.parents):
        if (parent / "tasks").is_dir():
            yield parent / "tasks"
    package = Path(__file__).resolve().parent
    for folder in (package.parents[1] / "tasks", package / "tasks"):
        if folder.is_dir():
            yield folder


def _import_file(path: Path) -> ModuleType:
    """Import a task file under a name of its own; files beside it can be imported by it.

    What it imports from beside it is its own as well: another folder may have a file of that name.
    """
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
        for beside in set(sys.modules) - before:
            file = getattr(sys.modules[beside], "__file__", None)
            if file is not None and Path(file).is_relative_to(path.parent):
                del sys.modules[beside]
    return module


def _tasks_of(module: object, where: str) -> Iterator[Task]:
    """Tasks declared in a module, or by a single task function that an entry point names."""
    candidates = vars(module).values() if isinstance(module, ModuleType) else [module]
    for value in list(candidates):
        for name in getattr(value, "__simtrain_tasks__", ()):
            imported_from_elsewhere = (
                isinstance(module, ModuleType) and value.__module__ != module.__name__
            )
            if not imported_from_elsewhere:
                yield Task(name, value, where)


def _traceback_below_import() -> str:
    """The present exception's traceback without the frames of this file and of importlib."""
    kind, error, trace = sys.exc_info()
    frames = traceback.extract_tb(trace)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)]
    return "".join([*lines, *traceback.format_exception_only(kind, error)])


def default_config(task: str) -> TrainConfig:
    """The configuration that a task asks for, without flags; ConfigError if there is no such task.

    Task files are no modules that another process could import: a rank or an evaluator makes its
    configuration anew by the task's name, and lays the run's values over it.
    """
    return TrainConfig.of_task(task, discover().find(task).configuration())
