"""PPO: rsl_rl's models, distributions and storage, with an update that stays on the device.

Schulman et al., "Proximal policy optimization algorithms", 2017 (https://arxiv.org/abs/1707.06347).
The mathematics are those of ``rsl_rl.algorithms.PPO``. What differs is how they are computed:

- Values, log-probabilities and normalized observations are computed once a rollout rather than at
  every step and mini-batch: neither networks nor normalizers change in between.
- Mini-batches are slices of one shuffled copy of the rollout.
- Gradients live in one flat buffer, averaged over ranks by one all-reduce a mini-batch.
- The learning rate and the losses are tensors, read back once an update.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from rsl_rl.algorithms import PPO as RslPPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor
from torch.distributions import Normal

from simtrain.env.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.ppo_cfg import ActorCfg, CriticCfg, PpoCfg
from simtrain.training.flat_gradients import FlatGradients
from simtrain.training.samples import Samples

MIN_LEARNING_RATE = 1e-5
MAX_LEARNING_RATE = 1e-2


@dataclass
class PolicyLosses:
    """The parts of PPO's loss that the policy answers for, 0-d tensors."""

    surrogate: Tensor
    entropy: Tensor
    kl: Tensor
    """Divergence of the policy from the one that collected the samples; no gradient."""


@dataclass
class Losses:
    """The parts of PPO's loss on a mini-batch, 0-d tensors without gradient."""

    surrogate: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor


class PPO(RslPPO):  # type: ignore[misc]
    """rsl_rl's PPO for feed-forward networks, over one or more ranks."""

    timer: PhaseTimer = NO_TIMER
    """Told what the update does; to be replaced by who wants to know how long that takes."""

    def __init__(
        self,
        cfg: PpoCfg,
        obs: TensorDict,
        num_actions: int,
        num_steps_per_env: int,
        rank: Rank,
    ) -> None:
        """Make networks, storage and optimizer.

        Args:
            cfg: hyper-parameters.
            obs: an observation of the environment, ``{group: (num_envs, size)}``.
            num_actions: size of the action vector.
            num_steps_per_env: steps of a rollout.
            rank: this process; every rank starts with the parameters of rank 0.
        """
        actor = make_actor(cfg.actor, obs, num_actions)
        groups = {"critic": _critic_groups(cfg, obs)}
        critic = MLPModel(obs, groups, "critic", 1, **_network(cfg.critic))
        num_envs = obs.batch_size[0]
        super().__init__(
            actor,
            critic,
            RolloutStorage("rl", num_envs, num_steps_per_env, obs, [num_actions], rank.device),
            num_learning_epochs=cfg.num_learning_epochs,
            num_mini_batches=cfg.num_mini_batches,
            clip_param=cfg.clip_param,
            gamma=cfg.gamma,
            lam=cfg.lam,
            value_loss_coef=cfg.value_loss_coef,
            entropy_coef=cfg.entropy_coef,
            learning_rate=cfg.learning_rate,
            max_grad_norm=cfg.max_grad_norm,
            optimizer=cfg.optimizer,
            use_clipped_value_loss=cfg.use_clipped_value_loss,
            schedule=cfg.schedule,
            desired_kl=cfg.desired_kl,
            normalize_advantage_per_mini_batch=cfg.normalize_advantage_per_mini_batch,
            device=rank.device,
        )
        self.rank = rank
        self._lr = torch.tensor(cfg.learning_rate, device=rank.device)
        optimizer = torch.optim.AdamW if cfg.optimizer == "adamw" else torch.optim.Adam
        networks = [list(self.actor.parameters()), list(self.critic.parameters())]
        self.optimizer = optimizer([p for ps in networks for p in ps], lr=self._lr, fused=True)
        # The divergence that the learning rate follows travels with the gradients.
        self.gradients = FlatGradients(networks, extra=1)
        # With this, fused Adam leaves parameters and moments as they are where it is 1.
        self._not_finite = torch.zeros((), device=rank.device)
        self.optimizer.found_inf = self._not_finite  # type: ignore[attr-defined]
        self._skipped = torch.zeros((), device=rank.device)
        self.skipped_steps = 0
        """Optimizer steps of the last update that were skipped: their gradients were not finite."""
        self._beside: ThreadPoolExecutor | None = None
        if rank.device.type == "cpu" and rank.threads > 1:
            self._beside = ThreadPoolExecutor(
                1, "value", torch.set_num_threads, (self.learning_threads,)
            )
        self._time_outs = torch.zeros_like(self.storage.dones, dtype=torch.bool)
        for tensor in self.tensors():
            rank.broadcast(tensor)

    def tensors(self) -> list[Tensor]:
        """Parameters and buffers of actor and critic, themselves and not copies."""
        return [t for net in (self.actor, self.critic) for t in net.state_dict().values()]

    @property
    def learning_threads(self) -> int:
        """Threads that each of the two networks may use within an operation of `update`."""
        return max(1, self.rank.threads // 2)

    def act(self, obs: TensorDict) -> Tensor:
        """Sample actions, ``(num_envs, num_actions)``, and record them with what led to them."""
        storage, actor = self.storage, self.actor
        step = storage.step
        for group, stored in storage.observations.items():
            stored[step] = obs[group]
        actions: Tensor = actor(obs, stochastic_output=True)
        storage.actions[step] = actions
        params = actor.output_distribution_params
        if storage.distribution_params is None:
            steps = storage.num_transitions_per_env
            storage.distribution_params = tuple(p.new_zeros(steps, *p.shape) for p in params)
        for stored, param in zip(storage.distribution_params, params, strict=True):
            stored[step] = param
        return actions

    def process_env_step(
        self, obs: TensorDict, rewards: Tensor, dones: Tensor, extras: dict[str, Any]
    ) -> None:
        """Record what the actions led to; `rewards` and `dones` are ``(num_envs,)``."""
        storage = self.storage
        storage.rewards[storage.step, :, 0] = rewards
        storage.dones[storage.step, :, 0] = dones
        self._time_outs[storage.step, :, 0] = extras["time_outs"]
        storage.step += 1

    def compute_returns(self, obs: TensorDict) -> None:
        """Log-probabilities, values, advantages and returns of the rollout, in place.

        `obs` is what follows the rollout's last step.

        Generalized advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).
        An episode that was cut by time is bootstrapped with the value of its last state.
        """
        st = self.storage
        steps = st.num_transitions_per_env
        log_prob = Normal(*st.distribution_params).log_prob(st.actions)
        torch.sum(log_prob, dim=-1, keepdim=True, out=st.actions_log_prob)
        st.values.copy_(self.critic(st.observations.flatten(0, 1)).view_as(st.values))
        next_values = self.critic(obs)
        rewards = st.rewards + self.gamma * st.values * self._time_outs
        not_done = 1.0 - st.dones.float()
        advantage = torch.zeros_like(next_values)
        for step in reversed(range(steps)):
            delta = rewards[step] + self.gamma * not_done[step] * next_values - st.values[step]
            advantage = delta + self.gamma * self.lam * not_done[step] * advantage
            st.advantages[step] = advantage
            next_values = st.values[step]
        torch.add(st.advantages, st.values, out=st.returns)
        if not self.normalize_advantage_per_mini_batch:
            self._normalize(st.advantages.view(1, -1))

    def update(self) -> dict[str, float]:
        """Improve policy and value on the rollout; mean losses, read back once."""
        self.timer.begin("mini_batches")
        samples = self._samples()
        sums = torch.zeros(4, device=self.device)
        for _ in range(self.num_learning_epochs):
            for batch in samples.mini_batches(self.num_mini_batches):
                losses = self._learn(batch)
                sums += torch.stack((losses.value, losses.surrogate, losses.entropy, losses.kl))
        self.timer.begin("other")
        obs = self.storage.observations.flatten(0, 1)
        self.actor.update_normalization(obs)
        self.critic.update_normalization(obs)
        self.storage.clear()
        sums /= self.num_learning_epochs * self.num_mini_batches
        self._all_reduce(sums, then="other")
        sums /= self.rank.world_size
        value, surrogate, entropy, kl, self.learning_rate, skipped = torch.cat(
            (sums, self._lr[None], self._skipped[None])
        ).tolist()
        self.skipped_steps = int(skipped)
        self._skipped.zero_()
        return {"value": value, "surrogate": surrogate, "entropy": entropy, "kl": kl}

    def policy_losses(self, batch: Samples) -> PolicyLosses:
        """PPO's losses of the policy on a mini-batch."""
        distribution = self.actor.distribution
        distribution.update(self.actor.mlp(batch.actor_input))
        with torch.no_grad():
            params = tuple(p.detach() for p in distribution.params)
            kl = distribution.kl_divergence(batch.distribution, params).mean()
        advantages = batch.advantages.squeeze(1)
        ratio = torch.exp(distribution.log_prob(batch.actions) - batch.log_prob.squeeze(1))
        clipped_ratio = ratio.clamp(1.0 - self.clip_param, 1.0 + self.clip_param)
        surrogate = torch.max(-advantages * ratio, -advantages * clipped_ratio).mean()
        return PolicyLosses(surrogate, distribution.entropy.mean(), kl)

    def value_loss(self, batch: Samples) -> Tensor:
        """PPO's loss of the value on a mini-batch, 0-d."""
        values = self.critic.mlp(batch.critic_input)
        loss: Tensor = (values - batch.returns).square()
        if self.use_clipped_value_loss:
            change = (values - batch.values).clamp(-self.clip_param, self.clip_param)
            loss = torch.max(loss, (batch.values + change - batch.returns).square())
        return loss.mean()

    def save(self) -> dict[str, Any]:
        """State of networks and optimizer under rsl_rl's keys, loadable by rsl_rl itself."""
        saved: dict[str, Any] = super().save()
        for group in saved["optimizer_state_dict"]["param_groups"]:
            group["lr"] = float(group["lr"])
            group["fused"] = None
        return saved

    def load(
        self,
        loaded_dict: dict[str, Any],
        load_cfg: dict[str, bool] | None = None,
        strict: bool = True,
    ) -> bool:
        """Take over what `save` returned, in place; see ``rsl_rl.algorithms.PPO.load``."""
        optimizer = loaded_dict["optimizer_state_dict"]
        groups = [{**group, "fused": True} for group in optimizer["param_groups"]]
        loaded_dict = {**loaded_dict, "optimizer_state_dict": {**optimizer, "param_groups": groups}}
        iteration = super().load(loaded_dict, load_cfg, strict)
        for group in self.optimizer.param_groups:
            self._lr.fill_(float(group["lr"]))
            group["lr"] = self._lr
        self.learning_rate = float(self._lr)
        return bool(iteration)

    def state(self) -> dict[str, Any]:
        """All that the next update depends on; the storage is empty between two of them."""
        return self.save()

    def set_state(
        self, state: dict[str, Any], *, optimizer: bool = True, learning_rate: bool = True
    ) -> None:
        """Continue from what `state` returned, in place.

        Args:
            state: what `state` returned.
            optimizer: whether to take over the optimizer's moments.
            learning_rate: whether to take over the learning rate.

        Raises:
            RuntimeError: the networks are of other shapes.
        """
        saved_rate = float(state["optimizer_state_dict"]["param_groups"][0]["lr"])
        rate = saved_rate if learning_rate else float(self._lr)
        self.load(state, {"actor": True, "critic": True, "optimizer": optimizer})
        self._lr.fill_(rate)
        self.learning_rate = rate

    @torch.no_grad()
    def _samples(self) -> Samples:
        """The rollout, flattened, normalized and shuffled."""
        st = self.storage
        obs = st.observations.flatten(0, 1)
        samples = Samples(
            actor_input=self.actor.get_latent(obs),
            critic_input=self.critic.get_latent(obs),
            actions=st.actions.flatten(0, 1),
            log_prob=st.actions_log_prob.flatten(0, 1),
            values=st.values.flatten(0, 1),
            returns=st.returns.flatten(0, 1),
            advantages=st.advantages.flatten(0, 1),
            distribution=tuple(p.flatten(0, 1) for p in st.distribution_params),
        )
        count = len(samples.actions)
        samples = samples.shuffled(torch.randperm(count, device=self.device))
        if self.normalize_advantage_per_mini_batch:
            # Mini-batches are the same in every epoch, so that once is enough.
            size = count // self.num_mini_batches
            used = samples.advantages[: size * self.num_mini_batches]
            self._normalize(used.view(self.num_mini_batches, size))
        return samples

    def _learn(self, batch: Samples) -> Losses:
        """One optimizer step, with gradients and divergence averaged over ranks; the losses.

        Policy and value have no parameter in common. On the CPU the value's gradients are computed
        beside the policy's, which needs no threads within an operation.
        """
        self.gradients.zero()
        if self._beside is None:
            value = self._learn_value(batch, self.timer)
            policy = self._learn_policy(batch)
        else:
            future = self._beside.submit(self._learn_value, batch, NO_TIMER)
            policy = self._learn_policy(batch)
            # Waiting for it is timed as the backward pass, whose last part it is.
            value = future.result()
        self.gradients.extra[0] = policy.kl
        self.timer.begin("optimizer")
        if self.rank.world_size > 1:
            self._all_reduce(self.gradients.buffer, then="optimizer")
            self.gradients.buffer /= self.rank.world_size
        if self.schedule == "adaptive":
            self._adapt_learning_rate(self.gradients.extra[0])
        norm = self.gradients.clip(self.max_grad_norm)
        # The gradients are those of all ranks, and so is what follows from them.
        self._not_finite.copy_(~norm.isfinite())
        self._skipped += self._not_finite
        self.optimizer.step()
        return Losses(policy.surrogate.detach(), value, policy.entropy.detach(), policy.kl)

    def _learn_policy(self, batch: Samples) -> PolicyLosses:
        self.timer.begin("forward")
        losses = self.policy_losses(batch)
        self.timer.begin("backward")
        (losses.surrogate - self.entropy_coef * losses.entropy).backward()
        return losses

    def _learn_value(self, batch: Samples, timer: PhaseTimer) -> Tensor:
        timer.begin("forward")
        loss = self.value_loss(batch)
        timer.begin("backward")
        (self.value_loss_coef * loss).backward()
        return loss.detach()

    def _adapt_learning_rate(self, kl: Tensor) -> None:
        """Lower the learning rate where the policy moved too far, raise it where too little."""
        lower = (self._lr / 1.5).clamp_(min=MIN_LEARNING_RATE)
        higher = (self._lr * 1.5).clamp_(max=MAX_LEARNING_RATE)
        too_near = (kl < self.desired_kl / 2.0) & (kl > 0.0)
        lr = torch.where(kl > self.desired_kl * 2.0, lower, torch.where(too_near, higher, self._lr))
        self._lr.copy_(lr)

    def _normalize(self, advantages: Tensor) -> None:
        """Subtract each row's mean and divide by its standard deviation over all ranks, in place.

        One all-reduce, of sums and sums of squares; double precision keeps their difference exact
        enough.
        """
        rows = advantages.double()
        sums = torch.stack((rows.sum(dim=1), rows.square().sum(dim=1)))
        self._all_reduce(sums, then="advantage")
        count = rows.shape[1] * self.rank.world_size
        mean = sums[0] / count
        variance = (sums[1] - sums[0] * mean).clamp_(min=0.0) / max(count - 1, 1)
        advantages -= mean.float().unsqueeze(1)
        advantages /= variance.sqrt().float().unsqueeze(1) + 1e-8

    def _all_reduce(self, tensor: Tensor, then: str) -> None:
        """Sum `tensor` over all ranks, in place; `then` is the phase that follows."""
        if self.rank.world_size > 1:
            self.timer.begin("all_reduce")
            self.rank.all_reduce(tensor)
            self.timer.begin(then)


def make_actor(cfg: ActorCfg, obs: TensorDict, num_actions: int) -> MLPModel:
    """The policy network of a task with such observations and actions."""
    return MLPModel(
        obs,
        {"actor": list(cfg.obs_groups)},
        "actor",
        num_actions,
        **_network(cfg),
        distribution_cfg={
            "class_name": "GaussianDistribution",
            "init_std": cfg.init_std,
            "std_type": cfg.std_type,
        },
    )


def _network(cfg: ActorCfg | CriticCfg) -> dict[str, Any]:
    return {
        "hidden_dims": cfg.hidden_dims,
        "activation": cfg.activation,
        "obs_normalization": cfg.obs_normalization,
    }


def _critic_groups(cfg: PpoCfg, obs: TensorDict) -> list[str]:
    there = set(cfg.critic.obs_groups) <= set(obs.keys())
    return list(cfg.critic.obs_groups if there else cfg.actor.obs_groups)
