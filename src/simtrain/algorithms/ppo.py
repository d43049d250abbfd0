"""PPO: rsl_rl's models, distributions and storage, with an update that stays on the device.

Schulman et al., "Proximal policy optimization algorithms", 2017 (https://arxiv.org/abs/1707.06347).
The mathematics are those of ``rsl_rl.algorithms.PPO``, computed in another way: parameters and
gradients in one flat buffer each; the learning rate and the losses as tensors, read back once an
update. What depends on the kinds of models is their learner's (`simtrain.algorithms.learners`).
"""

from dataclasses import fields
from typing import Any, Protocol

import torch
from rsl_rl.algorithms import PPO as RslPPO
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.advantages import make_estimator
from simtrain.algorithms.flat_gradients import FlatGradients
from simtrain.algorithms.learners import LOSSES, Learner
from simtrain.algorithms.learners.gaussian_mlp import GaussianMlpLearner
from simtrain.algorithms.networks import make_actor, make_critic, update_normalization
from simtrain.algorithms.rollout import Rollout, Transition
from simtrain.launch.rank import Rank
from simtrain.phase_timer import NO_TIMER, PhaseTimer
from simtrain.ppo_cfg import PpoCfg

MIN_LEARNING_RATE, MAX_LEARNING_RATE = 1e-5, 1e-2


class MiniBatchGraphs(Protocol):
    """Replays `PPO.learn_mini_batch`."""

    def prepare(self) -> bool:
        """Make what is replayed, if need be; whether there is any. A collective."""

    def replay(self, number: int) -> None:
        """See `PPO.learn_mini_batch`."""


class PPO(RslPPO):  # type: ignore[misc]
    """rsl_rl's PPO over one or more ranks."""

    storage: Rollout

    def __init__(
        self,
        cfg: PpoCfg,
        obs: TensorDict,
        num_actions: int,
        num_steps_per_env: int,
        rank: Rank,
        timer: PhaseTimer = NO_TIMER,
    ) -> None:
        """Every rank starts as rank 0 does; `obs` is ``{group: (num_envs, *shape)}``."""
        actor, critic = make_actor(cfg.actor, obs, num_actions), make_critic(cfg, obs)
        settings = {f.name: getattr(cfg, f.name) for f in fields(cfg)}
        settings |= {"actor": actor, "critic": critic, "storage": None}
        super().__init__(**settings, device=rank.device)
        self.rank, self.timer = rank, timer
        self._make_optimizer(torch.optim.AdamW if cfg.optimizer == "adamw" else torch.optim.Adam)
        self.learner = self._make_learner(obs, (num_actions, num_steps_per_env))
        self.storage = self.learner.storage
        self._estimate_advantages = make_estimator(rank.device)
        for tensor in self.tensors():
            rank.broadcast(tensor)
        self._ranks_add_alike = rank.world_size == 1 or _add_alike(rank)
        """Whether equal numbers have equal sums on all ranks, to the last bit. Ranks apply equal
        gradients to equal parameters, one by one; only the norms in between are sums."""

    def tensors(self) -> list[Tensor]:
        """Parameters and buffers of actor and critic, themselves and not copies."""
        return [t for net in (self.actor, self.critic) for t in net.state_dict().values()]

    @property
    def std(self) -> Tensor:
        """Standard deviations of the policy's actions, ``(num_actions,)``."""
        return self.learner.std

    @torch.no_grad()
    def act(self, obs: TensorDict) -> Tensor:
        """Sample actions, ``(num_envs, num_actions)``, valid until the next rollout; record."""
        if self.storage.step == 0:
            self.begin_rollout()
        return self.act_in(obs, self.storage.transitions[self.storage.step])

    def process_env_step(
        self, obs: TensorDict, rewards: Tensor, dones: Tensor, extras: dict[str, Any]
    ) -> None:
        """Record what the actions led to; `rewards` and `dones` are ``(num_envs,)``."""
        transition = self.storage.transitions[self.storage.step]
        self.record(transition, rewards, dones, extras["time_outs"])
        self.storage.step += 1

    def record(
        self, transition: Transition, rewards: Tensor, dones: Tensor, time_outs: Tensor
    ) -> None:
        """Write to `transition`, in place, what the actions led to; recurrent models forget."""
        transition.record(rewards, dones, time_outs)
        self.learner.reset(dones)

    def begin_rollout(self) -> None:
        """Note what holds for all steps of a rollout, in place; `act` does so by itself."""
        self.learner.begin_rollout()

    @torch.no_grad()
    def act_in(self, obs: TensorDict, transition: Transition) -> Tensor:
        """Sample actions, ``(num_envs, num_actions)``; written to `transition`, as is `obs`."""
        for group, stored in transition.observations.items():
            stored.copy_(obs[group])
        return self.learner.act(obs, transition)

    @torch.no_grad()
    def compute_returns(self, obs: TensorDict) -> None:
        """Values, advantages and returns of the rollout, in place; `obs` follows its last step."""
        st, last = self.storage, self.learner.evaluate(obs)
        self._estimate_advantages(st, last, self.gamma, self.lam)
        if not self.normalize_advantage_per_mini_batch:
            self._normalize(st.advantages.view(1, -1))

    @torch.no_grad()
    def update(self, graphs: MiniBatchGraphs | None = None) -> dict[str, float]:
        """Improve policy and value on the rollout, by `graphs` if given; mean losses."""
        self.timer.begin("mini_batches")
        advantages = self.learner.shuffle()
        if self.normalize_advantage_per_mini_batch:
            # Mini-batches are the same in every epoch, so that once is enough.
            self._normalize(advantages)
        learn = self.learn_mini_batch
        if graphs is not None:
            self.timer.begin("other")
            if graphs.prepare():
                self.timer.begin("update_graph")
                learn = graphs.replay
        self._losses.zero_()
        for _ in range(self.num_learning_epochs):
            for i in range(self.num_mini_batches):
                learn(i)
        self.timer.begin("other")
        for network in (self.actor, self.critic):
            update_normalization(network, self.storage.observations.flatten(0, 1), self.rank)
        self.storage.clear()
        means = self._losses / (self.num_learning_epochs * self.num_mini_batches)
        self._all_reduce(means, then="other")
        means /= self.rank.world_size
        numbers = torch.cat((means, self._lr[None], self._skipped[None]))
        with self.rank.progress:  # the one place that waits for the device, and so for other ranks'
            *losses, self.learning_rate, skipped = numbers.tolist()
        self.skipped_steps = int(skipped)
        self._skipped.zero_()
        return dict(zip(LOSSES, losses, strict=True))

    def learn_mini_batch(self, number: int) -> None:
        """Learn from a mini-batch of the shuffled rollout, in place."""
        self._losses += self.learn(self.learner.mini_batch(number))

    @torch.no_grad()
    def learn(self, batch: Any) -> Tensor:
        """One optimizer step, in place; the mini-batch's `LOSSES`, not averaged over ranks."""
        losses = self.learner.backward(batch, self)
        self.gradients.extra[0] = losses[-1]
        self.timer.begin("optimizer")
        if self.rank.world_size > 1:
            self._all_reduce(self.gradients.buffer, then="optimizer")
            self.gradients.buffer /= self.rank.world_size
        if self.schedule == "adaptive":
            adapt_learning_rate(self._lr, self.gradients.extra[0], self.desired_kl)
        norms = self.gradients.norms()
        if not self._ranks_add_alike:
            self.rank.broadcast(norms)
        self.gradients.clip(norms, self.max_grad_norm)
        # The gradients are those of all ranks, and so is what follows from them.
        self._not_finite.copy_(~norms.sum().isfinite())
        self._skipped += self._not_finite
        self.optimizer.step()
        self.learner.after_step()
        return losses

    def update_state(self) -> list[Tensor]:
        """What `learn_mini_batch` changes and its next call depends on; not copies."""
        moments = self._moments.values()
        return [self.gradients.parameters.data, self._lr, self._skipped, self._losses, *moments]

    def save(self) -> dict[str, Any]:
        """State of networks and optimizer under rsl_rl's keys, loadable by rsl_rl itself."""
        saved: dict[str, Any] = super().save()
        optimizer = self.gradients.split_state(saved["optimizer_state_dict"])
        (group,) = optimizer["param_groups"]
        group |= {"lr": float(group["lr"]), "fused": None}
        return {**saved, "optimizer_state_dict": optimizer}

    def load(
        self,
        loaded_dict: dict[str, Any],
        load_cfg: dict[str, bool] | None = None,
        strict: bool = True,
    ) -> bool:
        """Take over what `save` returned, in place; see ``rsl_rl.algorithms.PPO.load``."""
        if load_cfg is None:
            load_cfg = dict.fromkeys(("actor", "critic", "optimizer", "iteration"), True)
        optimizer = loaded_dict["optimizer_state_dict"]
        saved = self.gradients.join_state(optimizer)
        iteration = super().load(loaded_dict, {**load_cfg, "optimizer": False}, strict)
        if load_cfg.get("optimizer"):
            for name, moment in self._moments.items():
                # A state from before the first step has none.
                moment.copy_(saved[name]) if saved else moment.zero_()
            self.learning_rate = float(self._lr.fill_(optimizer["param_groups"][0]["lr"]))
        return bool(iteration)

    state = save  # the storage is empty between two updates

    def set_state(
        self, state: dict[str, Any], *, optimizer: bool = True, learning_rate: bool = True
    ) -> None:
        """Take over `state`, in place, moments and rate if told; RuntimeError if shapes differ."""
        saved_rate = state["optimizer_state_dict"]["param_groups"][0]["lr"]
        rate = float(saved_rate if learning_rate else self._lr)
        self.load(state, {"actor": True, "critic": True, "optimizer": optimizer})
        self.learning_rate = float(self._lr.fill_(rate))

    def set_hyper_parameter(self, name: str, value: float) -> None:
        """Change a number of the configuration that an update reads anew, such as ``gamma``."""
        setattr(self, name, value)
        if name == "learning_rate":
            self._lr.fill_(value)

    def _make_learner(self, obs: TensorDict, shape: tuple[int, int]) -> Learner:
        """The fastest for these models; `shape` is actions and steps of a rollout."""
        models, sizes = (self.actor, self.critic), (*shape, self.num_mini_batches)
        return GaussianMlpLearner(models, obs, sizes, self.rank, self.timer)

    def _make_optimizer(self, kind: type[torch.optim.Adam]) -> None:
        """A fused Adam of all parameters in one tensor, and its state on the device."""
        # The divergence that the learning rate follows travels with the gradients.
        self.gradients = FlatGradients([self.actor.parameters(), self.critic.parameters()], extra=1)
        parameters = self.gradients.parameters
        zero = torch.zeros((), device=self.rank.device)
        self._lr: Tensor = torch.full_like(zero, self.learning_rate)
        self.optimizer = kind([parameters], lr=self._lr, fused=True)
        # Adam would make these at its first step; a state is loaded into them at any time.
        moments = {name: torch.zeros_like(parameters.data) for name in ("exp_avg", "exp_avg_sq")}
        self._moments = {"step": zero.clone(), **moments}
        self.optimizer.state[parameters] = self._moments
        # With this, fused Adam leaves parameters and moments as they are where it is 1.
        self._not_finite = self.optimizer.found_inf = zero.clone()  # type: ignore[attr-defined]
        self._skipped: Tensor = zero.clone()
        self.skipped_steps = 0  # of the last update: their gradients were not finite
        self._losses: Tensor = zero.repeat(len(LOSSES))

    def _normalize(self, advantages: Tensor) -> None:
        """Subtract each row's mean and divide by its standard deviation, of all ranks, in place."""
        rows = advantages.double().flatten(1)  # sums of squares are exact enough
        sums = torch.stack((rows.sum(dim=1), rows.square().sum(dim=1)))
        self._all_reduce(sums, then="advantage")
        count = rows.shape[1] * self.rank.world_size
        mean = sums[0] / count
        variance = (sums[1] - sums[0] * mean).clamp_(min=0.0) / max(count - 1, 1)
        shape = (-1, *[1] * (advantages.ndim - 1))
        advantages -= mean.float().view(shape)
        advantages /= variance.sqrt().float().view(shape) + 1e-8

    def _all_reduce(self, tensor: Tensor, then: str) -> None:
        """Sum `tensor` over all ranks, in place; `then` is the phase that follows."""
        if self.rank.world_size > 1:
            self.timer.begin("all_reduce")
            self.rank.all_reduce(tensor)
            self.timer.begin(then)


def _add_alike(rank: Rank) -> bool:
    """Whether PyTorch adds the entries of a large tensor in one order on the devices of all ranks.

    What decides that is the GPU's model, or the CPU's instructions and the number of threads.
    """
    mine: tuple[str, int] = torch.backends.cpu.get_cpu_capability(), rank.threads
    if rank.device.type == "cuda":
        mine = torch.cuda.get_device_name(rank.device), 0
    return len(set(rank.all_gather_objects(mine))) == 1


def adapt_learning_rate(rate: Tensor, kl: Tensor, desired_kl: float) -> None:
    """Change `rate`, 0-d, by rsl_rl's rule, in place: `kl`, 0-d, within a factor 2 of its aim."""
    lower = (rate / 1.5).clamp_(min=MIN_LEARNING_RATE)
    higher = (rate * 1.5).clamp_(max=MAX_LEARNING_RATE)
    too_near = (kl < desired_kl / 2.0) & (kl > 0.0)
    rate.copy_(torch.where(kl > desired_kl * 2.0, lower, torch.where(too_near, higher, rate)))
