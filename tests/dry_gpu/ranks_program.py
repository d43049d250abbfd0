"""Two ranks that train by a tape in the place of CUDA graphs, as torchrunx would run them.

A program of its own (`test_two_ranks_with_graphs.py` runs it): it imports torch and compiles once,
and forks a pair of ranks for each scenario. Prints what each pair reported.
"""

import json
import logging
import multiprocessing
import os
import pickle
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import warp
from tape import Tape
from tiny_training import Console

from simtrain.algorithms.cfg import ActorCfg, CriticCfg, PpoCfg
from simtrain.benchmark.figures import Case
from simtrain.benchmark.ranks import Settings, measure_rank
from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.env.env import Env
from simtrain.launch import events
from simtrain.launch.plan import Devices, Job
from simtrain.launch.private import private_folder
from simtrain.launch.rank import Rank
from simtrain.launch.rank_process import RankProgram
from simtrain.sim import EngineCfg
from simtrain.training import worker
from simtrain.training.context import RunContext, SharedContext
from simtrain.training.loop import Trainer

TASK = "cartpole-balance"
DEVICES = Devices("cpu", 2, "")


class Refuses(Tape):
    """A rank that cannot have graphs of mini-batches, as it finds out at its second."""

    def _record(self, function: Callable[[], object]) -> Any:
        if "learn_mini_batch" in repr(function) and len(self.made) == 1:
            return super()._record(lambda: torch.ones(1).item())
        return super()._record(function)


class Breaks(Tape):
    """A rank that fails while it captures."""

    def capture(self, *functions: Callable[[], object]) -> Any:
        raise ZeroDivisionError("no graph today")


class ReportingConsole(Console):
    """Reports what a rank says."""

    def say(self, message: str) -> None:
        events.send({"said": message})


def train(rank: Rank, show: Callable[[object], None], stop: Any, run: Path) -> None:
    config = TrainConfig(
        task=TASK,
        engine="warp",
        num_envs=4,
        num_steps_per_env=4,
        max_iterations=4,
        logger="none",
        env=default_config(TASK).env,
        ppo=PpoCfg(
            actor=ActorCfg((8,)), critic=CriticCfg((8,)), num_learning_epochs=2, num_mini_batches=2
        ),
    )
    config.env.episode_length_s = 0.5
    shared = SharedContext(run, ("cpu", "cpu"))
    worker.run_worker(RunContext(config, rank, ReportingConsole(), stop, shared))


def measure(rank: Rank, show: Callable[[object], None], stop: Any, run: Path) -> None:
    settings = Settings(DEVICES, repetitions=1, cuda_graphs=True)
    measure_rank(rank, show, stop, [Case(TASK, "warp", "cpu", 2, 4, 1)], settings)


def use_tape(kind: type[Tape]) -> None:
    """Have trainers of this process make their graphs by a tape, and tell of it in the end."""
    tapes: list[Tape] = []
    make_trainer, all_reduce = worker.make_trainer, Rank.all_reduce
    destroy = dist.destroy_process_group

    def make_with_tape(*arguments: Any) -> Trainer:
        made = make_trainer(*arguments)
        tapes.append(kind(made.env))
        return Trainer(made.env, made.ppo, made.rank, made.timer, tapes[-1])

    def reduce_or_note(rank: Rank, tensor: torch.Tensor, *op: Any) -> torch.Tensor:
        """A capture does not run what it captures: a rank may do so alone."""
        if tapes and tapes[-1].recording:
            tapes[-1].note(lambda: all_reduce(rank, tensor, *op))
            return tensor
        return all_reduce(rank, tensor, *op)

    def destroy_and_tell() -> None:
        numbers = ("captures", "replays", "alive")
        events.send({name: sum(getattr(tape, name) for tape in tapes) for name in numbers})
        destroy()

    worker.make_trainer = make_with_tape
    Rank.all_reduce = reduce_or_note
    dist.destroy_process_group = destroy_and_tell


class Report(logging.Handler):
    """Writes the events of a rank to a file, one in a line."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        event = pickle.loads(getattr(record, "event", pickle.dumps(None)))
        if isinstance(event, events.RankFailed):
            event = {"failed": [event.cause, event.text.splitlines()[-1]]}
        if isinstance(event, dict):
            with self._path.open("a") as file:
                file.write(json.dumps(event) + "\n")


def run_rank(number: int, port: int, function: Any, run: Path, tape: type[Tape]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(number)}
    logging.getLogger("simtrain").setLevel(logging.INFO)
    logging.getLogger("simtrain").addHandler(Report(run / f"rank{number}"))
    use_tape(tape)
    job = Job(("localhost",), (DEVICES,), seed=3, threads=1, grace_seconds=5.0)
    RankProgram(job, function, (run,))()


def run_pair(folder: Path, name: str, tapes: tuple[Any, Any], function: Any = train) -> Any:
    """What two ranks reported, and their exit codes; the first is killed if the second fails."""
    run = folder / name
    run.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run_rank, args=(i, port, function, run, tapes[i])) for i in (0, 1)]
    with private_folder(folder):
        for process in ranks:
            process.start()
        ranks[1].join(60.0)
        ranks[0].join(0.1 if ranks[1].exitcode else 60.0)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    texts = [(run / f"rank{i}").read_text() for i in (0, 1)]
    reports = [[json.loads(line) for line in text.splitlines()] for text in texts]
    return {"reports": reports, "codes": codes, "metrics": timeless(run)}


def timeless(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        {k: v for k, v in json.loads(line).items() if k != "wall_s" and not k.startswith("Perf/")}
        for line in lines
    ]


def main(folder: Path) -> None:
    warp.config.optimization_level = 0  # as the tests beside this one, which share their kernels
    torch.set_num_threads(1)
    env = Env(default_config(TASK).env, 1, EngineCfg("warp"))
    env.step(torch.zeros(1, env.num_actions))  # compiles
    scenarios: dict[str, tuple[Any, ...]] = {
        "graphs": ((Tape, Tape),),
        "refuses": ((Tape, Refuses),),
        "breaks": ((Tape, Breaks),),
        "benchmark": ((Tape, Tape), measure),
    }
    print(json.dumps({name: run_pair(folder, name, *how) for name, how in scenarios.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
