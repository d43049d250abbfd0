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
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from tensordict import TensorDict
from tiny_training import make_context, run_for

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
from simtrain.config.tasks import default_config
from simtrain.env.randomness import seed_everything
from simtrain.errors import RankError
from simtrain.launch.phase_timer import NO_TIMER, CpuTimer, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.training.context import Resumption
from simtrain.training.features.checkpoint import check_same_tensors
from simtrain.training.loop import Report, Trainer
from simtrain.training.transfer import init_networks
from simtrain.training.worker import make_trainer, run_worker

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


SMALL = PpoCfg(ActorCfg((8,)), CriticCfg((8,)), num_learning_epochs=2)
CARTPOLE = replace(
    default_config("cartpole-balance"), num_envs=4, num_steps_per_env=8, save_interval=1, ppo=SMALL
)
CARTPOLE.env.episode_length_s = 1.0


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
        "state": cartpole(one).env.bind("qpos").clone(),
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
        "state": cartpole(rank).env.bind("qpos").clone(),
        "trained": trained(rank),
        "begun": begun(rank, results.with_suffix(".start")),
        "trained on other hardware": trained_on_other_hardware(rank),
        "report": report(rank),
        "difference": difference(rank),
        "skipped": skipped(rank),
        "phases": phases(rank),
    }
    resumed(rank, results.with_suffix(".runs"))
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
        ppo.begin_rollout()
        for step, (obs, rewards, dones, time_outs) in enumerate(rollout):
            transition = ppo.storage.transitions[step]
            ppo.act_in(observed(obs), transition)
            # Actions by the given noise: the ranks' own generators have drawn others.
            mean, std = ppo.storage.distribution_params
            ppo.storage.actions[step] = mean[step] + std[step] * noise[step][mine]
            if model != "mlp":  # which computes these later
                policy = torch.distributions.Normal(mean[step], std[step])
                log_prob = policy.log_prob(ppo.storage.actions[step]).sum(dim=1, keepdim=True)
                ppo.storage.actions_log_prob[step] = log_prob
            ppo.record(transition, rewards[mine], dones[mine], (dones & time_outs)[mine])
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


def cartpole(rank: Rank, timer: PhaseTimer = NO_TIMER) -> Trainer:
    seed_everything(rank.seed)
    return make_trainer(CARTPOLE, rank, timer)


def tensors_of(trainer: Trainer) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in trainer.ppo.tensors()]


def trained(rank: Rank) -> list[torch.Tensor]:
    """Parameters and buffers after 20 iterations on the real task."""
    run_for(trainer := cartpole(rank), 20)
    return tensors_of(trainer)


def begun(rank: Rank, path: Path) -> list[torch.Tensor]:
    """Parameters and buffers after ``--init-from`` a checkpoint of ones that rank 0 alone has."""
    trainer = cartpole(rank)
    if rank.is_main:
        networks = trainer.ppo.networks.items()
        ones = {k: {n: torch.ones_like(t) for n, t in m.state_dict().items()} for k, m in networks}
        torch.save({f"{name}_state_dict": state for name, state in ones.items()}, path)
    config = replace(CARTPOLE, init_from=str(path) if rank.is_main else "gone")
    init_networks(make_context(path, config, rank), trainer.ppo)
    return tensors_of(trainer)


def resumed(rank: Rank, folder: Path) -> None:
    """Six iterations in one go, and six of which the last three are by a run that is resumed."""
    for name, parts in {"whole": (6,), "resumed": (3, 6)}.items():
        run = folder / name
        run.mkdir(parents=True, exist_ok=True)
        for iterations in parts:
            state = Resumption(run / "resume.pt", True, ()) if iterations > parts[0] else None
            config = replace(CARTPOLE, max_iterations=iterations)
            run_worker(make_context(run, config, rank, resumption=state))


def trained_on_other_hardware(rank: Rank) -> list[torch.Tensor]:
    """Parameters after an update in which rank 1 adds in another order than rank 0 does."""
    trainer = cartpole(replace(rank, threads=1 + rank.rank))
    ppo = trainer.ppo
    ppo.max_grad_norm = 1e-3  # so that the norms matter
    norms = ppo.optimizer.norms
    ppo.optimizer.norms = lambda: norms() * (1.0 + rank.rank * 2.0**-20)
    run_for(trainer, 1)
    return tensors_of(trainer)


def skipped(rank: Rank) -> tuple[int, bool]:
    """Steps skipped as rank 1 alone has a return that is not finite; whether nothing changed."""
    trainer = cartpole(rank)
    before = [tensor.clone() for tensor in trainer.ppo.actor.parameters()]
    trainer.collect()
    if rank.rank == 1:
        trainer.ppo.storage.returns.fill_(torch.inf)
    trainer.ppo.update()
    same = all(map(torch.equal, before, trainer.ppo.actor.parameters()))
    return trainer.ppo.skipped_steps, same


def phases(rank: Rank) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Three iterations' seconds of each phase on this rank, and all metrics."""
    iterations = run_for(cartpole(rank, CpuTimer()), 3)
    return [(iteration.phases, iteration.metrics) for iteration in iterations]


def report(rank: Rank) -> Report:
    """Numbers over both ranks, of which rank 1 alone has some."""
    sums = {"return": (1.0 + rank.rank, 1.0 + rank.rank), "idle": (0.0, 0.0)}
    if rank.rank == 1:
        sums["curriculum"] = (5.0, 1.0)
    warnings = ("it is hot",) if rank.rank == 1 else ()
    return Report(sums, {"seconds": 1.0 + rank.rank}, rank.rank == 1, False, warnings).of_all(rank)


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
            said.append("")
        except RankError as error:
            said.append(str(error))
    return said


if __name__ == "__main__":
    main(Path(sys.argv[1]))
