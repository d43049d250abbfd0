"""What runs in each of the processes that torchrunx starts: one rank of a job."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from signal import Signals
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import torch
import torch.distributed as dist

from simtrain.errors import ConfigError, DivergenceError, RankError, SimulationError
from simtrain.launch.first_collective import ADVICE, meet
from simtrain.launch.processes import die_with_parent, session_of
from simtrain.launch.rank import Rank, share_of_cores
from simtrain.launch.reports import (
    Failed,
    Message,
    Returned,
    Started,
    ToldToStop,
    connect,
    send,
)
from simtrain.launch.stop import StopSignals, ignore_stop_signals

if TYPE_CHECKING:
    from simtrain.launch.plan import Job

ResultT = TypeVar("ResultT", covariant=True)

_GRACE_SECONDS = 10.0
"""How long a rank may go on when torchrunx ends the job, and once the command should have."""
_MOURNING_SECONDS = 5.0
"""How long a rank waits when another is gone, so that torchrunx finds that one's end first."""


class RankFunction(Protocol[ResultT]):
    """What a rank runs, importable by its name."""

    def __call__(
        self, rank: Rank, show: Callable[[object], None], stop: Callable[[], bool], *args: Any
    ) -> ResultT:
        """Run as `rank`, `show` something from rank 0, and end soon once `stop` says so."""


class RunRank:
    """`run_rank` on its way to the ranks: whoever unpickles it ignores `STOP_SIGNALS`.

    Those are first of all torchrunx's agents, on every host. SLURM sends such signals to all
    processes of a job, and an agent that acted on them would end its ranks unsaved.
    """

    __name__ = "run_rank"

    def __call__(self, job: Job, function: RankFunction[object], *args: Any) -> None:
        """See `run_rank`."""
        run_rank(job, function, *args)

    def __reduce__(self) -> tuple[Callable[[], RunRank], tuple[()]]:
        return _arrive, ()


def _arrive() -> RunRank:
    ignore_stop_signals()
    return RunRank()


def run_rank(job: Job, function: RankFunction[object], *args: Any) -> None:
    """Become a rank of `job`, run `function` and report what it returns; torchrunx calls it.

    An error is reported and ends the process, for torchrunx would keep a process whose function
    raised until all others have returned, and they wait for it in a collective.
    """
    die_with_parent()
    connect()
    number, host = int(os.environ["RANK"]), int(os.environ["GROUP_RANK"])
    device = job.rank_names()[number]
    neighbours: list[int] = []

    def noted(signal_number: Signals) -> None:
        if signal_number == signal.SIGTERM and any(session_of(pid) is None for pid in neighbours):
            # Sent by torchrunx, which ends the job of a rank that is gone.
            time.sleep(_GRACE_SECONDS)
            os._exit(1)
        send(ToldToStop(number, device, signal_number))

    stop = StopSignals(
        job.grace_seconds + _GRACE_SECONDS, on_signal=noted, on_expiry=lambda first: os._exit(1)
    )
    # Never left: torchrunx keeps the process until all have returned, and it may be stuck in that.
    stop.__enter__()
    # An exiting interpreter would give signals back their default, which is to kill.
    atexit.register(ignore_stop_signals)
    send(Started(number, device, job.hosts[host], os.getpid()))

    def hang(text: str) -> None:
        send(Failed(number, device, "job", text))
        _exit(1)

    try:
        rank = _this_rank(job)
        _meet(rank, job.collective_timeout, hang)
        everyone = rank.all_gather_objects((host, os.getpid()))
        neighbours += [pid for its_host, pid in everyone if its_host == host]
        result = function(rank, lambda content: send(Message(content)), stop, *args)
        dist.destroy_process_group()
    except BaseException as error:  # noqa: BLE001 - sys.exit in a task too; reported, and the end
        failed = _failure(number, device, error)
        send(failed)
        if failed.cause == "peer":
            _wait(lambda: stop.received == signal.SIGTERM, _MOURNING_SECONDS)
        _exit(1)
    send(Returned(number, device, result if number == 0 else None))


def _this_rank(job: Job) -> Rank:
    """The rank that torchrunx's variables say, its device and threads made ready."""
    local_rank = int(os.environ["LOCAL_RANK"])
    devices = job.devices[int(os.environ["GROUP_RANK"])]
    # Each host has its own GPUs; CUDA reads the variable when it is first used, which is later.
    os.environ["CUDA_VISIBLE_DEVICES"] = devices.visible
    device = torch.device(devices.device(local_rank))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    threads = job.threads or share_of_cores(devices.ranks)
    torch.set_num_threads(threads)
    rank = int(os.environ["RANK"])
    return Rank(
        rank=rank,
        local_rank=local_rank,
        world_size=job.world_size,
        device=device,
        seed=job.seed + rank,
        threads=threads,
    )


def _meet(rank: Rank, timeout: float, on_hang: Callable[[str], None]) -> None:
    try:
        meet(rank, timeout, on_hang)
    except Exception as error:
        raise RankError(f"the ranks could not connect: {error}\n{ADVICE}") from error


def _failure(rank: int, device: str, error: BaseException) -> Failed:
    if isinstance(error, ConfigError):
        return Failed(rank, device, "mistake", str(error))
    if isinstance(error, DivergenceError):
        return Failed(rank, device, "divergence", str(error))
    if isinstance(error, RankError):
        return Failed(rank, device, "job", str(error))
    if isinstance(error, SimulationError):
        return Failed(rank, device, "simulation", str(error))
    frames = traceback.extract_tb(error.__traceback__)
    in_collective = os.path.join("torch", "distributed") in frames[-1].filename  # noqa: PTH118
    own = [frame for frame in frames if frame.filename != __file__]
    text = "".join(
        [
            "Traceback (most recent call last):\n",
            *traceback.format_list(own),
            *traceback.format_exception_only(error),
        ]
    )
    if error.__cause__ is not None:
        text = "".join(traceback.format_exception(error))
    return Failed(rank, device, "peer" if in_collective else "program", text.rstrip())


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until `condition` holds, `seconds` at most."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _exit(code: int) -> NoReturn:
    """End now, once the last printed lines are on their way, whatever else still runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.2)
    os._exit(code)
