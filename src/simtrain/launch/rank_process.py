"""One rank of a job, in a process that torchrunx starts."""

import atexit
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from signal import Signals
from typing import Any

import torch
import torch.distributed as dist

from simtrain.errors import ConfigError, DivergenceError, RankError, SimulationError
from simtrain.launch.events import (
    ADVICE,
    Cause,
    RankFailed,
    RankFinished,
    RankStarted,
    StopReceived,
    send,
    send_heartbeats,
)
from simtrain.launch.plan import Job
from simtrain.launch.private import join_process_group
from simtrain.launch.processes import (
    StopSignals,
    die_with_parent,
    has_ended,
    ignore_stop_signals,
)
from simtrain.launch.rank import Rank, backend

# How many seconds it may take:
_GRACE_SECONDS = 10.0  # a rank to end when torchrunx ends the job, or the command should have
_PEER_FAILURE_SECONDS = 5.0  # torchrunx to find the end of another rank, before that of this one
_COLLECTIVE_SECONDS = 1800.0  # a later collective, or more: rank 0 may evaluate, or record a video

_CAUSES: tuple[tuple[type[Exception], Cause], ...] = (
    (ConfigError, "config"),
    (DivergenceError, "divergence"),
    (RankError, "job"),
    (SimulationError, "simulation"),
)


@dataclass
class RankProgram:
    """The program of every rank of a job, for torchrunx."""

    __name__ = "run_rank"
    job: Job
    function: Callable[..., object]
    args: tuple[Any, ...]

    def __call__(self) -> None:
        """Make this process a rank, run the function and send its result, or the error."""
        # An error ends the process: torchrunx would keep it until all others have returned, and
        # they wait for it in a collective.
        die_with_parent()
        job, number = self.job, int(os.environ["RANK"])
        device, host = job.rank_names()[number], job.placements[number][0]
        peers: list[int] = []

        def on_signal(received: Signals) -> None:
            if received == signal.SIGTERM and any(map(has_ended, peers)):
                # Sent by torchrunx, which ends the job of a rank that is gone.
                time.sleep(_GRACE_SECONDS)
                os._exit(1)
            send(StopReceived(number, device, received))

        seconds = job.grace_seconds + _GRACE_SECONDS
        stop = StopSignals(seconds, on_signal=on_signal, on_expiry=lambda first: os._exit(1))
        # Never left: torchrunx keeps the process until all have returned, which may never be.
        stop.__enter__()
        # An exiting interpreter would give signals back their default, which is to kill.
        atexit.register(ignore_stop_signals)
        send(RankStarted(number, device, host, os.getpid()))
        try:
            rank = job.make_rank(number)
            send_heartbeats(rank, device, job.collective_timeout)
            # Members may share a GPU, and NCCL does not connect two ranks on one.
            first = rank if job.members == 1 else replace(rank, device=torch.device("cpu"))
            with rank.progress:
                rendezvous(first, job.collective_timeout)
            rank.progress.iteration = None
            hosts_and_pids = rank.all_gather_object((host, os.getpid()))
            peers += [pid for its_host, pid in hosts_and_pids if its_host == host]
            result = self.function(rank, send, stop, *self.args)
            send(RankFinished(number, device, result if number == 0 else None))
            # NCCL waits until no CUDA graph is left that captured one of its collectives, and then
            # for ever. Who made graphs has closed them; this frees what only the collector finds.
            gc.collect()
            if rank.device.type == "cuda":
                torch.cuda.synchronize(rank.device)
            dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001 - sys.exit in a task too; sent, and the end
            cause, text = _cause_and_text(error)
            send(RankFailed(number, device, cause, text))
            deadline = time.monotonic() + _PEER_FAILURE_SECONDS
            while cause == "peer" and stop.received != signal.SIGTERM:
                # Before torchrunx has noticed the end of a killed rank, it could take this for it.
                if time.monotonic() > deadline and not any(map(has_ended, peers)):
                    break
                time.sleep(0.05)
            # The last printed lines are on their way; whatever else still runs ends now.
            sys.stdout.flush()
            sys.stderr.flush()
            time.sleep(0.2)
            os._exit(1)


def rendezvous(rank: Rank, timeout: float) -> None:
    """Connect the ranks, and reduce one number over all of them on their devices and on their CPUs.

    Collectives that never finish are the most frequent trouble with several GPUs, and say nothing.
    Here they are a matter of the machine, so this comes before anything is built.
    """
    cuda = rank.device.type == "cuda"
    try:
        join_process_group(
            "ranks",
            rank.rank,
            rank.world_size,
            (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])),
            wait_seconds=2.0 * timeout,  # the command ends the job before, by the heartbeats
            timeout=max(_COLLECTIVE_SECONDS, 3.0 * timeout),
            backend=backend(cuda=cuda),
            device=rank.device if cuda else None,
        )
        total = float(rank.all_reduce(torch.ones((), device=rank.device)))
        if total != rank.world_size:
            raise RuntimeError(f"the first collective gave {total:g} instead of {rank.world_size}")
    except Exception as error:
        raise RankError(f"the ranks could not connect: {error}\n{ADVICE}") from error


def _cause_and_text(error: BaseException) -> tuple[Cause, str]:
    for kind, cause in _CAUSES:
        if isinstance(error, kind):
            return cause, str(error)
    trace = traceback.TracebackException.from_exception(error)
    # A broken collective raises a RuntimeError; others come from it too, such as of pickling.
    in_collective = os.path.join("torch", "distributed") in trace.stack[-1].filename  # noqa: PTH118
    is_peers = isinstance(error, RuntimeError) and in_collective
    trace.stack = traceback.StackSummary.from_list(f for f in trace.stack if f.filename != __file__)
    text = "".join(trace.format(chain=error.__cause__ is not None)).rstrip()
    return "peer" if is_peers else "exception", text
