"""Finds tasks by name. Imports task files, and nothing heavier than they do.

Tasks are looked for, in this order, in the folders of ``SIMTRAIN_TASKS``, in ``./tasks`` of the
working directory and its parents, in the tasks that ship with simtrain, and in the entry-point
group ``simtrain.tasks`` of installed packages. One name in two files is an error. In ``./tasks``,
which nobody named, files of another user are not imported; git has the same rule.
"""

import importlib.metadata
import importlib.util
import inspect
import os
import pwd
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from simtrain.config.train import TrainConfig
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError, did_you_mean, warnings_once, what_raised
from simtrain.files import task_folders

TaskFunction = Callable[[], TaskCfg]
_warned: set[Path] = set()


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
        except (Exception, SystemExit) as error:
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
    """All tasks that were found, and those that cannot be used."""

    tasks: dict[str, Task] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """Tracebacks of task files that could not be imported, by file."""
    missing: dict[str, str] = field(default_factory=dict)
    """The package that is not installed, and the command that installs it, by task."""

    def find(self, name: str) -> Task:
        """The task of this name; else a ConfigError with the nearest, and files not imported."""
        if name in self.tasks:
            return self.tasks[name]
        if name in self.missing:
            raise ConfigError(f"the task {name!r} needs {self.missing[name]}")
        hint = "`uv run simtrain list-tasks` lists all"
        if self.broken:
            hint = "these task files could not be imported: " + "; ".join(
                f"{path} ({text.strip().splitlines()[-1]})" for path, text in self.broken.items()
            )
        raise ConfigError(f"there is no task {name!r}{did_you_mean(name, self.tasks)}; {hint}")


def task(
    name: str, *, needs: tuple[str, str] | None = None
) -> Callable[[TaskFunction], TaskFunction]:
    """Declare a task: a function that returns its `TaskCfg`; the docstring describes it.

    `needs` is a package without which it is not listed, and the command that gets it. ConfigError
    for a name that is no printable text in one line, or has a slash, for it names a folder.
    """
    if not (isinstance(name, str) and name.strip() and name.isprintable() and "/" not in name):
        raise ConfigError(f"a task cannot be called {name!r:.60}: it names a folder of runs")

    def register(make: TaskFunction) -> TaskFunction:
        make.__simtrain_tasks__ = {**getattr(make, "__simtrain_tasks__", {}), name: needs}  # type: ignore[attr-defined]
        return make

    return register


def discover(*, quiet: bool = False) -> Registry:
    """Import every task file; ConfigError for a name twice, or a folder that does not exist.

    Warnings, also about skipped files of another user, are printed once, unless `quiet`.
    """
    registry = Registry()
    for source, load in _sources(quiet):
        try:
            with warnings_once(quiet=quiet):
                loaded = load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - it must hide no other; pytest's skip is one
            registry.broken[source] = _traceback_below_import(error)
            continue
        tasks = list(_tasks_of(loaded, source, registry.missing))
        if not tasks and not Path(source).is_file():
            registry.broken[source] = "it has no task; name the module, or the function, of one"
        for task in tasks:
            other = registry.tasks.setdefault(task.name, task)
            if other.make is not task.make:
                first = "both in" if other.source == source else f"{other.source} and"
                text = f"two tasks are called {task.name!r}: {first} {source}"
                raise ConfigError(f"{text}; rename one of them")
    return registry


def default_config(task: str, *, quiet: bool = False) -> TrainConfig:
    """The configuration that a task asks for, without flags; ConfigError if there is none."""
    return TrainConfig.of_task(task, discover(quiet=quiet).find(task).configuration(quiet=quiet))


def task_file(task: str) -> str:
    """The file or entry point that declares a task; empty if none does."""
    declaration = discover(quiet=True).tasks.get(task)
    return declaration.source if declaration else ""


def _sources(quiet: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """The name of every task file and entry point, once, and the function that imports it.

    The user's own come first, the tasks that ship last.
    """
    for point in importlib.metadata.entry_points(group="simtrain.tasks"):
        yield f"entry point {point.name} = {point.value}", point.load
    seen: set[Path] = set()
    folders = list(task_folders())
    trusted = {folder.resolve() for folder, is_trusted in folders if is_trusted}
    for folder, _ in folders:
        strangers = partial(_belong_to_strangers, folder=folder, quiet=quiet)
        is_checked = folder.resolve() not in trusted
        if is_checked and strangers(folder):
            continue
        files = {*folder.glob("*.py"), *folder.glob("*/*.py")}
        # Neither pipes, which would be waited for, nor links to nothing, as an editor's locks.
        for file in sorted(filter(Path.is_file, files)):
            path = file.resolve()
            if path in seen or path.name.startswith("_"):
                continue
            if not (is_checked and strangers(file.parent, file)):
                seen.add(path)
                yield str(path), partial(_import_file, path)


def _belong_to_strangers(*paths: Path, folder: Path, quiet: bool) -> bool:
    """Whether one of `paths` in `folder`, or its link's target, belongs to another user.

    Root is not another user. Prints a warning unless `quiet`.
    """
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0 and (user := os.environ.get("SUDO_UID", "")).isdigit():
        trusted.add(int(user))
    for path in paths:
        owners = {path.lstat().st_uid, path.stat().st_uid if path.exists() else 0}
        if strangers := owners - trusted:
            if not quiet and path not in _warned:
                _warned.add(path)
                way = f"if you trust its code, set SIMTRAIN_TASKS={folder}"
                names = " and ".join(map(_user_name, strangers))
                print(f"warning: skipping {path}, which belongs to {names}; {way}", file=sys.stderr)
            return True
    return False


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
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
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


def _tasks_of(loaded: Any, source: str, missing: dict[str, str]) -> Iterator[Task]:
    """Tasks declared in a module, or by the task function that an entry point names.

    Those whose package is not installed are added to `missing`.
    """
    is_module = isinstance(loaded, ModuleType)
    for value in list(vars(loaded).values()) if is_module else [loaded]:
        if isinstance(value, ModuleType):
            continue  # asking torch for anything imports it, see `cli.start.import_when_used`
        # Statically, because attributes of proxy objects may raise anything.
        for name, needs in inspect.getattr_static(value, "__simtrain_tasks__", {}).items():
            if is_module and value.__module__ != loaded.__name__:
                continue  # it is only imported there
            if needs is not None and importlib.util.find_spec(needs[0]) is None:
                missing[name] = f"the package {needs[0]}, which `{needs[1]}` installs"
            else:
                yield Task(name, value, source)


def _traceback_below_import(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)]
    return "".join([*lines, *traceback.format_exception_only(error)])
