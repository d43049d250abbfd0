"""The whole configuration of a training run: what the command line parses, config.yaml stores.

Imports neither torch nor MuJoCo, so that a command can print its help at once.
"""

from __future__ import annotations

import copy
import math
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Suppress, UseAppendAction, arg

from simtrain.algorithms.cfg import MODELS, DistillationCfg, Flag, NetworkCfg, PpoCfg, RndCfg
from simtrain.config.tree import FROM_TASK
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.launch import LaunchFlags
from simtrain.limits import Count, Limits, NumEnvs, NumSteps, Repetitions, Seed, check
from simtrain.run.metric_tags import EVALUATION_TAGS

Words = Annotated[
    UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="FLAG LOW HIGH [SCALE]")
]
Iterations = Annotated[int, Limits(0, 10**9)]
_SAVE_INTERVAL = 50  # iterations, without `save_interval`
_FEWEST_ITERATIONS, _MOST_MINI_BATCHES = 5.0, 16.0
"""Factors by which `TrainConfig.for_samples` changes a task's settings at most, see
docs/performance.md."""
_LARGEST_KL = 0.08  # that it raises a task's to
Frequencies = Annotated[tuple[float, float, float, float], Limits(0.0, 1e9)]


@dataclass
class TrainConfig(LaunchFlags):
    """Train a policy with PPO."""

    task: Suppress[str]
    engine: Literal["auto", "mujoco", "warp"] = "auto"
    """Physics engine: mujoco is MuJoCo on CPU threads, warp is MuJoCo Warp; auto takes warp on GPUs
    and mujoco on the CPU."""
    deterministic: bool = False
    """Compute sums on a GPU in a fixed order, slower: the same results in every run, except for
    physics on it, as MuJoCo Warp cannot sort contacts yet."""
    cuda_graphs: Flag = True
    """Replay whole steps of rollouts and mini-batches of updates as CUDA graphs, if the terms of
    the task allow it; False launches each operation separately and times each phase."""
    tf32: Flag = True
    """Multiply matrices on GPUs in TF32, with mantissas of 10 bits instead of 23; False uses
    float32, which is slower. Physics always uses float32."""
    num_envs: NumEnvs = 1024
    """Environments of each rank: a second GPU doubles the env steps of an iteration. A task can
    have another default for GPUs."""
    num_steps_per_env: NumSteps = 24
    """Steps of a rollout."""
    max_iterations: Count = 1000
    """Iterations to train, each a rollout and a PPO update."""
    total_env_steps: Count | None = None
    """Environment steps to train, over all ranks, instead of --max-iterations."""
    seed: Seed = 0
    """Seed of all random numbers; each rank adds its number."""
    log_root: Path = Path("logs")
    """Folder of all runs; this one goes to <log-root>/<task>/<date>_<time>[_<run-name>]."""
    run_name: str = ""
    """Suffix of the name of the run's folder."""
    save_interval: Count | None = None
    """Iterations between checkpoints; None for 50, and on GPUs at least 30 seconds."""
    keep_checkpoints: Count | None = None
    """How many of the newest model_<iteration>.pt to keep; None for all."""
    resume: str | None = None
    """Resume a run in its folder: the path of the folder, or latest for the newest run of this task
    below --log-root. The run keeps its own flags unless they are given again."""
    resume_with_changes: bool = False
    """Allow --resume although the configuration has changed."""
    init_from: str | None = None
    """Start with the networks and normalizers of another run or checkpoint, also of rsl_rl, mjlab
    or another task: tensors that fit are copied, the others are reported. The optimizer is not
    copied. The name of a task means its shipped policy."""
    init_only: Literal["actor", "critic"] | None = None
    """Copy only this network with --init-from; None for both."""
    teacher: str | None = None
    """Distil the policy of this run, checkpoint or task into a student, which is the task's actor.
    The task must also have the teacher's observation groups. None trains with PPO."""
    eval_interval: Count | None = None
    """Iterations between evaluations, which run without exploration, noise and pushes in separate
    environments. None for no evaluation."""
    eval_episodes: Repetitions = 32
    """Episodes of an evaluation."""
    eval_device: str | None = None
    """Evaluate in a separate process during training, on cpu or cuda:N with N as in --gpu-ids; with
    None, rank 0 evaluates and training waits for it."""
    until: str | None = None
    """End training when this condition is true, e.g. "lin_vel_error<0.1 and failure_rate<0.02".
    Evaluations give mean_return, mean_episode_length, failure_rate and the task's metrics; for
    other metrics use their tag, as in "Train/mean_reward>45 or Loss/kl<0.001"."""
    population: Annotated[int, Limits(2, 1024)] | None = None
    """Train this number of members in parallel, each a training with its own seed and
    hyper-parameters, and replace worse members by better ones; None for one training."""
    ranks_per_member: Annotated[int, Limits(1, 1024)] = 1
    """Ranks of each member, which average its gradients."""
    population_interval: Count = 20
    """Iterations between two exchanges: members are evaluated, selected and mutated."""
    population_warm_up: Iterations = 40
    """Iterations before the first exchange in which members are selected."""
    population_grace: Iterations = 40
    """Iterations for which a replaced member is not replaced again."""
    population_fitness: str = "mean_return:max"
    """Metric by which members are selected: mean_return, mean_episode_length, failure_rate or one
    of the task's metrics, and whether larger (max) or smaller (min) values are better."""
    population_selection: Literal["tournament", "truncation"] = "tournament"
    """Which member another one can copy: the best of a few random members (tournament), or one of
    the best for each of the worst (truncation)."""
    population_tournament_size: Count = 2
    """Random members of a tournament."""
    population_share: Annotated[float, Limits(1e-6, 0.5)] = 0.25
    """Fraction of the members that are replaced by truncation, and of the best that they copy."""
    population_mutate: Words = ()
    """A number that evolves, its bounds and its scale: linear, log or complement (the logarithm of
    1 - x), e.g. ppo.entropy-coef 1e-4 0.05 log. By default: desired-kl (or learning-rate, if it is
    fixed), entropy-coef, clip-param, num-learning-epochs, gamma and lam."""
    population_mutations: Frequencies = (0.4, 0.4, 0.2, 0.0)
    """Relative frequencies of no mutation, and of mutations of hyper-parameters, of parameters
    (noise on some of the weights) and of the architecture (a wider or an additional layer)."""
    logger: Literal["tensorboard", "wandb", "none"] = "tensorboard"
    """Output of metrics, besides metrics.jsonl and the console."""
    wandb_project: str = "simtrain"
    """Project of --logger wandb."""
    wandb_mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Mode of --logger wandb; auto is online with an API key, and offline without one."""
    phase_times: Flag = True
    """Measure the phases of every iteration, for Perf/time/* and a table at the end."""
    profile: Flag = False
    """Write a trace of the 10th to the 12th iteration of this command to <run>/trace.json."""
    video: Flag = False
    """Record the policy during training, to <run>/videos; the training results do not change."""
    video_interval: Count = 50
    """Iterations between videos."""
    video_length: Repetitions = 250
    """Control steps of a video."""
    env: TaskCfg = field(default_factory=lambda: TaskCfg(Path(), 0.0, 0, 0.0))
    ppo: PpoCfg = field(default_factory=PpoCfg)
    distillation: DistillationCfg = field(default_factory=DistillationCfg)

    @staticmethod
    def of_task(name: str, task: TaskCfg, *, on_gpu: bool = False) -> TrainConfig:
        """The configuration that a task asks for, with physics on the CPU or on GPUs."""
        try:
            check(task, "env")
        except ConfigError as error:
            raise ConfigError(f"task {name!r}: {error}") from error
        own: dict[str, Any] = {setting: getattr(task, setting) for setting in FROM_TASK}
        if on_gpu and task.num_envs_on_gpu is not None:
            own["num_envs"] = task.num_envs_on_gpu
        return TrainConfig(name, env=task, **own)

    def samples(self, ranks: int) -> int:
        """Env steps of an iteration over all `ranks` of a training."""
        return self.num_envs * self.num_steps_per_env * ranks

    def saves_at(self, iteration: int) -> bool:
        """Whether a checkpoint is due after so many iterations, by their number."""
        return iteration % (self.save_interval or _SAVE_INTERVAL) == 0

    def next_meeting(self, iteration: int) -> int:
        """The first iteration from `iteration` on after which members of a population meet."""
        intervals = self.population_interval, self.save_interval or _SAVE_INTERVAL
        return min(-(-iteration // interval) * interval for interval in intervals)

    def for_samples(self, samples: int) -> TrainConfig:
        """A copy of a task's configuration for trainings of `samples` env steps an iteration.

        With k times the samples of the task's default, mini-batches keep their size, the divergence
        that is aimed at grows by sqrt(k), and iterations shrink by sqrt(k), each within limits.
        So do the steps after which events begin, and the parameters `steps` and `after_steps` of
        events and curricula; a curriculum's `rate`, for each step, grows. With fewer samples
        nothing changes.
        """
        more = samples / (self.env.num_envs * self.env.num_steps_per_env)
        if more <= 1.0:
            return self
        fewer = 1.0 / min(math.sqrt(more), _FEWEST_ITERATIONS)
        batches = round(self.ppo.num_mini_batches * min(more, _MOST_MINI_BATCHES))
        kl = max(self.ppo.desired_kl, min(self.ppo.desired_kl * math.sqrt(more), _LARGEST_KL))
        env = copy.deepcopy(self.env)
        for event in env.events.values():
            event.after_steps = round(event.after_steps * fewer)
        for term in (*env.events.values(), *env.curricula.values()):
            for name in term.params.keys() & {"steps", "after_steps"}:
                term.params[name] = round(term.params[name] * fewer)
        for curriculum in env.curricula.values():
            if "rate" in curriculum.params:
                curriculum.params["rate"] /= fewer
        return replace(
            self,
            max_iterations=math.ceil(self.max_iterations * fewer),
            ppo=replace(self.ppo, num_mini_batches=batches, desired_kl=float(f"{kl:.2g}")),
            env=env,
        )

    def iterations(self, world_size: int, *, iteration: int = 0, env_steps: int = 0) -> int:
        """Iterations at the end of training; `iteration` and `env_steps` are trained already."""
        if self.total_env_steps is None:
            return self.max_iterations
        return iteration + math.ceil((self.total_env_steps - env_steps) / self.samples(world_size))

    def check(self) -> None:
        """Raise ConfigError for values that cannot be; names are checked with the model."""
        check(self)
        for metric in self.env.metrics:
            if metric in EVALUATION_TAGS:
                text = f"a metric of the task is called {metric!r}, like one of evaluations"
                raise ConfigError(text)
        self._check_ppo()
        self._check_network("actor")
        self._check_network("critic")
        self._check_obs_groups()
        self._check_rnd()
        self._check_distillation()
        if self.init_only is not None and self.init_from is None:
            needed = "needs --init-from, a run or checkpoint"
            raise ConfigError(f"--init-only {self.init_only} {needed}")
        if self.profile and self.iterations(self.cpu_workers) < 10:
            text = "--profile traces iterations 10 to 12, and training ends before"
            raise ConfigError(f"{text}; use --max-iterations 12 or more")
        name = f"--run-name is {self.run_name!r}; it must"
        if "/" in self.run_name or self.run_name in (".", ".."):
            raise ConfigError(f"{name} not contain '/'")
        if not self.run_name.isprintable():
            raise ConfigError(f"{name} be of printable characters, in one line")

    def check_on_machine(self) -> None:
        """Raise ConfigError for settings beyond this machine; not called for runs of other ones."""
        most = max(64, 4 * (os.cpu_count() or 1))
        for name in ("cpu_threads", "cpu_workers"):
            if (count := getattr(self, name) or 0) > most:
                raise ConfigError(f"{flag(name)} is {count}; at most {most} make sense here")
        if self.ssh_config is not None and not Path(self.ssh_config).is_file():
            raise ConfigError(f"--ssh-config {self.ssh_config} is not a file")

    def _check_ppo(self) -> None:
        std, (low, high) = self.ppo.actor.init_std, self.ppo.actor.std_range
        if not low <= std <= high:
            allowed = f"it must contain --ppo.actor.init-std, {std}"
            raise ConfigError(f"--ppo.actor.std-range is {low} {high}; {allowed}")
        samples, batches = self.num_envs * self.num_steps_per_env, self.ppo.num_mini_batches
        if samples < batches:
            text = f"{batches} mini-batches (--ppo.num-mini-batches) cannot be made of {samples}"
            raise ConfigError(f"{text} samples (--num-envs x --num-steps-per-env)")

    def _check_network(self, name: str) -> None:
        cfg: NetworkCfg = getattr(self.ppo, name)
        is_recurrent, name = cfg.model in ("gru", "lstm"), f"--ppo.{name}"
        if cfg.model not in MODELS and not re.fullmatch(r"[^:\s]+:[\w.]+", cfg.model):
            meant = did_you_mean(cfg.model, MODELS)
            text = f"{name}.model is {cfg.model!r}{meant}; it must be one of {', '.join(MODELS)}"
            raise ConfigError(f"{text}, or your own class, as package.module:Class")
        if is_recurrent and self.ppo.symmetry.is_used and self.teacher is None:
            text = f"{name}.model is {cfg.model}; --ppo.symmetry is not for recurrent networks"
            off = "--ppo.symmetry.augment False --ppo.symmetry.mirror-loss-coef 0"
            raise ConfigError(f"{text}; use mlp or cnn, or turn symmetry off: {off}")
        if is_recurrent and self.num_envs < self.ppo.num_mini_batches:
            text = f"{self.num_envs} environments (--num-envs) cannot be divided into"
            text = f"{text} {self.ppo.num_mini_batches} mini-batches (--ppo.num-mini-batches)"
            raise ConfigError(f"{text}, which a {cfg.model} needs")
        layers = len(cfg.cnn.output_channels)
        for setting in ("kernel_size", "stride", "dilation"):
            if (count := len(getattr(cfg.cnn, setting))) not in (1, layers):
                text = f"{name}.cnn.{setting.replace('_', '-')} has {count} values"
                raise ConfigError(f"{text}; give one, or one for each layer")

    def _check_obs_groups(self) -> None:
        groups = self.env.observation_groups()
        # Where the task has no group of this name, the actor's are taken.
        for name, optional in (("actor", ""), ("critic", "critic"), ("rnd", "rnd_state")):
            for group in getattr(self.ppo, name).obs_groups:
                if group not in (*groups, optional):
                    text = f"--ppo.{name}.obs-groups names {group!r}; the task has"
                    raise ConfigError(f"{text} {', '.join(groups)}")

    def _check_rnd(self) -> None:
        rnd = self.ppo.rnd
        if rnd.weight == 0.0 and rnd != RndCfg():
            raise ConfigError("--ppo.rnd.* sets an intrinsic reward; add --ppo.rnd.weight")
        if rnd.weight != 0.0 and self.teacher is not None:
            text = "--ppo.rnd.weight does not go with --teacher: a student has no reward"
            raise ConfigError(text)
        if rnd.weight_schedule == "linear" and rnd.initial_step >= rnd.final_step:
            text = f"--ppo.rnd.final-step is {rnd.final_step}; it must be greater than"
            raise ConfigError(f"{text} --ppo.rnd.initial-step, {rnd.initial_step}")

    def _check_distillation(self) -> None:
        cfg, steps = self.distillation, self.num_steps_per_env
        if self.teacher is None:
            if cfg != DistillationCfg():
                text = "--distillation.* sets how a student learns from a teacher"
                raise ConfigError(f"{text}; add --teacher, its run or checkpoint")
        elif steps % cfg.gradient_length:
            text = f"--distillation.gradient-length is {cfg.gradient_length}; it must divide the"
            raise ConfigError(f"{text} {steps} steps of a rollout (--num-steps-per-env)")
