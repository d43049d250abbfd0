"""A training job, from its checked configuration (see `prepare_job`) to its exit code."""

import math
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any, NoReturn

import mujoco

from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.config.tree import as_plain, overlay
from simtrain.errors import ConfigError, RankError, flag
from simtrain.launch.launcher import choose_log_dir, exit_with_ranks, launch_ranks
from simtrain.launch.plan import Job
from simtrain.launch.processes import StopSignals, exit_code
from simtrain.launch.rank import Rank
from simtrain.run.checkpoint import BEST, model_paths
from simtrain.run.console import StatusConsole, TrainingConsole
from simtrain.run.directory import MEMBERS, PICTURE, VIDEOS, make_run_directory, shown
from simtrain.run.metrics import METRICS, check_idle
from simtrain.training.context import Resumption, RunContext, SharedContext, TrainingResult
from simtrain.training.prepare import check_on_devices, simulates_on_gpu
from simtrain.training.resumption import SavedRun, can_resume, open_run, plan_resumption

_LONGEST_PAUSE = 60.0  # seconds
_MESSAGE_SECONDS = 3.0  # for which the last message may wait for a terminal that takes nothing
_FEWEST_SAMPLES, _FEWEST_ITERATIONS = 32, 30  # of a mini-batch, of --total-env-steps


def run_job(
    config: TrainConfig,
    job: Job,
    model: mujoco.MjModel,
    saved: SavedRun | None = None,
    *,
    ends_process: bool = True,
) -> tuple[Path, int]:
    """Run a training job whose configuration was checked; the run directory and the exit code.

    `model` is the task's model; `saved` is the run to resume, or None for a new one. A second
    Ctrl-C, and the deadline of the first, end this process; without `ends_process`, a second Ctrl-C
    raises KeyboardInterrupt.

    Raises:
        ConfigError: a device is not suitable, or the configuration differs from the saved run's.
        DivergenceError: nothing could be learned any more.
        SimulationError: MuJoCo failed.
        RankError: a rank of several failed.
    """
    # CUDA_VISIBLE_DEVICES is read once: set it before Warp or torch first uses a GPU.
    rank = job.make_rank() if job.in_process else None
    check_on_devices(config, job, model)
    resumption, lines = None, _introduction(config, job)
    iteration = env_steps = 0
    if saved is not None:
        check_idle(saved.path)
        resumption, more = plan_resumption(saved, config, job, model)
        lines += more
        iteration, env_steps = saved.iteration, saved.content["env_steps"]
    ranks = job.world_size // job.members  # of each training
    iterations = config.iterations(ranks, iteration=iteration, env_steps=env_steps)
    if saved is not None and iteration >= iterations:
        done = f"{saved.path} is done: it was trained for {iteration} iterations"
        end = "--max-iterations" if config.total_env_steps is None else "--total-env-steps"
        print(f"{done}; to continue, pass a larger {end}")
        return saved.path, 0
    name = config.log_root, config.task, config.run_name
    run = (make_run_directory(*name) if saved is None else saved.path).absolute()
    console = TrainingConsole(config.task, iterations)
    attempts = Attempts(config, job, rank, model, run, console, ends_process=ends_process)
    # Python lets no other thread handle signals: there they remain what they are.
    is_main_thread = threading.current_thread() is threading.main_thread()
    with attempts.stop if is_main_thread else nullcontext(), console:
        for line in lines:
            console.say(line)
        try:
            result = attempts.train(resumption)
        except BaseException as error:
            if saved is None and str(run) not in str(error):  # which may name the ranks' logs there
                _remove_untrained(run)
            if isinstance(error, ConfigError):
                raise
            if attempts.is_ending.is_set():
                threading.Event().wait()  # another thread ends the process, and has said why
            if command := attempts.resume_command():
                console.say(f"to resume: {command}")
            raise
    if result.phases:
        from simtrain.training.features.timing import phase_table

        console.show_table(phase_table(result.phases))
    attempts.show(result)
    return run, 1 if result.error is not None else exit_code(attempts.stop.received)


def _remove_untrained(run: Path) -> None:
    """Remove a run directory without a recorded iteration, and the task's folder if it is empty."""
    metrics = [run / METRICS, *run.glob(f"{MEMBERS}/*/{METRICS}")]
    if not any(file.exists() and file.stat().st_size for file in metrics):
        shutil.rmtree(run, ignore_errors=True)
        with suppress(OSError):
            run.parent.rmdir()


@dataclass
class Attempts:
    """Attempts at a training, each from the last saved state, and their stop."""

    config: TrainConfig
    job: Job
    rank: Rank | None
    """This process as the only rank; None if ranks run in separate processes."""
    model: mujoco.MjModel
    run: Path
    console: TrainingConsole
    ends_process: bool = True
    """Whether a second Ctrl-C, and the deadline of ``--grace-seconds``, end this process. Otherwise
    there is no deadline, and a second Ctrl-C raises KeyboardInterrupt."""

    def __post_init__(self) -> None:
        seconds, ends = self.config.grace_seconds, self.ends_process
        self.within = f"within {seconds:g} s (--grace-seconds)"
        self.is_ending = threading.Event()
        """Set once another thread ends this process."""
        self.stop = StopSignals(
            seconds if ends else math.inf,
            on_signal=self._announce,
            on_expiry=self._expire,
            on_second_interrupt=self._stop_at_once if ends else lambda: None,
            raises=not ends,
        )

    def train(self, resumption: Resumption | None) -> TrainingResult:
        """Train, and repeat it up to ``--max-restarts`` times if a rank dies.

        The pause before a restart is one second, and doubles with each further restart.

        Raises:
            RankError: a rank died, and there are no restarts left.
        """
        restarts, most = 0, self.config.max_restarts
        while True:
            try:
                return self.attempt(resumption)
            except RankError as error:
                if restarts == most or self.stop():
                    raise
                restarts += 1
                pause = min(2.0 ** (restarts - 1), _LONGEST_PAUSE)
                self.console.close()
                self.console.say(str(error))
                self.console.say(f"restart {restarts} of {most} in {pause:g} s (--max-restarts)")
                deadline = time.monotonic() + pause
                while time.monotonic() < deadline:
                    if self.stop():
                        raise
                    time.sleep(0.1)
            if can_resume(self.run):
                saved = open_run(self.run)
                resumption, lines = plan_resumption(saved, self.config, self.job, self.model)
                for line in lines:
                    self.console.say(line)

    def attempt(self, resumption: Resumption | None) -> TrainingResult:
        """Train once, in this process or as several ranks."""
        config, job, console = self.config, self.job, self.console
        members = tuple(map(tuple, job.member_ranks())) if job.members > 1 else ()
        names = tuple(job.rank_names())
        shared = SharedContext(self.run, names, resumption, job.evaluator, members)
        if self.rank is not None:
            from simtrain.training.worker import run_worker

            show = StatusConsole(console.say, console.show)
            result = run_worker(RunContext(config, self.rank, show, self.stop, shared))
        else:
            result = launch_ranks(
                job,
                train_rank,
                config.task,
                as_plain(config),
                shared,
                receive=console.receive,
                stop=self.stop,
                log_dir=choose_log_dir(config.torchrunx_log_dir, self.run),
                shared=self.run,
            )
        assert result is not None
        return result

    def resume_command(self) -> str | None:
        """The command that resumes the run; None if nothing is saved yet."""
        if not can_resume(self.run):
            return None
        return f"uv run train {self.config.task} --resume {shlex.quote(str(shown(self.run)))}"

    def show(self, result: TrainingResult) -> None:
        """Print the files of a run that has ended, and the commands that use them."""
        received, say, path = self.stop.received, self.console.say, shown(self.run)
        if result.error is not None:
            say(f"warning: the last checkpoint or metrics could not be written: {result.error}")
        elif received is not None:
            say(f"stopped by {received.name}; the policy so far is saved")
        say(f"run:        {path}")
        say(f"checkpoint: {shown(result.checkpoint) if result.checkpoint else None}")
        for name, file in (("best", BEST), ("picture", PICTURE)):
            if (self.run / file).exists():
                say(f"{name + ':':11} {path / file}")
        for videos in sorted(self.run.glob(f"**/{VIDEOS}")):
            if any(videos.glob("*.mp4")):
                say(f"videos:     {shown(videos)}")
        if received is not None and (command := self.resume_command()):
            say(f"to resume:  {command}")
        if self.config.logger == "tensorboard":
            say(f"curves:     uv run tensorboard --logdir {shlex.quote(str(path.parent))}")

    def _announce(self, number: Signals) -> None:
        within = f", {self.within}" if self.ends_process else ""
        self.console.say(
            f"{number.name}: stopping after this iteration{within}; "
            "Ctrl-C again stops at once and does not save"
        )

    def _expire(self, number: Signals) -> NoReturn:
        text = f"error: told to stop by {number.name}, the run could not finish its iteration and "
        self._end(f"{text}save {self.within}", exit_code(number) or 1)

    def _stop_at_once(self) -> NoReturn:
        text = "stopped at once: the policy of this iteration is not saved"
        self._end(text, exit_code(Signals.SIGINT))

    def _end(self, message: str, code: int) -> NoReturn:
        """End this process and its ranks; the main thread may hang."""
        self.is_ending.set()
        forced = threading.Timer(_MESSAGE_SECONDS, exit_with_ranks, (code,))
        forced.daemon = True
        forced.start()
        self.console.close()
        last = "there is no checkpoint"
        if saved := model_paths(self.run) or model_paths(self.run / MEMBERS / "0"):
            last = f"the last checkpoint is {shown(saved[-1])}"
            if command := self.resume_command():
                last += f"\nto resume: {command}"
        print(f"{message}; {last}", file=sys.stderr, flush=True)
        exit_with_ranks(code)


def train_rank(
    rank: Rank,
    show: Callable[[object], None],
    stop: Callable[[], bool],
    task: str,
    values: dict[str, Any],
    shared: SharedContext,
) -> TrainingResult | None:
    """Train as one rank of several, in its own process; `values` are those of the configuration."""
    from simtrain.training.worker import run_worker

    config = overlay(default_config(task, quiet=True), values)
    context = RunContext(config, rank, StatusConsole(show, show), stop, shared)
    return run_worker(context.of_member() if shared.members else context)


def _introduction(config: TrainConfig, job: Job) -> list[str]:
    """Lines about devices and ranks, before the first iteration."""
    lines = []
    if config.gpu_ids == "auto":
        device = "GPU 0" if job.devices[0].kind == "cuda" else "the CPU: no GPU is visible"
        lines.append(f"training on {device} (--gpu-ids)")
    if config.engine == "mujoco" and job.devices[0].kind == "cuda":
        lines.append("physics on CPU threads (--engine mujoco), learning on the GPU")
    default = config.env.num_envs_on_gpu
    if simulates_on_gpu(config, job) and config.num_envs == default != config.env.num_envs:
        text = "environments on each GPU, the task's default there (--num-envs)"
        lines.append(f"{config.num_envs:,} {text}")
    lines += _about_samples(config, job.world_size // job.members)
    if not any(term.time_out for term in config.env.terminations.values()):
        lines.append(
            "warning: no termination of the task has time_out=True: nothing ends an episode after "
            f"{config.env.episode_length_s:g} s (mdp.time_out)"
        )
    if not job.in_process:
        steps = config.num_envs * config.num_steps_per_env * job.world_size
        lines.append(
            f"{job}: {config.num_envs:,} environments each (--num-envs is per rank), "
            f"{steps:,} env steps an iteration"
        )
    return lines


def _about_samples(config: TrainConfig, ranks: int) -> Iterator[str]:
    """Lines about the samples of an iteration, if the task's settings are adapted to them.

    `ranks` are those of each training.
    """
    samples, own = config.samples(ranks), config.env.num_envs * config.env.num_steps_per_env
    settings = {
        "max_iterations": (config.max_iterations, config.env.max_iterations),
        "ppo.num_mini_batches": (config.ppo.num_mini_batches, config.env.ppo.num_mini_batches),
        "ppo.desired_kl": (config.ppo.desired_kl, config.env.ppo.desired_kl),
    }
    changed = [f"{flag(name)} {now:g}" for name, (now, task) in settings.items() if now != task]
    if samples > own and changed:
        text = f"{samples:,} env steps an iteration, {samples / own:.3g} times the task's default"
        yield f"{text}: with {', '.join(changed)}"
    if (size := samples // config.ppo.num_mini_batches) < _FEWEST_SAMPLES:
        yield f"warning: a mini-batch has {size} samples (--ppo.num-mini-batches)"
    iterations = config.iterations(ranks)
    if config.total_env_steps is not None and iterations < min(
        _FEWEST_ITERATIONS, config.max_iterations
    ):
        text = f"warning: --total-env-steps is {iterations} iterations of {samples:,} env steps"
        yield f"{text}; the task needs more of them, or fewer environments (--num-envs)"
