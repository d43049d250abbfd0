"""The training of one rank: make environments, algorithm and features, and run the loop."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import torch

from simtrain.algorithms.distillation import Algorithm, Distillation
from simtrain.algorithms.networks import make_actor
from simtrain.algorithms.ppo import PPO
from simtrain.config.train import TrainConfig
from simtrain.env.env import Env
from simtrain.env.randomness import seed_everything
from simtrain.errors import ConfigError
from simtrain.launch.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.run.directory import shown
from simtrain.sim import choose_engine
from simtrain.sim.cuda_graphs import describe, make_graph_backend
from simtrain.training.context import RunContext, TrainingResult
from simtrain.training.features import Feature
from simtrain.training.features.checkpoint import Checkpoint
from simtrain.training.features.evaluation import PeriodicEvaluation
from simtrain.training.features.failures import FailureMonitor
from simtrain.training.features.population import Population
from simtrain.training.features.recorder import Recorder
from simtrain.training.features.timing import Timing, training_timer
from simtrain.training.features.video import TrainingVideo
from simtrain.training.loop import Trainer, train
from simtrain.training.reflection import mirror_maps
from simtrain.training.transfer import init_networks

_OUT_OF_MEMORY = re.compile(
    r"cuda.*out of memory"  # PyTorch, the launch of a graph, Warp and NCCL ('Cuda failure 2 ...')
    r"|Failed to allocate \d+ bytes on device 'cuda"  # Warp's allocator
    r"|CU\w+_ALLOC_FAILED"  # cuBLAS, cuSOLVER
    r"|can't allocate memory",  # PyTorch, on the CPU
    re.IGNORECASE,
)


def run_worker(context: RunContext) -> TrainingResult | None:
    """Train as one rank of a job; the result on rank 0 of the training, None on others.

    Raises:
        ConfigError: there is too little memory for this number of environments, or the saved state
            does not fit.
        DivergenceError: nothing could be learned any more.
    """
    config, rank = context.config, context.rank
    with out_of_memory_as_config_error(config.num_envs):
        seed_everything(rank.seed)
        torch.set_num_threads(rank.threads)
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as cuBLAS asks for
            torch.use_deterministic_algorithms(True)
        with closing(make_trainer(config, rank, training_timer(context), context.console.say)) as t:
            init_networks(context, t.ppo)
            if (rank.of_job or rank).is_main:
                context.console.say(f"run:        {shown(context.shared.run)}")
            return _train(context, t)


def _train(context: RunContext, trainer: Trainer) -> TrainingResult | None:
    """Make the features, in the order in which they act, restore a saved state, and train."""
    timing, recorder = Timing(context, trainer), Recorder(context, trainer)
    evaluation = PeriodicEvaluation(context, trainer)
    features: list[Feature] = [evaluation]
    if context.member is not None:
        make = partial(make_algorithm, trainer.env, context.rank, timer=trainer.timer)
        features.append(Population(context, trainer, recorder, evaluation, make))
    # Times end before the recorder draws the report, and after the last save. A saved state knows
    # what all records have, the videos in them too.
    features += [recorder, timing, FailureMonitor(context, trainer)]
    features.append(TrainingVideo(context, trainer, recorder))
    checkpoint = Checkpoint(context, trainer, recorder, tuple(features))
    features.append(checkpoint)
    checkpoint.restore()
    is_main = context.rank.is_main
    train(
        trainer,
        [feature for feature in features if is_main or not feature.main_rank_only],
        context.iterations(trainer.iteration, trainer.env_steps),
        context.stop,
    )
    everyone = context.rank.of_job or context.rank
    own = checkpoint.error or (recorder.error if is_main else None)
    error = next(filter(None, everyone.all_gather_object(own)), None)
    return TrainingResult(checkpoint.saved, error, timing.shown) if is_main else None


def make_algorithm(
    env: Env, rank: Rank, config: TrainConfig, timer: PhaseTimer = NO_TIMER
) -> Algorithm:
    """The algorithm for `env`: PPO, or the distillation of a teacher."""
    obs, cfg, steps = env.get_observations().to(rank.device), config.ppo, config.num_steps_per_env
    if config.teacher is not None:
        actors = cfg.actor, config.distillation.teacher
        student, teacher = (make_actor(actor, obs, env.num_actions) for actor in actors)
        return Distillation(config.distillation, (student, teacher), obs, steps, rank, timer)
    weights = {name: getattr(cfg.rnd, name) * env.step_dt for name in ("weight", "final_value")}
    cfg = replace(cfg, rnd=replace(cfg.rnd, **weights))
    mirror = mirror_maps(env, rank.device) if cfg.symmetry.is_used else None
    return PPO(cfg, obs, env.num_actions, steps, rank, timer, mirror=mirror)


def make_trainer(
    config: TrainConfig,
    rank: Rank,
    timer: PhaseTimer = NO_TIMER,
    say: Callable[[str], None] = lambda message: None,
) -> Trainer:
    """A rank's environments and algorithm; sets the precision on GPUs.

    `say` shows a line on rank 0.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.tf32
    env = make_env(config, rank, timer, say)
    algorithm = make_algorithm(env, rank, config, timer)
    graphs = make_graph_backend(rank.device) if config.cuda_graphs else None
    return Trainer(env, algorithm, rank, timer, graphs, config)


def make_env(config: TrainConfig, rank: Rank, timer: PhaseTimer, say: Callable[[str], None]) -> Env:
    """The rank's environments; the first rank of a host compiles missing kernels for all ranks."""
    engine = choose_engine(config.engine, rank.device, rank.threads, config.deterministic)

    def build() -> Env:
        return Env(config.env, config.num_envs, engine, timer=timer)

    if engine.name == "mujoco":
        return build()

    from simtrain.sim.warp_compile import compilation_announced

    everyone = rank.of_job or rank
    if rank.local_rank > 0:
        everyone.barrier()
    with compilation_announced(say if everyone.is_main else lambda message: None):
        env = build()
    if rank.local_rank == 0:
        everyone.barrier()
    return env


@contextmanager
def out_of_memory_as_config_error(num_envs: int) -> Iterator[None]:
    """Turn running out of memory into a ConfigError, on a GPU too.

    Only PyTorch's own allocator raises `torch.OutOfMemoryError`; the driver, when it launches a
    graph, and other libraries raise a RuntimeError with a text.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
            text = f"memory is too small for {num_envs} environments: use a smaller --num-envs"
            raise ConfigError(f"{text} ({describe(error)})") from error
        raise
