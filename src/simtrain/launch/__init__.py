"""From a command line to running ranks: devices, launcher, rank. Knows no task and no PPO.

Here are the flags of `train` that launching takes, without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from simtrain.limits import Count, Limits, Timeout

GpuIds = Annotated[tuple[int, ...] | Literal["auto", "all"] | None, Limits(0, 10**6)]


@dataclass(kw_only=True)
class LaunchFlags:
    """The devices, hosts and processes of a job."""

    gpu_ids: GpuIds = "auto"
    """GPUs to train on, with one rank each: their numbers in nvidia-smi, or indices into
    CUDA_VISIBLE_DEVICES if it is set; None is the CPU, auto the first GPU if there is one."""
    cpu_workers: Count = 1
    """Ranks when training on the CPU."""
    cpu_threads: Count | None = None
    """Threads of each rank, for physics and for torch; None divides the cores among the ranks."""
    hosts: tuple[str, ...] = ()
    """Machines to train on, by SSH, or slurm for those of the SLURM allocation; by default, this
    machine. --gpu-ids and --cpu-workers apply to each machine."""
    ssh_config: str | None = None
    """File with SSH settings of the hosts; None for ~/.ssh/config."""
    collective_timeout: Timeout = 600.0
    """Seconds after which the job ends if a rank does not answer, or if the others wait for it in
    an iteration; a warning comes after a tenth of this time. It also limits the first collective.
    """
    grace_seconds: Timeout = 30.0
    """Seconds to finish the iteration and save after a request to stop."""
    torchrunx_log_dir: str | None = None
    """Folder for the output of several ranks; "" for none, None for <run>/torchrunx. The variable
    TORCHRUNX_LOG_DIR overrides this flag."""
    max_restarts: Annotated[int, Limits(0, 10**6)] = 0
    """How often the ranks are restarted from the last saved state after one of them died."""
