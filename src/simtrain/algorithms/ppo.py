"""PPO: rsl_rl's models, distributions and storage, with an update that stays on the device.

Schulman et al., "Proximal policy optimization algorithms", 2017 (https://arxiv.org/abs/1707.06347).
The mathematics are those of ``rsl_rl.algorithms.PPO``. What differs is how they are computed:

- Values, log-probabilities and normalized observations are computed once a rollout rather than at
  every step and mini-batch: neither networks nor normalizers change in between.
- Mini-batches are slices of one shuffled copy of the rollout.
- Networks run in buffers that are made once, and gradients come from formulas: no autograd.
- Parameters and gradients live in one flat buffer each: one all-reduce and one Adam a mini-batch.
- The learning rate and the losses are tensors, read back once an update.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from rsl_rl.algorithms import PPO as RslPPO
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.advantages import make_estimator
from simtrain.algorithms.buffered_mlp import BufferedMlp, normalized_input
from simtrain.algorithms.flat_gradients import FlatGradients
from simtrain.algorithms.learning_rate import adapt_learning_rate
from simtrain.algorithms.losses import (
    Losses,
    PolicyLosses,
    StandardDeviation,
    log_prob,
    policy_losses,
    value_loss,
)
from simtrain.algorithms.networks import make_actor, make_critic, update_normalization
from simtrain.algorithms.rollout import Outcome, Rollout, Row
from simtrain.algorithms.samples import Samples
from simtrain.env.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.ppo_cfg import PpoCfg


class MiniBatchGraphs(Protocol):
    """Replays what `PPO.learn` does."""

    refusal: str | None
    """Why this rank's mini-batches are not replayed; None if they are, or another refused."""

    def ready(self) -> bool:
        """Whether they can be replayed; all ranks call it together."""

    def learn(self, number: int) -> None:
        """See `PPO.learn`."""

    def clear(self) -> None:
        """Forget what was recorded, because tensors that it uses have been replaced."""


class PPO(RslPPO):  # type: ignore[misc]
    """rsl_rl's PPO for feed-forward networks, over one or more ranks."""

    def __init__(
        self,
        cfg: PpoCfg,
        obs: TensorDict,
        num_actions: int,
        num_steps_per_env: int,
        rank: Rank,
        timer: PhaseTimer = NO_TIMER,
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
        critic = make_critic(cfg, obs)
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
        self.timer = timer
        self._lr = torch.tensor(cfg.learning_rate, device=rank.device)
        networks = [list(self.actor.parameters()), list(self.critic.parameters())]
        # The divergence that the learning rate follows travels with the gradients.
        self.gradients = FlatGradients(networks, extra=1)
        optimizer = torch.optim.AdamW if cfg.optimizer == "adamw" else torch.optim.Adam
        self.optimizer = optimizer([self.gradients.parameters], lr=self._lr, fused=True)
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
        count = num_envs * num_steps_per_env
        rows = max(num_envs, count // cfg.num_mini_batches)
        self._policy = BufferedMlp(self.actor.mlp, rows)
        self._value = BufferedMlp(self.critic.mlp, rows)
        self._rows = rows
        self._std = StandardDeviation(self.actor.distribution)
        self.rollout = Rollout(self.storage, self.actor.obs_dim, self.critic.obs_dim)
        """The rollout's buffers; `storage` is rsl_rl's part of them."""
        self._noise = torch.zeros_like(self.storage.actions[0])
        self._estimate_advantages = make_estimator(rank.device)
        self._shuffled = self._whole_rollout().like()
        self._batches = list(self._shuffled.mini_batches(cfg.num_mini_batches))
        # Of the update: value, surrogate, entropy, divergence.
        self._losses = torch.zeros(4, device=rank.device)
        for tensor in self.tensors():
            rank.broadcast(tensor)

    def tensors(self) -> list[Tensor]:
        """Parameters and buffers of actor and critic, themselves and not copies."""
        return [t for net in (self.actor, self.critic) for t in net.state_dict().values()]

    @property
    def learning_threads(self) -> int:
        """Threads that each of the two networks may use within an operation of `update`."""
        return max(1, self.rank.threads // 2)

    @property
    def std(self) -> Tensor:
        """Standard deviations of the policy's actions, ``(num_actions,)``."""
        return self._std()

    @torch.no_grad()
    def act(self, obs: TensorDict) -> Tensor:
        """Sample actions, ``(num_envs, num_actions)``, and record them with what led to them.

        They stay as they are until the next rollout.
        """
        if self.storage.step == 0:
            self.begin_rollout()
        return self.act_in(obs, self.rollout.rows[self.storage.step])

    def process_env_step(
        self, obs: TensorDict, rewards: Tensor, dones: Tensor, extras: dict[str, Any]
    ) -> None:
        """Record what the actions led to; `rewards` and `dones` are ``(num_envs,)``."""
        self.rollout.rows[self.storage.step].record(rewards, dones, extras["time_outs"])
        self.storage.step += 1

    @torch.no_grad()
    def begin_rollout(self) -> None:
        """Note what holds for all steps of a rollout, in place; `act` does so by itself."""
        self.rollout.std.copy_(self.std)

    @torch.no_grad()
    def act_in(self, obs: TensorDict, row: Row) -> Tensor:
        """Sample actions, ``(num_envs, num_actions)``, recorded with what led to them in `row`."""
        for group, stored in zip(self.rollout.groups, row.observations, strict=True):
            stored.copy_(obs[group])
        normalized_input(self.actor, obs, out=row.actor_input)
        mean = self._policy(row.actor_input, out=row.mean)
        noise = self._noise.normal_()
        return torch.addcmul(mean, noise, self.rollout.std, out=row.actions)

    @torch.no_grad()
    def compute_returns(self, obs: TensorDict) -> None:
        """Log-probabilities, values, advantages and returns of the rollout, in place.

        `obs` is what follows the rollout's last step.
        """
        st, rollout = self.storage, self.rollout
        z = (st.actions - rollout.mean).div_(rollout.std)
        st.actions_log_prob.copy_(log_prob(z, rollout.std))
        normalized_input(self.critic, st.observations, out=rollout.critic_input)
        inputs, values = rollout.critic_input.flatten(0, 1), st.values.flatten(0, 1)
        for part, out in zip(inputs.split(self._rows), values.split(self._rows), strict=True):
            self._value(part, out=out)
        last = self._value(normalized_input(self.critic, obs, out=rollout.last_input))
        self._estimate_advantages(
            Outcome(st.rewards, st.dones, rollout.time_outs, st.values),
            last,
            gamma=self.gamma,
            lam=self.lam,
            advantages=st.advantages,
            returns=st.returns,
        )
        if not self.normalize_advantage_per_mini_batch:
            self._normalize(st.advantages.view(1, -1))

    @torch.no_grad()
    def update(self, graphs: MiniBatchGraphs | None = None) -> dict[str, float]:
        """Improve policy and value on the rollout; mean losses, read back once."""
        self.timer.begin("mini_batches")
        self._shuffle()
        learn = self.learn
        if graphs is not None:
            self.timer.begin("other")  # the first time they are made
            if graphs.ready():
                self.timer.begin("update_graph")
                learn = graphs.learn
        self._losses.zero_()
        for _ in range(self.num_learning_epochs):
            for i in range(self.num_mini_batches):
                learn(i)
        self.timer.begin("other")
        obs = self.storage.observations.flatten(0, 1)
        update_normalization(self.actor, obs)
        update_normalization(self.critic, obs)
        self.storage.clear()
        sums = self._losses / (self.num_learning_epochs * self.num_mini_batches)
        self._all_reduce(sums, then="other")
        sums /= self.rank.world_size
        value, surrogate, entropy, kl, self.learning_rate, skipped = torch.cat(
            (sums, self._lr[None], self._skipped[None])
        ).tolist()
        self.skipped_steps = int(skipped)
        self._skipped.zero_()
        return {"value": value, "surrogate": surrogate, "entropy": entropy, "kl": kl}

    @torch.no_grad()
    def learn(self, number: int) -> None:
        """One optimizer step on a mini-batch of the shuffled rollout, in place."""
        losses = self._learn(self._batches[number])
        self._losses += torch.stack((losses.value, losses.surrogate, losses.entropy, losses.kl))

    def learned(self) -> list[Tensor]:
        """What `learn` changes and its next call depends on, themselves and not copies."""
        moments = self.optimizer.state.get(self.gradients.parameters, {})
        tensors = [t for _, t in sorted(moments.items()) if isinstance(t, Tensor)]
        return [self.gradients.parameters.data, self._lr, self._skipped, self._losses, *tensors]

    def save(self) -> dict[str, Any]:
        """State of networks and optimizer under rsl_rl's keys, loadable by rsl_rl itself."""
        saved: dict[str, Any] = super().save()
        optimizer = self.gradients.split_state(saved["optimizer_state_dict"])
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
            group["fused"] = None
        return {**saved, "optimizer_state_dict": optimizer}

    def load(
        self,
        loaded_dict: dict[str, Any],
        load_cfg: dict[str, bool] | None = None,
        strict: bool = True,
    ) -> bool:
        """Take over what `save` returned, in place; see ``rsl_rl.algorithms.PPO.load``."""
        optimizer = self.gradients.join_state(loaded_dict["optimizer_state_dict"])
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

    def _whole_rollout(self) -> Samples:
        """The rollout, flattened; views of its buffers."""
        st, rollout = self.storage, self.rollout
        return Samples(
            actor_input=rollout.actor_input.flatten(0, 1),
            critic_input=rollout.critic_input.flatten(0, 1),
            actions=st.actions.flatten(0, 1),
            log_prob=st.actions_log_prob.flatten(0, 1),
            values=st.values.flatten(0, 1),
            returns=st.returns.flatten(0, 1),
            advantages=st.advantages.flatten(0, 1),
            mean=rollout.mean.flatten(0, 1),
            std=rollout.std,
        )

    def _shuffle(self) -> None:
        """Copy the rollout to the mini-batches in a random order, normalized, in place."""
        count = len(self._shuffled.actions)
        order = torch.randperm(count, device=self.device)
        self._whole_rollout().shuffled(order, out=self._shuffled)
        if self.normalize_advantage_per_mini_batch:
            # Mini-batches are the same in every epoch, so that once is enough.
            size = count // self.num_mini_batches
            used = self._shuffled.advantages[: size * self.num_mini_batches]
            self._normalize(used.view(self.num_mini_batches, size))

    @torch.no_grad()
    def _learn(self, batch: Samples) -> Losses:
        """One optimizer step, with gradients and divergence averaged over ranks; the losses.

        Policy and value have no parameter in common. On the CPU the value's gradients are computed
        beside the policy's, which needs no threads within an operation.
        """
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
            adapt_learning_rate(self._lr, self.gradients.extra[0], self.desired_kl)
        norm = self.gradients.clip(self.max_grad_norm)
        # The gradients are those of all ranks, and so is what follows from them.
        self._not_finite.copy_(~norm.isfinite())
        self._skipped += self._not_finite
        self.optimizer.step()
        self._std.bound()
        return Losses(policy.surrogate, value, policy.entropy, policy.kl)

    def _learn_policy(self, batch: Samples) -> PolicyLosses:
        """The policy's losses; writes its gradients."""
        self.timer.begin("forward")
        mean, std = self._policy(batch.actor_input), self.std
        losses, gradients = policy_losses(batch, mean, std, self.clip_param, self.entropy_coef)
        self.timer.begin("backward")
        self._policy.backward(gradients.mean)
        self._std.backward(gradients.std, std)
        return losses

    @torch.no_grad()  # a thread's own affair
    def _learn_value(self, batch: Samples, timer: PhaseTimer) -> Tensor:
        """The value's loss; writes its gradients."""
        clip_param = self.clip_param if self.use_clipped_value_loss else None
        timer.begin("forward")
        loss, gradient = value_loss(batch, self._value(batch.critic_input), clip_param)
        timer.begin("backward")
        self._value.backward(gradient.mul_(self.value_loss_coef))
        return loss

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
