"""Steps and mini-batches as graphs, by a tape on the CPU, against the same code run eagerly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tape import Tape
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
from simtrain.training.graphs.check import host_values
from simtrain.training.loop import Iteration, Trainer

pytestmark = [pytest.mark.usefixtures("fast_compilation"), pytest.mark.timeout(600)]

ALONE = Rank(0, 0, 1, torch.device("cpu"), seed=0, threads=1)
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


def make_trainer(
    cfg: TaskCfg, *, graphs: bool, rank: Rank = ALONE, timer: PhaseTimer = NO_TIMER
) -> tuple[Trainer, Tape]:
    torch.manual_seed(3)
    env = Env(cfg, ENVS, EngineCfg("warp"), timer=timer)
    tape = Tape(env)
    ppo = PPO(cfg.ppo, env.get_observations(), env.num_actions, STEPS, rank, timer)
    return Trainer(env, ppo, rank, timer, tape if graphs else None), tape


def train(trainer: Trainer, iterations: int) -> list[Iteration]:
    trainer.begin()
    last = trainer.iteration + iterations
    return [trainer.iterate(last, lambda: False) for _ in range(iterations)]


def same(graphed: Trainer, eager: Trainer, found: list[Iteration], wanted: list[Iteration]) -> None:
    for one, other in zip(found, wanted, strict=True):
        timed = {name for name in one.metrics if name.startswith("Perf/")}
        assert {name: one.metrics[name] for name in one.metrics.keys() - timed} == {
            name: other.metrics[name] for name in other.metrics.keys() - timed
        }
    for mine, theirs in zip(graphed.ppo.tensors(), eager.ppo.tensors(), strict=True):
        assert torch.equal(mine, theirs)
    for name in ("observations", "actions", "rewards", "dones", "values", "returns"):
        mine, theirs = (getattr(t.ppo.storage, name) for t in (graphed, eager))
        assert (mine == theirs).all(), name


def test_training_by_graphs_is_training_eagerly_to_the_bit() -> None:
    eager, _ = make_trainer(busy_cartpole(), graphs=False)
    wanted = train(eager, 5)
    graphed, tape = make_trainer(busy_cartpole(), graphs=True)
    found = train(graphed, 5)
    same(graphed, eager, found, wanted)
    assert not [text for iteration in found for text in iteration.warnings]
    assert graphed.env.episodes.names
    assert any("Episode_Reward/still" in iteration.metrics for iteration in found)
    assert found[-1].metrics["Curriculum/nudge"] > found[0].metrics["Curriculum/nudge"]
    # A step and two mini-batches; four rollouts and five updates were replayed, and each kind was
    # checked once.
    epochs = graphed.ppo.num_learning_epochs
    assert tape.captures == 1 + 2
    assert tape.replays == 4 * STEPS + 4 + 5 * epochs * 2 + 2


@pytest.mark.parametrize("model", ["lstm", "cnn"])
def test_models_that_learn_by_autograd_train_by_graphs_where_shapes_stay(model: str) -> None:
    def make(graphs: bool) -> tuple[Trainer, Tape]:
        cfg = busy_cartpole()
        cfg.observations["image"] = {"target": ObservationTermCfg(image)}
        for network in (cfg.ppo.actor, cfg.ppo.critic):
            network.model, network.rnn_hidden_dim = model, 4
            network.obs_groups = ("actor", "image") if model == "cnn" else ("actor",)
        return make_trainer(cfg, graphs=graphs)

    eager, _ = make(graphs=False)
    wanted = train(eager, 4)
    graphed, tape = make(graphs=True)
    found = train(graphed, 4)
    same(graphed, eager, found, wanted)
    assert all(map(torch.equal, graphed.ppo.hidden_states(), eager.ppo.hidden_states()))
    told = [text for iteration in found for text in iteration.warnings]
    if model == "cnn":
        assert not told
        assert tape.captures == 1 + 2
    else:
        assert told == [
            "updates run without CUDA graphs, and slower: recurrent networks learn from "
            "trajectories, whose number changes"
        ]
        assert tape.captures == 1


def test_a_student_that_remembers_is_distilled_by_graphs() -> None:
    def make(graphs: bool) -> tuple[Trainer, Tape]:
        torch.manual_seed(3)
        env = Env(busy_cartpole(), ENVS, EngineCfg("warp"))
        tape, obs = Tape(env), env.get_observations()
        student, teacher = ActorCfg((8,), model="gru", rnn_hidden_dim=4), ActorCfg((8,))
        models = make_actor(student, obs, 1), make_actor(teacher, obs, 1)
        cfg = DistillationCfg(num_learning_epochs=2, gradient_length=STEPS)
        distillation = Distillation(cfg, models, obs, STEPS, ALONE)
        return Trainer(env, distillation, ALONE, graphs=tape if graphs else None), tape

    eager, _ = make(graphs=False)
    wanted = train(eager, 4)
    graphed, tape = make(graphs=True)
    found = train(graphed, 4)
    same(graphed, eager, found, wanted)
    assert all(map(torch.equal, graphed.ppo.hidden_states(), eager.ppo.hidden_states()))
    assert not [text for iteration in found for text in iteration.warnings]
    assert tape.captures == 1 + 1


@pytest.mark.parametrize(
    ("term", "told", "captures"),
    [
        (waits, "waits for the device (in the term rewards.term)", 2),
        (counts_on_the_host, "rewards.term keeps `_calls`, which is not saved", 2),
        (draws_on_the_host, "a term uses NumPy's random generator", 2),
        (keeps_another_tensor, "rewards.term keeps `_before`, which is not saved", 2),
    ],
)
def test_a_term_that_cannot_be_in_a_graph_is_named_once(term, told: str, captures: int) -> None:
    graphed, tape = make_trainer(busy_cartpole(term=term), graphs=True)
    (warning,) = [text for iteration in train(graphed, 2) for text in iteration.warnings]
    assert warning.startswith("rollouts run without CUDA graphs, and slower: ")
    assert told in warning
    assert tape.captures == captures  # of mini-batches, and of steps that were compared


def test_a_refusal_changes_nothing_in_training() -> None:
    eager, _ = make_trainer(busy_cartpole(term=keeps_another_tensor), graphs=False)
    wanted = train(eager, 3)
    graphed, _ = make_trainer(busy_cartpole(term=keeps_another_tensor), graphs=True)
    found = train(graphed, 3)
    assert any(iteration.warnings for iteration in found)
    same(graphed, eager, found, wanted)


def test_a_term_that_waits_in_a_capture_is_refused_with_its_name() -> None:
    class Blind(Tape):
        """Does not see waiting before it captures."""

        def without_waiting(self):
            return torch.no_grad()

    trainer, _ = make_trainer(busy_cartpole(term=waits), graphs=False)
    blind = Blind()
    trainer = Trainer(trainer.env, trainer.ppo, trainer.rank, graphs=blind)
    told = [text for iteration in train(trainer, 2) for text in iteration.warnings]
    (warning,) = [text for text in told if text.startswith("rollouts")]
    assert "not permitted when stream is capturing (in the term rewards.term)" in warning


def test_graphs_are_made_anew_when_the_engine_has_replaced_arrays() -> None:
    def expand(trainer: Trainer) -> None:
        trainer.env.sim.expand("dof_damping")
        trainer.env.sim.write("dof_damping", 0.7)

    def run(graphs: bool) -> tuple[Trainer, Tape, list[Iteration]]:
        trainer, tape = make_trainer(busy_cartpole(), graphs=graphs)
        iterations = train(trainer, 2)
        expand(trainer)
        return trainer, tape, iterations + train(trainer, 2)

    eager, _, wanted = run(graphs=False)
    graphed, tape, found = run(graphs=True)
    same(graphed, eager, found, wanted)
    assert tape.captures == 2 + 1 + 1


def test_a_saved_state_is_continued_by_graphs() -> None:
    def run(graphs: bool) -> tuple[Trainer, Tape, list[Iteration]]:
        trainer, tape = make_trainer(busy_cartpole(), graphs=graphs)
        train(trainer, 2)
        saved = trainer.env.state(), trainer.ppo.state(), torch.get_rng_state()
        train(trainer, 1)
        trainer.env.set_state(saved[0])
        trainer.ppo.set_state(saved[1])
        torch.set_rng_state(saved[2])
        return trainer, tape, train(trainer, 2)

    eager, _, wanted = run(graphs=False)
    graphed, tape, found = run(graphs=True)
    same(graphed, eager, found, wanted)
    assert tape.captures == 1 + 2  # the state is loaded into the tensors that are there


def test_a_refusal_of_an_update_is_told() -> None:
    class Refusing(Tape):
        def _record(self, function):
            return super()._record(lambda: (function(), torch.ones(1).item()))

    trainer, _ = make_trainer(busy_cartpole(), graphs=False)
    trainer = Trainer(trainer.env, trainer.ppo, trainer.rank, graphs=Refusing())
    told = [text for iteration in train(trainer, 2) for text in iteration.warnings]
    assert {text.split(" run ")[0] for text in told} == {"rollouts", "updates"}


class BesideOneThatRefuses(Rank):
    """A rank whose neighbour cannot have graphs."""

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return (True,) * len(flags)


def test_one_rank_refuses_for_all() -> None:
    eager, _ = make_trainer(busy_cartpole(), graphs=False)
    wanted = train(eager, 2)
    beside = BesideOneThatRefuses(0, 0, 1, torch.device("cpu"), seed=0, threads=1)
    graphed, tape = make_trainer(busy_cartpole(), graphs=True, rank=beside)
    found = train(graphed, 2)
    same(graphed, eager, found, wanted)
    assert tape.captures == 1 + 2
    assert tape.replays == 4  # the check of a step
    assert not [text for iteration in found for text in iteration.warnings]


@pytest.mark.parametrize(
    "task", ["cartpole-swingup", "go1-velocity-flat", "go1-velocity-rough", "g1-velocity-flat"]
)
def test_no_task_that_ships_keeps_anything_on_the_host(task: str) -> None:
    env = Env(discover().find(task).make(), 2, EngineCfg(threads=1))
    actions = torch.zeros(2, env.num_actions)
    env.step(actions)
    before = host_values(env, draws_on_device=False)
    env.step(actions)
    assert host_values(env, draws_on_device=False) == before
    assert len(env.terms()) > 5


def test_who_draws_on_the_cpu_although_the_environment_is_elsewhere_is_found() -> None:
    env = Env(busy_cartpole(), 2, EngineCfg(threads=1))
    before = host_values(env, draws_on_device=True)
    torch.rand(1)
    after = host_values(env, draws_on_device=True)
    changed = [text for text in after if after[text] != before[text]]
    assert changed == ["a term uses PyTorch's random generator of the CPU"]


def test_a_trace_of_graphs_is_made_as_well() -> None:
    eager, _ = make_trainer(busy_cartpole(), graphs=False)
    wanted = train(eager, 2)
    timer = TracedTimer(CpuTimer())
    graphed, tape = make_trainer(busy_cartpole(), graphs=True, timer=timer)
    same(graphed, eager, train(graphed, 2), wanted)
    timer.end_mark()
    assert tape.replays > 0


def test_closed_graphs_are_not_used_again() -> None:
    eager, _ = make_trainer(busy_cartpole(), graphs=False)
    wanted = train(eager, 4)
    graphed, tape = make_trainer(busy_cartpole(), graphs=True)
    found = train(graphed, 2)
    replays = tape.replays
    graphed.close()
    graphed.close()
    same(graphed, eager, found + train(graphed, 2), wanted)
    assert tape.replays == replays
    assert tape.captures == 1 + 2
    assert tape.alive == 0


def test_a_paused_timer_notes_no_phase() -> None:
    timer = CpuTimer()
    timer.take("rollout")
    with timer.paused():
        timer.begin("captured")
    assert [phase for phase, _ in timer.take("update")] == ["rollout"]
