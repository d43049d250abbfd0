"""Two ranks without torchrunx: a program that forks them, and saves what they found.

Tests of what ranks compute share its run (`test_two_ranks.py`). Importing torch once rather than in
every rank makes it quick.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict

from simtrain.algorithms.cfg import (
    ActorCfg,
    CriticCfg,
    DistillationCfg,
    PpoCfg,
    RndCfg,
    SymmetryCfg,
)
from simtrain.algorithms.distillation import Distillation
from simtrain.algorithms.networks import make_actor
from simtrain.algorithms.ppo import PPO
from simtrain.algorithms.symmetry import MirrorMap, MirrorMaps
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.env.env import Env
from simtrain.env.randomness import seed_everything
from simtrain.errors import RankError
from simtrain.launch.phase_timer import NO_TIMER, CpuTimer, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.sim import EngineCfg
from simtrain.sim.engine import Overflow
from simtrain.training.context import RunContext, SharedContext
from simtrain.training.features import Feature, Iteration
from simtrain.training.features.checkpoint import check_same_tensors
from simtrain.training.loop import Trainer, train
from simtrain.training.statistics import Reduction, Sums
from simtrain.training.transfer import init_networks

ENVS, STEPS, OBS, ACTIONS = 8, 6, 5, 2
SYMMETRY = SymmetryCfg(augment=True, mirror_loss_coef=0.5)
UPDATES: dict[str, dict[str, Any]] = {
    "update": {},
    "update per mini-batch": {"per_mini_batch": True},
    "update with rnd": {"rnd": 0.3},
    "update of a gru": {"model": "gru"},
    "update of an lstm": {"model": "lstm"},
    "update of a cnn": {"model": "cnn"},
    "update with mirror images": {"symmetry": SYMMETRY},
    "update of a cnn with mirror images": {"model": "cnn", "symmetry": SYMMETRY},
}
PIXELS = torch.arange(OBS**2).view(OBS, OBS).flip(1).flatten()
MIRROR = MirrorMaps(
    {
        "actor": MirrorMap(torch.tensor([1, 0, 2, 3, 4]), torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0])),
        "image": MirrorMap(PIXELS, torch.ones(OBS**2)),
    },
    MirrorMap(torch.tensor([1, 0]), torch.tensor([-1.0, -1.0])),
)


class Collected(Feature):
    """Keeps the iterations."""

    def __init__(self) -> None:
        self.iterations: list[Iteration] = []

    def after_iteration(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)


def main(results: Path) -> None:
    one = Rank(0, 0, 1, torch.device("cpu"), seed=3, threads=1)
    torch.set_num_threads(1)
    store = results.with_suffix(".store")
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run, args=(i, store, results)) for i in range(2)]
    # Before anything here: autograd's threads do not survive a fork.
    for process in ranks:
        process.start()
    alone = {
        "distillation": distilled(one, 2 * ENVS, slice(None)),
        **{name: update(one, 2 * ENVS, slice(None), **more) for name, more in UPDATES.items()},
        "state": initial_state(one),
    }
    for process in ranks:
        process.join()
        assert process.exitcode == 0
    torch.save(alone, results.with_suffix(".alone"))


def run(number: int, store: Path, results: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=number, world_size=2)
    rank = Rank(number, number, 2, torch.device("cpu"), seed=3 + number, threads=1)
    mine = slice(number * ENVS, (number + 1) * ENVS)
    found = {
        "distillation": distilled(rank, ENVS, mine),
        **{name: update(rank, ENVS, mine, **more) for name, more in UPDATES.items()},
        "state": initial_state(rank),
        "trained": trained(rank),
        "begun": begun(rank, results.with_suffix(".start")),
        "trained on other hardware": trained_on_other_hardware(rank),
        "reduced": reduced(rank),
        "any": any_rank(rank),
        "difference": difference(rank),
        "warnings": warnings(rank),
        "skipped": skipped(rank),
        "phases": phases(rank),
    }
    torch.save(found, results.with_suffix(f".{number}"))
    dist.destroy_process_group()


def update(
    rank: Rank,
    num_envs: int,
    mine: slice,
    *,
    per_mini_batch: bool = False,
    model: str = "mlp",
    rnd: float = 0.0,
    symmetry: SymmetryCfg | None = None,
) -> dict[str, Any]:
    """Gradients, parameters and losses after PPO's update on a part of one rollout.

    Advantages are normalized over the rollout, or in each mini-batch. A cnn sees an image, too.
    `rnd` is the weight of random network distillation.
    """
    random = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    rollout = [
        (drawn(2 * ENVS, OBS), drawn(2 * ENVS), drawn(2 * ENVS) > 1.0, drawn(2 * ENVS) > 1.0)
        for _ in range(STEPS)
    ]
    last, noise = drawn(2 * ENVS, OBS), drawn(STEPS, 2 * ENVS, ACTIONS)
    small: dict[str, Any] = {"hidden_dims": (16,), "model": model, "rnn_hidden_dim": 6}
    small["obs_groups"] = ("actor", "image") if model == "cnn" else ("actor",)
    cfg = PpoCfg(
        ActorCfg(**small),
        CriticCfg(**small),
        # One mini-batch, or ranks would group the samples in another way than one alone does.
        num_mini_batches=1,
        num_learning_epochs=4,
        learning_rate=1e-3,
        normalize_advantage_per_mini_batch=per_mini_batch,
        rnd=RndCfg(rnd, state_normalization=True, reward_normalization=True),
        symmetry=symmetry or SymmetryCfg(),
    )

    def observed(obs: torch.Tensor) -> TensorDict:
        image = torch.outer(obs.flatten(), torch.arange(OBS)).sin().view(-1, 1, OBS, OBS)
        return TensorDict({"actor": obs[mine], "image": image[mine]}, batch_size=[num_envs])

    torch.manual_seed(1)
    ppo = PPO(cfg, observed(last), ACTIONS, STEPS, rank, mirror=MIRROR)
    gradients: list[torch.Tensor] = []
    norms = ppo.optimizer.norms

    def noting() -> torch.Tensor:
        gradients.append(ppo.optimizer.gradients.clone())
        return norms()

    ppo.optimizer.norms = noting
    ppo.train_mode()
    with torch.inference_mode():
        for (obs, rewards, dones, time_outs), draw in zip(rollout, noise, strict=True):
            ppo.act(observed(obs))
            # Actions by the given noise: the ranks' own generators have drawn others.
            step = ppo.storage.step
            mean, std = ppo.storage.distribution_params
            ppo.storage.actions[step] = mean[step] + std[step] * draw[mine]
            if model != "mlp":  # which computes these later
                policy = torch.distributions.Normal(mean[step], std[step])
                log_prob = policy.log_prob(ppo.storage.actions[step]).sum(dim=1, keepdim=True)
                ppo.storage.actions_log_prob[step] = log_prob
            extras = {"time_outs": (dones & time_outs)[mine]}
            ppo.process_env_step(observed(obs), rewards[mine], dones[mine], extras)
        ppo.compute_returns(observed(last))
    with torch.no_grad():  # the first divergence is else rounding error, whose sign sets the rate
        for parameter in ppo.actor.parameters():
            parameter.mul_(1.01)
    with counted("all_reduce") as calls, counted("broadcast") as broadcasts:
        losses = ppo.update()
    return {
        "all-reduces": len(calls),
        "broadcasts": len(broadcasts),
        "gradients": gradients,
        "tensors": [tensor.clone() for tensor in ppo.tensors()],
        "losses": losses,
        "learning_rate": ppo.learning_rate,
    }


def distilled(rank: Rank, num_envs: int, mine: slice) -> dict[str, Any]:
    """Parameters and loss of a student that remembers, after two updates on parts of rollouts."""
    random = torch.Generator().manual_seed(0)

    def observed() -> TensorDict:
        obs = torch.randn(2 * ENVS, OBS, generator=random)[mine]
        return TensorDict({"actor": obs}, batch_size=[num_envs])

    torch.manual_seed(1)
    student, teacher = ActorCfg((8,), model="gru", rnn_hidden_dim=8), ActorCfg((8,))
    obs = observed()
    models = make_actor(student, obs, ACTIONS), make_actor(teacher, obs, ACTIONS)
    cfg = DistillationCfg(gradient_length=3, max_grad_norm=0.5)
    distillation = Distillation(cfg, models, obs, STEPS, rank)
    distillation.train_mode()
    for _ in range(2):
        with torch.inference_mode():
            distillation.begin_rollout()
            for transition in distillation.storage.transitions:
                distillation.act_in(observed(), transition)
                dones = (torch.rand(2 * ENVS, generator=random) < 0.2)[mine]
                distillation.record(transition, torch.zeros(num_envs), dones, dones)
        with counted("all_reduce") as calls:
            losses = distillation.update()
    return {"all-reduces": len(calls), "losses": losses, "tensors": distillation.tensors()}


def cartpole(rank: Rank, timer: PhaseTimer = NO_TIMER) -> Env:
    seed_everything(rank.seed)
    cfg = discover().find("cartpole-balance").make()
    cfg.ppo.num_learning_epochs = 2
    return Env(cfg, 4, EngineCfg(threads=1), timer=timer)


def initial_state(rank: Rank) -> torch.Tensor:
    return cartpole(rank).bind("qpos").clone()


def trained(rank: Rank) -> list[torch.Tensor]:
    """Parameters and buffers after 20 iterations on the real task."""
    env = cartpole(rank)
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, 8, rank)
    train(Trainer(env, ppo, rank), [], 20, lambda: False)
    return [tensor.clone() for tensor in ppo.tensors()]


def begun(rank: Rank, path: Path) -> list[torch.Tensor]:
    """Parameters and buffers after ``--init-from`` a checkpoint of ones that rank 0 alone has."""
    env = cartpole(rank)
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, 8, rank)
    if rank.is_main:
        states = {name: getattr(ppo, name).state_dict() for name in ("actor", "critic")}
        ones = {k: {n: torch.ones_like(t) for n, t in s.items()} for k, s in states.items()}
        torch.save({f"{name}_state_dict": state for name, state in ones.items()}, path)
    config = TrainConfig("cartpole-balance", init_from=str(path) if rank.is_main else "gone")
    console, shared = SimpleNamespace(say=lambda text: None), SharedContext(path, ())
    init_networks(RunContext(config, rank, console, lambda: False, shared), ppo)
    return [tensor.clone() for tensor in ppo.tensors()]


def trained_on_other_hardware(rank: Rank) -> list[torch.Tensor]:
    """Parameters after an update in which rank 1 adds in another order than rank 0 does."""
    env = cartpole(rank)
    own = replace(rank, threads=1 + rank.rank)
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, 8, own)
    ppo.max_grad_norm = 1e-3  # so that the norms matter
    norms = ppo.optimizer.norms
    ppo.optimizer.norms = lambda: norms() * (1.0 + rank.rank * 2.0**-20)
    train(Trainer(env, ppo, own), [], 1, lambda: False)
    return [tensor.clone() for tensor in ppo.tensors()]


def skipped(rank: Rank) -> tuple[int, bool]:
    """Steps skipped as rank 1 alone has a return that is not finite; whether nothing changed."""
    env = cartpole(rank)
    env.cfg.ppo.num_mini_batches = 1
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, 8, rank)
    before = [tensor.clone() for tensor in ppo.actor.parameters()]
    with torch.inference_mode():
        for _ in range(8):
            obs, *rest = env.step(ppo.act(env.get_observations()))
            ppo.process_env_step(obs, *rest)
        ppo.compute_returns(obs)
    if rank.rank == 1:
        ppo.storage.returns[0, 0] = torch.inf
    ppo.update()
    same = all(map(torch.equal, before, ppo.actor.parameters()))
    return ppo.skipped_steps, same


def phases(rank: Rank) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Three iterations' seconds of each phase on this rank, and all metrics."""
    env = cartpole(rank, timer := CpuTimer())
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, 8, rank, timer)
    collected = Collected()
    train(Trainer(env, ppo, rank, timer), [collected], 3, lambda: False)
    return [(it.phases, it.metrics) for it in collected.iterations]


def reduced(rank: Rank) -> list[Any]:
    """Three iterations' numbers; the second has names that only rank 1 has, the third fewer."""
    reduction = Reduction(rank)

    def reduce(sums: Sums, seconds: float) -> Any:
        (new_names,) = rank.any(reduction.has_new_names(sums))
        if new_names:
            reduction.agree_on_names(sums)
        return reduction(sums, {"seconds": seconds})

    first = {"return": (1.0 + rank.rank, 1.0 + rank.rank)}
    only_one = {"curriculum": (5.0, 1.0)} if rank.rank == 1 else {}
    return [
        reduce(first, 1.0 + rank.rank),
        reduce({**first, **only_one}, 3.0 - rank.rank),
        reduce({} if rank.rank else first, 0.0),
    ]


def any_rank(rank: Rank) -> tuple[bool, ...]:
    """Flags that no rank, rank 1 alone, and both have set."""
    return rank.any(False, rank.rank == 1, True)


def warnings(rank: Rank) -> tuple[list[tuple[str, ...]], int]:
    """What six iterations tell of buffers that are too small on rank 1 alone; exchanges since then.

    Contacts do not fit from the second iteration on, constraints in the fourth.
    """
    env = cartpole(rank)
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, 8, rank)
    trainer = Trainer(env, ppo, rank)

    def overflow() -> Overflow | None:
        done = trainer.iteration
        if rank.rank == 0 or done == 0:
            return None
        messages = {"--env.sim.max-contacts": "contacts were dropped in 4 environments"}
        if done == 3:
            messages["--env.sim.max-constraints"] = "rows of constraints were dropped"
        return Overflow(4, messages)

    env.sim.overflow = overflow
    collected = Collected()
    train(trainer, [collected], 4, lambda: False)
    with counted("all_gather_object") as calls:
        train(trainer, [collected], 6, lambda: False)
    return [iteration.warnings for iteration in collected.iterations], len(calls)


@contextmanager
def counted(collective: str) -> Iterator[list[None]]:
    """A list that has an entry for every call of a collective."""
    calls: list[None] = []
    original = getattr(dist, collective)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return original(*args, **kwargs)

    setattr(dist, collective, call)
    try:
        yield calls
    finally:
        setattr(dist, collective, original)


def difference(rank: Rank) -> list[str]:
    """What the check says to equal tensors, and to ones that differ in their last bit."""
    tensors = [torch.arange(5.0), torch.tensor(3)]
    said = []
    for change in (0.0, 2.0**-21):
        tensors[0][4] += change * rank.rank
        try:
            check_same_tensors(tensors, rank, 7)
        except RankError as error:
            said.append(str(error))
        else:
            said.append("")
    return said


if __name__ == "__main__":
    main(Path(sys.argv[1]))
