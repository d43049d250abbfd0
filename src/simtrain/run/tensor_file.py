"""Files of tensors and plain values, with a checksum, that are read without running code."""

from __future__ import annotations

import hashlib
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


def write_tensors(path: Path, content: dict[str, Any], previous: Path | None = None) -> None:
    """Write tensors and plain values, whole or not at all; see `written_whole`."""
    # Not by torch, whose own errors do not say what is wrong with the disk.
    data = packed(content)
    with written_whole(path, previous) as file:
        file.write(data)


def read_tensors(path: Path, what: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What `write_tensors` wrote.

    Args:
        path: the file.
        what: how to call it in messages, e.g. ``checkpoint``.
        device: where tensors go.

    Raises:
        ConfigError: the file cannot be read, is damaged, or would need to run code; says which.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be read: {error.strerror}") from error
    try:
        # torch does not look at the checksums of the archive that it reads.
        if zipfile.is_zipfile(io.BytesIO(data)):
            broken = zipfile.ZipFile(io.BytesIO(data)).testzip()
            if broken is not None:
                raise ConfigError(f"{path} is damaged: the checksum of {broken} is wrong")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except ConfigError:
        raise
    except pickle.UnpicklingError as error:
        pickled = data.startswith((b"PK", b"\x80"))  # the bytes of a text can look like a class
        code = re.search(r"[Uu]nsupported (?:global: )?(?:GLOBAL|class) ([\w.]+)", str(error))
        if pickled and code is not None:
            raise ConfigError(
                f"the {what} {path} is refused: it holds more than tensors and plain values "
                f"({code[1]}), and loading it could run code that somebody put there"
            ) from error
        raise ConfigError(f"{path} is not a {what}, or it is damaged") from error
    except Exception as error:  # what broken bytes lead to is not documented
        raise ConfigError(f"{path} is not a {what}, or it is damaged") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a {what}")
    return content


def packed(content: Any) -> bytes:
    """Tensors and plain values as the bytes of a file."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """What `packed` was given."""
    return torch.load(io.BytesIO(data), weights_only=True)


def checksum(content: Any) -> str:
    """A SHA-256 of tensors and plain values in mappings and sequences, in hexadecimal digits."""
    digest = hashlib.sha256()
    _add(content, digest)
    return digest.hexdigest()


def copied_to_cpu(content: Any) -> Any:
    """The same with tensors copied to the CPU, so that they stay as they are now."""
    if isinstance(content, Tensor):
        return content.detach().to("cpu", copy=True)
    if isinstance(content, dict):
        return {key: copied_to_cpu(item) for key, item in content.items()}
    if isinstance(content, tuple | list):
        return type(content)(copied_to_cpu(item) for item in content)
    return content


def _add(content: Any, digest: hashlib._Hash) -> None:
    if isinstance(content, Tensor):
        digest.update(f"tensor {content.dtype} {tuple(content.shape)};".encode())
        data = content.detach().cpu().contiguous().reshape(-1)
        digest.update(data.view(torch.uint8).numpy().data)
    elif isinstance(content, dict):
        digest.update(f"mapping {len(content)};".encode())
        for key, item in content.items():
            _add(key, digest)
            _add(item, digest)
    elif isinstance(content, tuple | list):
        digest.update(f"sequence {len(content)};".encode())
        for item in content:
            _add(item, digest)
    else:
        digest.update(f"{type(content).__name__} {content!r};".encode())
