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
from torch.utils._pytree import tree_map_only
from typeguard import CollectionCheckStrategy, check_type

from simtrain.errors import ConfigError
from simtrain.files import check_uncompressed, damage_as_config_error, read_file, written_whole

_ALL = CollectionCheckStrategy.ALL_ITEMS
BEST = "best.pt"  # the checkpoint with the best evaluation of a run
BEST_CONFIG = "best.yaml"  # its configuration, where that is not the run's: in a population
_KEYS = ("actor_state_dict", "iter", "infos")


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


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a file of `save_model` or rsl_rl; ConfigError, with the reason, if unreadable.

    A student's parameters are its ``actor_state_dict``.
    """
    content = read_tensors(path, "checkpoint")
    if "student_state_dict" in content:
        content["actor_state_dict"] = policy_state(content)
    if not all(key in content for key in _KEYS):
        raise ConfigError(f"{path} is no checkpoint of simtrain: it needs {', '.join(_KEYS)}")
    networks = [name for name in ("actor_state_dict", "critic_state_dict") if name in content]
    check_kinds(path, content, dict.fromkeys(networks, dict[str, Tensor]) | {"iter": int})
    return content


def policy_state(networks: dict[str, Any]) -> dict[str, Tensor]:
    """The policy in a saved state of PPO or of a distillation."""
    state: dict[str, Tensor]
    state = networks["student_state_dict" if "student_state_dict" in networks else _KEYS[0]]
    return state


def check_kinds(path: Path, content: dict[str, Any], kinds: dict[str, Any]) -> None:
    """Raise ConfigError unless a file's content has a value of each of the `kinds`, which are type
    hints, and no number below 0.
    """
    for name, kind in kinds.items():
        with damage_as_config_error(f"{path} is damaged: its {name} is not as it should be"):
            value = check_type(content[name], kind, collection_check_strategy=_ALL)
            if kind is int and not 0 <= value < 2**62:
                raise ValueError(f"{value} is out of bounds")


def check_parameters(parameters: dict[str, Tensor], whose: str) -> None:
    """Raise ConfigError, which begins with `whose`, for parameters that are no real numbers."""
    for name, tensor in parameters.items():
        is_count = tensor.ndim == 0 and not tensor.is_complex()
        if not (is_count or tensor.is_floating_point()):
            raise ConfigError(
                f"{whose} has {name} of {tensor.dtype}, not of floating-point numbers"
            )
        if not tensor.float().isfinite().all():
            raise ConfigError(f"{whose} has parameters that are not finite numbers")


def write_tensors(path: Path, content: dict[str, Any], previous: Path | None = None) -> None:
    """Write tensors and plain values, whole or not at all; see `written_whole`."""
    # torch's own errors do not say what is wrong with the disk.
    with written_whole(path, previous) as file:
        file.write(packed(content))


def read_tensors(path: Path, kind: str) -> dict[str, Any]:
    """The content of a file of `write_tensors`; messages call it a `kind`, e.g. ``checkpoint``.

    ConfigError if the file cannot be read, is damaged, or would need to run code; says which.
    """
    data = read_file(path, f"the {kind}")
    with damage_as_config_error(f"{path} is not a {kind}, or it is damaged"):
        _check_archive(path, data)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Detected pickle protocol")
                content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            pickled = data.startswith((b"PK", b"\x80"))  # the bytes of a text can look like a class
            code = re.search(r"[Uu]nsupported (?:global: )?(?:GLOBAL|class) ([\w.]+)", str(error))
            if not pickled or code is None:  # torch's text recommends to load it without a check
                raise ValueError("torch.load cannot read it") from error
            raise ConfigError(
                f"the {kind} {path} is refused: it holds more than tensors and plain values "
                f"({code[1]}), and loading it could run code that somebody put there"
            ) from error
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}")
        _check_sizes(content)
    return content


def _check_archive(path: Path, data: bytes) -> None:
    """Raise ConfigError for wrong checksums, ValueError for compressed or incomplete archives."""
    # torch itself does not look at the checksums of the archive.
    if not zipfile.is_zipfile(io.BytesIO(data)):
        if data.startswith(b"PK"):
            raise ValueError("its end is missing")
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        check_uncompressed(archive, len(data))  # torch compresses nothing
        if (broken := archive.testzip()) is not None:
            raise ConfigError(f"{path} is damaged: the checksum of {broken} is wrong")


def _check_sizes(content: Any) -> None:
    """Raise ValueError for a tensor that pretends to have more numbers than the file has."""
    if isinstance(content, Tensor):
        if content.layout is not torch.strided or content.is_meta or content.is_quantized:
            raise ValueError("a tensor is not of plain numbers")
        if content.nbytes > content.untyped_storage().nbytes():
            raise ValueError(f"a tensor of {content.nbytes} bytes repeats fewer")
    elif isinstance(content, dict | list | tuple):
        for item in content.values() if isinstance(content, dict) else content:
            _check_sizes(item)


def copied_to_host(content: Any) -> Any:
    """The content with copies of its tensors in the host's memory, as they are now."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), content)


def packed(content: Any) -> bytes:
    """Tensors and plain values as bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """The content of the bytes that `packed` made."""
    return torch.load(io.BytesIO(data), weights_only=True)
