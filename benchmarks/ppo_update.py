"""How fast PPO's update is beside rsl_rl's own, on the same rollout; and that the losses agree.

  uv run python benchmarks/ppo_update.py
  uv run python benchmarks/ppo_update.py --hidden-dims 512 256 128 --num-envs 4096 --device cuda:0
  uv run python benchmarks/ppo_update.py --symmetry.augment
  uv run python benchmarks/ppo_update.py --model gru

Both start from the same networks, collect the same made-up rollout, and shuffle it alike. They take
turns, update after update, so that a machine whose speed drifts still gives an honest ratio. What
is timed is what follows a rollout: returns and the update; rsl_rl computes values and
log-probabilities while it collects, which is left out of its time and is in ours.

Prints one JSON line: median seconds of both, their ratio, and the largest difference of a loss.
"""

from __future__ import annotations

# ruff: noqa: E402 - the OpenMP runtime reads its settings when torch is imported
from simtrain.launch.processes import limit_spinning

limit_spinning()

import copy
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from rsl_rl.algorithms import PPO as RslPPO
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.cfg import Activation, ActorCfg, CriticCfg, PpoCfg, SymmetryCfg
from simtrain.algorithms.ppo import PPO
from simtrain.algorithms.symmetry import MirrorMap, MirrorMaps
from simtrain.cli.parse import parse_flags
from simtrain.cli.terminal import run_command
from simtrain.launch.rank import Rank


@dataclass
class Options:
    """Compare PPO's update with rsl_rl's."""

    hidden_dims: tuple[int, ...] = (128, 128)
    """Units of the hidden layers of both networks."""
    activation: Activation = "elu"
    """Activation function of both."""
    num_envs: int = 1024
    """Environments."""
    num_steps_per_env: int = 24
    """Steps of the rollout."""
    obs_size: int = 48
    """Length of an observation."""
    num_actions: int = 12
    """Length of an action."""
    epochs: int = 5
    """Passes over the rollout."""
    mini_batches: int = 4
    """Mini-batches a pass."""
    symmetry: SymmetryCfg = field(default_factory=SymmetryCfg)
    model: Literal["mlp", "gru", "lstm"] = "mlp"
    """Network of both, for policy and value."""
    rnn_hidden_dim: int = 128
    """Units of a gru or lstm."""
    rounds: int = 9
    """Updates of each that are timed, after one that is not."""
    threads: int = len(os.sched_getaffinity(0))
    """CPU threads of both."""
    device: str = "cpu"
    """Where both compute."""


@dataclass(frozen=True)
class Rollout:
    """What made-up environments said, whatever the actions were; leading axis the step."""

    observations: Tensor
    rewards: Tensor
    dones: Tensor
    time_outs: Tensor


def main() -> int:
    options = parse_flags("ppo_update.py", Options(), sys.argv[1:])
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    ours, theirs = learners(options)
    seconds: dict[str, list[float]] = {"ours": [], "rsl_rl": []}
    difference = 0.0
    for number in range(options.rounds + 1):
        rollout = make_rollout(options)
        losses = {}
        for name, ppo in (("ours", ours), ("rsl_rl", theirs))[:: 1 if number % 2 else -1]:
            torch.set_num_threads(options.threads)
            last = collect(ppo, rollout, seed=number)
            torch.manual_seed(number)  # the same permutation
            if name == "ours":
                torch.set_num_threads(ours.learner.threads)
            synchronize(options.device)
            start = time.perf_counter()
            with torch.inference_mode():
                ppo.compute_returns(last)
            losses[name] = ppo.update()
            synchronize(options.device)
            seconds[name].append(time.perf_counter() - start)
        if number == 0:  # from the same networks; later ones drift apart by rounding
            difference = max(
                abs(losses["ours"][loss] - value) for loss, value in losses["rsl_rl"].items()
            )
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    result = {
        **asdict(options),
        "samples": options.num_envs * options.num_steps_per_env,
        "ours_s": round(medians["ours"], 5),
        "rsl_rl_s": round(medians["rsl_rl"], 5),
        "speedup": round(medians["rsl_rl"] / medians["ours"], 3),
        "speedup_of_fastest": round(min(seconds["rsl_rl"][1:]) / min(seconds["ours"][1:]), 3),
        "loss_difference": difference,
    }
    print(json.dumps(result))
    return 0


def learners(options: Options) -> tuple[PPO, RslPPO]:
    """Ours and rsl_rl's, with the same networks and settings."""
    device = torch.device(options.device)
    model: Any = {"model": options.model, "rnn_hidden_dim": options.rnn_hidden_dim}
    cfg = PpoCfg(
        ActorCfg(options.hidden_dims, options.activation, **model),
        CriticCfg(options.hidden_dims, options.activation, **model),
        num_learning_epochs=options.epochs,
        num_mini_batches=options.mini_batches,
        symmetry=options.symmetry,
    )
    obs = observed(torch.zeros(options.num_envs, options.obs_size, device=device))
    rank = Rank(0, 0, 1, device, 0, options.threads)
    steps = options.num_steps_per_env
    sizes = (options.obs_size, options.num_actions)
    seen, acted = (made_up(size, options.device) for size in sizes)
    mirror = MirrorMaps({"actor": seen}, acted)
    ours = PPO(cfg, obs, options.num_actions, steps, rank, mirror=mirror)
    theirs = RslPPO(
        copy.deepcopy(ours.actor),
        copy.deepcopy(ours.critic),
        RolloutStorage("rl", options.num_envs, steps, obs, [options.num_actions], options.device),
        num_learning_epochs=options.epochs,
        num_mini_batches=options.mini_batches,
        learning_rate=cfg.learning_rate,
        entropy_coef=cfg.entropy_coef,
        schedule=cfg.schedule,
        desired_kl=cfg.desired_kl,
        symmetry_cfg=symmetry_of_rsl_rl(options.symmetry, mirror),
        device=options.device,
    )
    for ppo in (ours, theirs):
        ppo.train_mode()
        ppo.actor.reset()  # of a state that was found out while it was made
        ppo.critic.reset()
    return ours, theirs


def made_up(size: int, device: str) -> MirrorMap:
    """A reflection that exchanges neighbours, and turns every third pair's signs."""
    places = torch.arange(size - size % 2, device=device).view(-1, 2).flip(1).flatten()
    index = torch.cat((places, torch.arange(len(places), size, device=device)))
    return MirrorMap(index, 1.0 - 2.0 * ((torch.arange(size, device=device) // 2) % 3 == 0))


def symmetry_of_rsl_rl(cfg: SymmetryCfg, mirror: MirrorMaps) -> dict[str, Any] | None:
    """Settings of rsl_rl's symmetry, with a function such as its users write."""
    if not cfg.is_used:
        return None

    def with_images(
        env: object, obs: TensorDict | None, actions: Tensor | None
    ) -> tuple[TensorDict | None, Tensor | None]:
        if obs is not None:
            both = torch.cat((obs["actor"], mirror.observations["actor"](obs["actor"])))
            obs = observed(both)
        return obs, None if actions is None else torch.cat((actions, mirror.actions(actions)))

    return {
        "env": None,
        "data_augmentation_func": with_images,
        "use_data_augmentation": cfg.augment,
        "use_mirror_loss": cfg.mirror_loss_coef > 0.0,
        "mirror_loss_coeff": cfg.mirror_loss_coef,
    }


def make_rollout(options: Options) -> Rollout:
    """Random numbers, with an episode in a hundred ending at a step, half of them cut."""
    shape = (options.num_steps_per_env, options.num_envs)
    device = options.device
    dones = torch.rand(shape, device=device) < 0.01
    return Rollout(
        observations=torch.randn(shape[0] + 1, shape[1], options.obs_size, device=device),
        rewards=torch.randn(shape, device=device),
        dones=dones,
        time_outs=dones & (torch.rand(shape, device=device) < 0.5),
    )


@torch.inference_mode()
def collect(ppo: RslPPO, rollout: Rollout, seed: int) -> TensorDict:
    """Let `ppo` act through the rollout; what follows its last step."""
    torch.manual_seed(seed)  # the same actions
    *observations, last = rollout.observations
    steps = zip(observations, rollout.rewards, rollout.dones, rollout.time_outs, strict=True)
    if isinstance(ppo, PPO):
        ppo.begin_rollout()
        for transition, (obs, rewards, dones, time_outs) in zip(
            ppo.storage.transitions, steps, strict=True
        ):
            ppo.act_in(observed(obs), transition)
            ppo.record(transition, rewards, dones, time_outs)
            ppo.storage.step += 1
    else:
        for obs, rewards, dones, time_outs in steps:
            ppo.act(observed(obs))
            ppo.process_env_step(observed(obs), rewards, dones, {"time_outs": time_outs})
    return observed(last)


def observed(obs: Tensor) -> TensorDict:
    return TensorDict({"actor": obs}, batch_size=[len(obs)])


def synchronize(device: str) -> None:
    """Wait for a GPU."""
    if device != "cpu":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    run_command(main)
