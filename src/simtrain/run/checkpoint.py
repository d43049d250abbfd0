"""Checkpoints of a policy, and the files of tensors that they are: read without running code.

A file holds tensors and plain values, with rsl_rl's keys in checkpoints. Each record of the archive
that `torch.save` makes carries a CRC-32, which is checked when the file is read.
"""

import io
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simtrain.errors import ConfigError
from simtrain.run.directory import written_whole

BEST = "best.pt"  # the checkpoint with the best evaluation of a run
BEST_CONFIG = "best.yaml"  # its configuration, where that is not the run's: in a population
_KEYS = ("actor_state_dict", "critic_state_dict", "iter", "infos")


def model_path(run: Path, iteration: int) -> Path:
    """The file of an iteration's checkpoint."""
    return run / f"model_{iteration}.pt"


def model_paths(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; without `BEST`."""
    paths = (p for p in run.glob("model_*.pt") if re.fullmatch(r"model_\d+\.pt", p.name))
    return sorted(paths, key=lambda path: int(path.stem.removeprefix("model_")))


def save_model(path: Path, iteration: int, networks: dict[str, Any], infos: dict[str, Any]) -> None:
    """Write ``PPO.save()`` and plain values, `infos`, to a checkpoint, whole or not at all."""
    write_tensors(path, {**networks, "iter": iteration, "infos": infos})


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at `path`, a file or a run's newest; ConfigError if there is none."""
    if path.is_file():
        return path
    if not path.exists():
        raise ConfigError(f"there is no run or checkpoint {path}")
    if newest := model_paths(path):
        return newest[-1]
    if (path / BEST_CONFIG).exists():
        return path / BEST
    if runs := sorted({file.parent for file in path.glob("*/**/model_*.pt")}):
        raise ConfigError(f"{path} is no run directory; the newest run below it is {runs[-1]}")
    if (path / "config.yaml").exists():
        raise ConfigError(f"the run {path} has no checkpoint yet (model_<iteration>.pt)")
    raise ConfigError(f"{path} is no run directory: it has no config.yaml and no checkpoint")


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read what `save_model` or rsl_rl's runner wrote; ConfigError if that cannot be, says why."""
    content = read_tensors(path, "checkpoint", device)
    if not all(key in content for key in _KEYS):
        raise ConfigError(f"{path} is no checkpoint of simtrain: it needs {', '.join(_KEYS)}")
    return content


def write_tensors(path: Path, content: dict[str, Any], previous: Path | None = None) -> None:
    """Write tensors and plain values, whole or not at all; see `written_whole`."""
    # torch's own errors do not say what is wrong with the disk.
    with written_whole(path, previous) as file:
        file.write(packed(content))


def read_tensors(path: Path, kind: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read what `write_tensors` wrote; messages call the file a `kind`, e.g. ``checkpoint``.

    ConfigError if the file cannot be read, is damaged, or would need to run code; says which.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the {kind} {path} cannot be read: {error.strerror}") from error
    try:
        # torch itself does not look at the checksums of the archive.
        if zipfile.is_zipfile(io.BytesIO(data)):
            broken = zipfile.ZipFile(io.BytesIO(data)).testzip()
            if broken is not None:
                raise ConfigError(f"{path} is damaged: the checksum of {broken} is wrong")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except ConfigError:
        raise
    except Exception as error:  # what broken bytes lead to is not documented
        pickled = data.startswith((b"PK", b"\x80"))  # the bytes of a text can look like a class
        code = re.search(r"[Uu]nsupported (?:global: )?(?:GLOBAL|class) ([\w.]+)", str(error))
        if isinstance(error, pickle.UnpicklingError) and pickled and code is not None:
            raise ConfigError(
                f"the {kind} {path} is refused: it holds more than tensors and plain values "
                f"({code[1]}), and loading it could run code that somebody put there"
            ) from error
        raise ConfigError(f"{path} is not a {kind}, or it is damaged") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a {kind}")
    return content


def copied_to_host(content: Any) -> Any:
    """The same with copies of tensors in the host's memory, which stay as they are now."""
    if isinstance(content, Tensor):
        return content.detach().to("cpu", copy=True)
    if isinstance(content, dict):
        return {key: copied_to_host(item) for key, item in content.items()}
    if isinstance(content, tuple | list):
        return type(content)(copied_to_host(item) for item in content)
    return content


def packed(content: Any) -> bytes:
    """Tensors and plain values as bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """The content of what `packed` made."""
    return torch.load(io.BytesIO(data), weights_only=True)
