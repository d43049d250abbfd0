"""``uv run train <task> [flags]``: train a policy with PPO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simtrain.cli.exits import DONE
from simtrain.cli.start import start
from simtrain.errors import ConfigError, flag

if TYPE_CHECKING:
    from mujoco import MjModel

    from simtrain.config.tasks import Registry, Task
    from simtrain.config.train import TrainConfig
    from simtrain.launch.plan import Job
    from simtrain.training.resumption import SavedRun

_HELP = """\
usage: train <task> [flags]

Train a policy with PPO on massively parallel MuJoCo simulation.

{tasks}

`train <task> --help` lists the flags, with the task's own values as defaults."""


def train(arguments: Sequence[str]) -> int:
    """Parse the command line, check it, and train; the exit code."""
    # Not above, so that from the first tenth of a second on Ctrl-C ends without a traceback.
    from simtrain.config.tasks import discover

    registry = discover()
    if not arguments:
        raise ConfigError(f"name a task: `uv run train <task>`.\n{_tasks(registry)}")
    name, *flags = arguments
    if name in ("-h", "--help"):
        print(_HELP.format(tasks=_tasks(registry)))
        return DONE
    if name.startswith("-"):
        raise ConfigError(f"the task comes first: `uv run train <task> {name} ...`")
    job = prepare_job(registry.find(name), flags)

    from simtrain.training.job import run_job

    return run_job(*job)[1]


def prepare_job(
    task: Task, flags: Sequence[str]
) -> tuple[TrainConfig, Job, MjModel, SavedRun | None]:
    """What `run_job` takes for the flags of a command line; ConfigError if they cannot be."""
    from simtrain import api
    from simtrain.cli.parse import parse_flags
    from simtrain.config.train import TrainConfig

    name = task.name
    default = TrainConfig.of_task(name, task.configuration())
    config = parse_flags(f"train {name}", default, flags, _description(task, default))
    saved = None
    if config.resume is not None:
        from simtrain.training.resumption import find_run

        saved = find_run(config.resume, config.log_root, name)
        run_config = saved.configuration(default)
        config = parse_flags(f"train {name}", run_config, flags)
        for given in ("init_from", "teacher"):
            if getattr(config, given) != getattr(run_config, given):
                raise ConfigError(f"{flag(given)} is of a new run: leave it out with --resume")

    def on_gpu() -> TrainConfig:
        default = TrainConfig.of_task(name, task.configuration(), on_gpu=True)
        return parse_flags(f"train {name}", default, flags)

    config, job, model = api.prepare_job(config, saved, on_gpu)
    return config, job, model, saved


def _description(task: Task, default: TrainConfig) -> str:
    """What the help of a task begins with."""
    numbers = f"{default.num_envs:,} environments"
    if (on_gpu := default.env.num_envs_on_gpu) not in (None, default.num_envs):
        numbers += f" where physics runs on the CPU, and {on_gpu:,} on each GPU"
    return f"Train a policy with PPO. {task.description} Default: {numbers} (--num-envs)."


def _tasks(registry: Registry) -> str:
    width = max((len(name) for name in registry.tasks), default=0)
    lines = [f"  {t.name:<{width}}  {t.description}" for t in registry.tasks.values()]
    for path, trace in registry.broken.items():
        lines.append(f"  (not importable: {path}: {trace.strip().splitlines()[-1]})")
    return "tasks:\n" + "\n".join(lines or ["  none found"])


if __name__ == "__main__":
    start("train")
