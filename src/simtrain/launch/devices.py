"""Which devices the ranks of one host use. Pure: it asks no driver, so that a table can test it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from simtrain.errors import ConfigError

_CPU = "; --gpu-ids None trains on the CPU"

GpuIds = tuple[int, ...] | Literal["auto", "all"] | None


@dataclass(frozen=True)
class Devices:
    """What the ranks of one host compute on: one GPU each, or the CPU."""

    kind: Literal["cuda", "cpu"]
    """Kind of device."""
    ranks: int
    """How many ranks the host gets."""
    visible: str
    """``CUDA_VISIBLE_DEVICES`` for the ranks: rank i then uses ``cuda:i``; empty for the CPU."""

    def device(self, local_rank: int) -> str:
        """Torch's name of a rank's device."""
        return f"cuda:{local_rank}" if self.kind == "cuda" else "cpu"


def resolve_devices(
    gpu_ids: GpuIds, cpu_workers: int, visible: str | None, gpu_count: int
) -> Devices:
    """The devices that ``--gpu-ids`` and ``--cpu-workers`` ask for.

    Args:
        gpu_ids: indices into the GPUs that `visible` leaves, or into all; None for the CPU,
            ``auto`` for the first GPU if there is one, ``all`` for all.
        cpu_workers: ranks on the CPU.
        visible: ``CUDA_VISIBLE_DEVICES`` of the host, None if it is not set. Its entries can be
            indices, UUIDs or MIG names; they are handed on as they are.
        gpu_count: how many GPUs torch sees there, under `visible`.

    Raises:
        ConfigError: there is no such GPU; says which there are.
    """
    entries = _entries(visible, gpu_count)
    if gpu_ids is None or (gpu_ids == "auto" and not entries):
        return Devices("cpu", cpu_workers, "")
    if cpu_workers != 1:
        raise ConfigError(
            f"--cpu-workers {cpu_workers} is for training on the CPU, and "
            f"{_there_is(entries, visible)}; add --gpu-ids None to train on the CPU, or leave "
            "--cpu-workers out to train on GPUs"
        )
    if gpu_ids == "auto":
        gpu_ids = (0,)
    elif gpu_ids == "all":
        gpu_ids = tuple(range(len(entries)))
        if not entries:
            raise ConfigError(f"--gpu-ids all: {_there_is(entries, visible)}{_CPU}")
    if not gpu_ids:
        raise ConfigError("--gpu-ids needs one or more numbers, all, or None for the CPU")
    for gpu, times in Counter(gpu_ids).items():
        if not 0 <= gpu < len(entries):
            hint = "" if entries else _CPU
            raise ConfigError(f"--gpu-ids {gpu}: {_there_is(entries, visible)}{hint}")
        if times > 1:
            raise ConfigError(
                f"--gpu-ids names GPU {gpu} {times} times; each rank needs its own, and "
                f"{_there_is(entries, visible)}"
            )
    return Devices("cuda", len(gpu_ids), ",".join(entries[gpu] for gpu in gpu_ids))


def resolve_evaluator(
    eval_device: str | None, visible: str | None, gpu_count: int
) -> Devices | None:
    """The device that ``--eval-device`` asks for; None if it asks for none.

    Args:
        eval_device: ``cpu``, or ``cuda:N`` with an index as in `resolve_devices`.
        visible: ``CUDA_VISIBLE_DEVICES`` of the host, None if it is not set.
        gpu_count: how many GPUs torch sees there, under `visible`.

    Raises:
        ConfigError: there is no such GPU; says which there are.
    """
    if eval_device is None:
        return None
    if eval_device == "cpu":
        return Devices("cpu", 1, "")
    entries = _entries(visible, gpu_count)
    gpu = int(eval_device.removeprefix("cuda:"))
    if gpu >= len(entries):
        raise ConfigError(
            f"--eval-device {eval_device}: {_there_is(entries, visible)}; "
            "--eval-device cpu evaluates on the CPU"
        )
    return Devices("cuda", 1, entries[gpu])


def _entries(visible: str | None, gpu_count: int) -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` calls each GPU; CUDA stops at the first it cannot find."""
    if visible is None:
        return [str(gpu) for gpu in range(gpu_count)]
    return [entry.strip() for entry in visible.split(",") if entry.strip()][:gpu_count]


def _there_is(entries: list[str], visible: str | None) -> str:
    variable = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
    if not entries:
        return f"no GPU is visible{variable}"
    if len(entries) == 1:
        return f"the only visible GPU is 0{variable}"
    return f"the visible GPUs are 0 to {len(entries) - 1}{variable}"
