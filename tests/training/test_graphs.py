"""Steps and mini-batches as graphs, by a tape on the CPU, against the same code run eagerly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tape import Tape
from tiny_training import ALONE, run_for
from torch import Tensor

from simtrain import (
    ActorCfg,
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TaskCfg,
    UniformNoiseCfg,
    mdp,
)
from simtrain.algorithms.cfg import DistillationCfg
from simtrain.algorithms.distillation import Distillation
from simtrain.algorithms.networks import make_actor
from simtrain.algorithms.ppo import PPO
from simtrain.config.tasks import discover
from simtrain.env.commands import CommandTerm
from simtrain.env.env import Env
from simtrain.launch.phase_timer import NO_TIMER, CpuTimer, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.sim import EngineCfg
from simtrain.training.features.timing import TracedTimer
from simtrain.training.graphs import host_values
from simtrain.training.loop import Iteration, Trainer

pytestmark = pytest.mark.usefixtures("fast_compilation")

ENVS, STEPS = 8, 5  # an odd number, so that eager rollouts begin with either buffer


class Target(CommandTerm):
    """Where the cart shall be."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.command = env.buffer("command", (1,), reset=None)

    def resample(self, mask: Tensor) -> None:
        drawn = torch.rand(self._env.num_envs, 1) - 0.5
        torch.where(mask.unsqueeze(1), drawn, self.command, out=self.command)


class still:
    """How many steps the cart has been slow; keeps a tensor."""

    def __init__(self, env: Env) -> None:
        self._steps = env.buffer("steps")

    def __call__(self, env: Env) -> Tensor:
        slow = env.bind("qvel")[:, 0].abs() < 0.5
        self._steps.add_(1.0).masked_fill_(~slow, 0.0)
        return self._steps


class counts_on_the_host:
    """Only from its thousandth call on does it give something else."""

    def __init__(self, env: Env) -> None:
        self._calls = 0

    def __call__(self, env: Env) -> Tensor:
        self._calls += 1
        return torch.full((env.num_envs,), float(self._calls > 1000))


class keeps_another_tensor:
    """How far all have moved since the last step; it keeps a new tensor each time."""

    def __init__(self, env: Env) -> None:
        self._before = torch.zeros(())

    def __call__(self, env: Env) -> Tensor:
        now = env.bind("qpos")[:, 0].mean()
        moved, self._before = now - self._before, now
        return moved.repeat(env.num_envs)


def waits(env: Env) -> Tensor:
    return torch.full((env.num_envs,), env.bind("qpos").sum().item())


def draws_on_the_host(env: Env) -> Tensor:
    return torch.ones(env.num_envs) * float(np.random.rand())


def push(env: Env, mask: Tensor) -> None:
    env.sim.write("qvel", torch.rand(env.num_envs, 1) - 0.5, mask, slice(0, 1))


def nudge(env: Env, mask: Tensor) -> Tensor:
    return env.steps * 0.5


def image(env: Env) -> Tensor:
    return env.bind("qpos").sum(dim=1).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)


def busy_cartpole(**rewards: Callable[..., Any]) -> TaskCfg:
    """Cart-pole with everything that a step may do, and episodes of 7 steps."""
    cfg = discover().find("cartpole-balance").make()
    cfg.decimation = 1
    cfg.episode_length_s = 7 * cfg.timestep * cfg.decimation
    actor = cfg.observations["actor"]
    name, first = next(iter(actor.items()))
    noisy = dataclasses.replace(first, noise=UniformNoiseCfg(-0.1, 0.1), history_length=3)
    command = ObservationTermCfg(mdp.generated_commands, command="target")
    cfg.observations["actor"] = {**actor, name: noisy, "command": command}
    cfg.commands = {"target": CommandTermCfg(Target, resampling_time_range=(0.1, 0.3))}
    cfg.events = {
        **cfg.events,
        "push": EventTermCfg(push, mode="interval", interval_range_s=(0.1, 0.2)),
    }
    cfg.curricula = {"nudge": CurriculumTermCfg(nudge)}
    cfg.rewards = {
        **cfg.rewards,
        "still": RewardTermCfg(still, weight=0.1),
        **{key: RewardTermCfg(func, weight=0.1) for key, func in rewards.items()},
    }
    cfg.ppo.actor.hidden_dims = cfg.ppo.critic.hidden_dims = (16,)
    cfg.ppo.num_mini_batches = cfg.ppo.num_learning_epochs = 2
    return cfg


Made = tuple[Trainer, Tape]


def make_trainer(
    cfg: TaskCfg | None = None,
    *,
    graphs: bool,
    rank: Rank = ALONE,
    timer: PhaseTimer = NO_TIMER,
) -> Made:
    torch.manual_seed(3)
    cfg = cfg or busy_cartpole()
    env = Env(cfg, ENVS, EngineCfg("warp"), timer=timer)
    tape = Tape(env)
    ppo = PPO(cfg.ppo, env.get_observations(), env.num_actions, STEPS, rank, timer)
    return Trainer(env, ppo, rank, timer, tape if graphs else None), tape


def warnings_of(iterations: list[Iteration]) -> list[str]:
    return [text for iteration in iterations for text in iteration.warnings]


def graphs_train_alike(
    make: Callable[[bool], Made], run: Callable[[Trainer], list[Iteration]]
) -> tuple[Trainer, Tape, list[Iteration]]:
    """What `run` makes of trainings without and with graphs, which must be the same to the bit."""
    eager, _ = make(False)
    expected = run(eager)
    graphed, tape = make(True)
    iterations = run(graphed)
    for one, other in zip(iterations, expected, strict=True):
        timed = {name for name in one.metrics if name.startswith("Perf/")}
        assert {name: one.metrics[name] for name in one.metrics.keys() - timed} == {
            name: other.metrics[name] for name in other.metrics.keys() - timed
        }
    tensors = [[*t.ppo.tensors(), *t.ppo.hidden_states()] for t in (graphed, eager)]
    assert all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))
    for name in ("observations", "actions", "rewards", "dones", "values", "returns"):
        stored, of_eager = (getattr(t.ppo.storage, name) for t in (graphed, eager))
        assert (stored == of_eager).all(), name
    return graphed, tape, iterations


def test_training_by_graphs_is_training_eagerly_to_the_bit() -> None:
    graphed, tape, iterations = graphs_train_alike(
        lambda graphs: make_trainer(graphs=graphs), lambda trainer: run_for(trainer, 5)
    )
    assert not warnings_of(iterations)
    assert graphed.env.episodes.names
    assert any("Episode_Reward/still" in iteration.metrics for iteration in iterations)
    nudges = [iteration.metrics["Curriculum/nudge"] for iteration in iterations]
    assert nudges[-1] > nudges[0]
    # A step and two mini-batches; four rollouts and five updates were replayed, and each kind was
    # checked once.
    epochs = graphed.ppo.num_learning_epochs
    assert tape.captures == 1 + 2
    assert tape.replays == 4 * STEPS + 4 + 5 * epochs * 2 + 2


@pytest.mark.parametrize("model", ["lstm", "cnn"])
def test_models_that_learn_by_autograd_train_by_graphs_where_shapes_stay(model: str) -> None:
    def make(graphs: bool) -> Made:
        cfg = busy_cartpole()
        cfg.observations["image"] = {"target": ObservationTermCfg(image)}
        for network in (cfg.ppo.actor, cfg.ppo.critic):
            network.model, network.rnn_hidden_dim = model, 4
            network.obs_groups = ("actor", "image") if model == "cnn" else ("actor",)
        return make_trainer(cfg, graphs=graphs)

    _, tape, iterations = graphs_train_alike(make, lambda trainer: run_for(trainer, 4))
    refusal = (
        "updates run without CUDA graphs, and slower: recurrent networks learn from trajectories, "
        "whose number changes"
    )
    assert warnings_of(iterations) == ([refusal] if model == "lstm" else [])
    assert tape.captures == (1 if model == "lstm" else 1 + 2)


def test_a_student_that_remembers_is_distilled_by_graphs() -> None:
    def make(graphs: bool) -> Made:
        torch.manual_seed(3)
        env = Env(busy_cartpole(), ENVS, EngineCfg("warp"))
        tape, obs = Tape(env), env.get_observations()
        student, teacher = ActorCfg((8,), model="gru", rnn_hidden_dim=4), ActorCfg((8,))
        models = make_actor(student, obs, 1), make_actor(teacher, obs, 1)
        cfg = DistillationCfg(num_learning_epochs=2, gradient_length=STEPS)
        distillation = Distillation(cfg, models, obs, STEPS, ALONE)
        return Trainer(env, distillation, ALONE, graphs=tape if graphs else None), tape

    _, tape, iterations = graphs_train_alike(make, lambda trainer: run_for(trainer, 4))
    assert not warnings_of(iterations)
    assert tape.captures == 1 + 1


@pytest.mark.parametrize(
    ("term", "reason"),
    [
        (waits, "waits for the device (in the term rewards.term)"),
        (counts_on_the_host, "rewards.term keeps `_calls`, which is not saved"),
        (draws_on_the_host, "a term uses NumPy's random generator"),
    ],
)
def test_a_term_that_cannot_be_in_a_graph_is_named_once(term, reason: str) -> None:
    graphed, tape = make_trainer(busy_cartpole(term=term), graphs=True)
    (warning,) = warnings_of(run_for(graphed, 2))
    assert warning.startswith("rollouts run without CUDA graphs, and slower: ")
    assert reason in warning
    assert tape.captures == 2  # of mini-batches alone


def test_a_refusal_changes_nothing_in_training() -> None:
    _, _, iterations = graphs_train_alike(
        lambda graphs: make_trainer(busy_cartpole(term=keeps_another_tensor), graphs=graphs),
        lambda trainer: run_for(trainer, 3),
    )
    (warning,) = warnings_of(iterations)
    assert "rewards.term keeps `_before`, which is not saved" in warning


def test_what_waits_in_a_capture_alone_is_refused_with_its_name() -> None:
    class Blind(Tape):
        """Does not see waiting before it captures, and cannot capture updates."""

        def without_waiting(self):
            return torch.no_grad()

        def _record(self, function):
            return super()._record(lambda: (function(), torch.ones(1).item()))

    trainer, _ = make_trainer(busy_cartpole(term=waits), graphs=False)
    trainer = Trainer(trainer.env, trainer.ppo, trainer.rank, graphs=Blind())
    updates, rollouts = sorted(warnings_of(run_for(trainer, 2)), reverse=True)
    assert "not permitted when stream is capturing (in the term rewards.term)" in rollouts
    assert updates.startswith("updates run without CUDA graphs")


def test_graphs_are_made_anew_when_the_engine_has_replaced_arrays() -> None:
    def run(trainer: Trainer) -> list[Iteration]:
        iterations = run_for(trainer, 2)
        trainer.env.sim.expand("dof_damping")
        trainer.env.sim.write("dof_damping", 0.7)
        return iterations + run_for(trainer, 2)

    _, tape, _ = graphs_train_alike(lambda graphs: make_trainer(graphs=graphs), run)
    assert tape.captures == 2 + 1 + 1


def test_a_saved_state_is_continued_by_graphs() -> None:
    def run(trainer: Trainer) -> list[Iteration]:
        run_for(trainer, 2)
        saved = trainer.env.state(), trainer.ppo.state(), torch.get_rng_state()
        run_for(trainer, 1)
        trainer.env.set_state(saved[0])
        trainer.ppo.set_state(saved[1])
        torch.set_rng_state(saved[2])
        return run_for(trainer, 2)

    _, tape, _ = graphs_train_alike(lambda graphs: make_trainer(graphs=graphs), run)
    assert tape.captures == 1 + 2  # the state is loaded into the tensors that are there


class BesideOneThatRefuses(Rank):
    """A rank whose neighbour cannot have graphs."""

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return (True,) * len(flags)


def test_one_rank_refuses_for_all() -> None:
    beside = BesideOneThatRefuses(0, 0, 1, torch.device("cpu"), seed=0, threads=1)
    _, tape, iterations = graphs_train_alike(
        lambda graphs: make_trainer(graphs=graphs, rank=beside if graphs else ALONE),
        lambda trainer: run_for(trainer, 2),
    )
    assert tape.captures == 1 + 2
    assert tape.replays == 4  # the check of a step
    assert not warnings_of(iterations)


@pytest.mark.parametrize("task", ["cartpole-swingup", "go1-velocity-rough", "g1-velocity-flat"])
def test_no_task_that_ships_keeps_anything_on_the_host(task: str) -> None:
    env = Env(discover().find(task).make(), 2, EngineCfg(threads=1))
    actions = torch.zeros(2, env.num_actions)
    env.step(actions)
    before = host_values(env, draws_on_device=False)
    env.step(actions)
    assert host_values(env, draws_on_device=False) == before
    assert len(env.terms()) > 5


def test_who_draws_on_the_cpu_although_the_environment_is_elsewhere_is_named() -> None:
    env = Env(busy_cartpole(), 2, EngineCfg(threads=1))
    before = host_values(env, draws_on_device=True)
    torch.rand(1)
    after = host_values(env, draws_on_device=True)
    changed = [text for text in after if after[text] != before[text]]
    assert changed == ["a term uses PyTorch's random generator of the CPU"]


def test_closed_graphs_are_not_used_again_and_a_trace_changes_nothing() -> None:
    timer, replays = TracedTimer(CpuTimer()), []

    def run(trainer: Trainer) -> list[Iteration]:
        iterations = run_for(trainer, 2)
        replays.append(made[-1].replays)
        trainer.close()
        trainer.close()
        return iterations + run_for(trainer, 2)

    made: list[Tape] = []

    def make(graphs: bool) -> Made:
        trainer, tape = make_trainer(graphs=graphs, timer=timer if graphs else NO_TIMER)
        made.append(tape)
        return trainer, tape

    _, tape, iterations = graphs_train_alike(make, run)
    timer.marks.close()
    assert min(iterations[1].phases[name] for name in ("rollout_graph", "update_graph")) > 0.0
    assert tape.replays == replays[-1] > 0
    assert tape.captures == 1 + 2
    assert tape.alive == 0
