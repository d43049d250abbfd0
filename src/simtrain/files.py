"""Files, folders of tasks, and memory: damaged and too large files are refused.

A path that cannot be used, and a file that is too large or damaged, end in a ConfigError.
"""

import faulthandler
import gc
import json
import os
import resource
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import psutil
import yaml

from simtrain.errors import ConfigError

T = TypeVar("T")
LFS_POINTER = b"version https://git-lfs"
"""The first bytes of a file that Git LFS has not loaded."""
_TEMPORARY = ".tmp"
_CONTAINER = Path("/sys/fs/cgroup")
_LARGEST_MODEL = 20 * 10**6  # bytes
_MOST_MEMORY, _MOST_SECONDS = 2**32, 40  # of reading a model, by the processor


def check_path(path: Path | str, what: str) -> None:
    """Raise ConfigError, which begins with `what`, for a path that no file can have."""
    try:
        str(path).encode()
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise ConfigError(f"{what} {_short(path)} cannot be used: {error.strerror}") from error
    except ValueError as error:  # a zero byte, or bytes that are no UTF-8
        raise ConfigError(f"{what} {str(path)!r} is no path: {error}") from error


def as_json(value: Any, indent: int | None = None) -> str:
    """Plain data as JSON; NaN and infinity, which JSON does not have, become null."""
    plain = json.loads(json.dumps(value), parse_constant=lambda constant: None)
    return json.dumps(plain, indent=indent)


def read_file(path: Path, what: str, most: int | None = None) -> bytes:
    """The content of a regular file.

    ConfigError, which begins with `what` and the path, if it is no regular file, cannot be read, is
    a pointer of Git LFS, or has more than `most` bytes; by default more than half of the memory
    that is free.
    """
    most = available_memory() // 2 if most is None else most
    try:
        # Opening a named pipe would wait for somebody who writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                reason = "it is no regular file"
            elif status.st_size > most:
                reason = f"it has {gib(status.st_size)}, and at most {gib(most)} can be read"
            elif (data := file.read(status.st_size)).startswith(LFS_POINTER):
                reason = "Git LFS has not loaded it; say `git lfs pull` in its repository"
            else:
                return data
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise ConfigError(f"{what} {_short(path)} cannot be read: {reason}".strip())


def read_yaml(path: Path, what: str, most: int) -> Any:
    """The content of a YAML file of plain values.

    ConfigError as from `read_file`; an error of yaml's for damage, and for references (aliases), by
    which a small file can stand for a huge one.
    """
    return yaml.load(read_file(path, what, most).decode(), _PlainLoader)


class _PlainLoader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers to its own parts")
        return super().compose_node(parent, index)


def read_in_child_first(path: Path, read: Callable[[], T]) -> T:
    """Read a model in a separate process first: some crash MuJoCo, or keep it busy for hours.

    Raises the ConfigError of `read_file` or that process, or one if its limits kill it.
    """
    read_file(path, "the model", _LARGEST_MODEL)
    reading, writing = os.pipe()
    if not (child := os.fork()):
        _answer(writing, read)
    os.close(writing)
    with os.fdopen(reading) as answer:
        error = answer.read()
    if os.waitpid(child, 0)[1]:
        most = f"{_MOST_SECONDS} s and {_MOST_MEMORY >> 30} GiB are not enough"
        error = f"the model {path} cannot be read: MuJoCo crashes, or {most}"
    if error:
        raise ConfigError(error)
    return read()


def _answer(writing: int, read: Callable[[], object]) -> NoReturn:
    """Read within limits, write the error, and exit."""
    import mujoco  # not for those who read other files

    code, used = 0, psutil.Process().memory_info().data
    # Threads of the parent are not here; the destructor of what owned them would wait for ever.
    gc.disable()
    try:
        with suppress(ValueError):  # ours are lower already
            resource.setrlimit(resource.RLIMIT_DATA, (used + _MOST_MEMORY, used + _MOST_MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()
        mujoco.set_mju_user_warning(lambda text: None)  # or it writes a log into this folder
        with os.fdopen(writing, "w") as answer:
            try:
                read()
            except ConfigError as error:
                answer.write(str(error))
    except (MemoryError, RuntimeError):  # MuJoCo raises either where memory is lacking
        code = 1
    finally:
        os._exit(code)


@contextmanager
def written_whole(path: Path, previous: Path | None = None) -> Iterator[IO[bytes]]:
    """A binary file that appears as `path` only once it is complete and on the disk.

    On an error nothing is left behind, and the file that was at `path` stays. Otherwise that file
    goes to `previous`, if this is given; between the two renames there is only `previous`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_leftovers(run: Path) -> None:
    """Remove the files that a process left half written when it was killed."""
    for path in run.glob(f".*{_TEMPORARY}"):
        path.unlink(missing_ok=True)


@contextmanager
def damage_as_config_error(text: str) -> Iterator[None]:
    """Within, raise a ConfigError that begins with `text` for any error of a damaged file.

    ConfigErrors pass unchanged.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # broken content can raise anything
        lines = str(error).strip().splitlines() or [type(error).__name__]
        lacks = "it lacks " if isinstance(error, KeyError) else ""
        raise ConfigError(f"{text}: {lacks}{lines[0][:200]}") from error


def check_uncompressed(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError for a zip archive of `size` bytes that would grow by being unpacked."""
    if (unpacked := sum(record.file_size for record in archive.infolist())) > size:
        raise ValueError(f"{gib(unpacked)} are packed into {gib(size)}")


def available_memory() -> int:
    """Bytes that this process may still take, by the machine's memory and its container's limit."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, IndexError):  # no container, or one without a limit
        most = int((_CONTAINER / "memory.max").read_text())
        # The kernel drops cached files when processes need the memory.
        used = int((_CONTAINER / "memory.stat").read_text().split()[1])
        free = min(free, max(0, most - used))
    return free


def check_memory(needed: int, num_envs: int, ranks: int = 1) -> None:
    """Raise ConfigError if `needed` bytes, those of all environments and ranks, are not free."""
    if needed > (free := available_memory()):
        in_ranks = f" in each of {ranks} ranks" if ranks > 1 else ""
        fewer = int(num_envs * free / needed)
        use = f"--num-envs {fewer}" if fewer and ranks == 1 else "fewer environments or ranks"
        raise ConfigError(
            f"{num_envs:,} environments{in_ranks} need about {gib(needed)} of memory, and "
            f"{gib(free)} are free; use {use}, or smaller rollouts or networks"
        )


def gib(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 2**30:.3g} GiB"


def task_folders() -> Iterator[tuple[Path, bool]]:
    """The folders of tasks, in their order, and whether each is trusted, whoever owns it."""
    for entry in filter(None, os.environ.get("SIMTRAIN_TASKS", "").split(os.pathsep)):
        folder = Path(entry).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"SIMTRAIN_TASKS names {entry}, which is not a folder")
        yield folder, True
    try:
        here = Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError("the working directory was removed; change to another one") from error
    package = Path(__file__).resolve().parent
    parents = dict.fromkeys((here, *here.parents), False)
    parents = {**parents, package.parents[1]: True, package: True}
    for parent, is_trusted in parents.items():
        if (parent / "tasks").is_dir():
            yield parent / "tasks", is_trusted


def find_beside_tasks(path: str) -> Path:
    """A file that a task names: as it is, or else below a folder of tasks; ConfigError if none."""
    for folder in (Path(), *(folder for folder, _ in task_folders())):
        if (folder / path).exists():
            return folder / path
    raise ConfigError(f"there is no file {path}, here or in a folder of tasks")


def _short(path: Path | str) -> str:
    text = str(path)
    return text if len(text) <= 300 else f"{text[:100]}... ({len(text)} characters)"
