"""Any of rsl_rl's models, and a user's own, by autograd, into the same flat gradients.

Losses are those of ``rsl_rl.algorithms.PPO``. Recurrent models learn from whole trajectories, by
rsl_rl's mini-batches; hidden states are zero where an episode begins.
"""

from copy import copy
from typing import TypeAlias

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules.distribution import GaussianDistribution
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.learners import Learner
from simtrain.algorithms.learners.losses import Coefficients, PolicyStd, surrogate_loss, value_loss
from simtrain.algorithms.networks import Memory, remembering
from simtrain.algorithms.rollout import Rollout, Transition
from simtrain.launch.phase_timer import PhaseTimer
from simtrain.launch.rank import Rank

Batch: TypeAlias = RolloutStorage.Batch


class AutogradLearner(Learner):
    """See `simtrain.algorithms.learners.Learner`."""

    def __init__(
        self,
        models: tuple[MLPModel, MLPModel],
        obs: TensorDict,
        shape: tuple[int, int, int],
        gradients: Tensor,
        rank: Rank,
        timer: PhaseTimer,
    ) -> None:
        """`models` are actor and critic, whose parameters' ``.grad`` are views of `gradients`;
        `shape` is actions, steps of a rollout and mini-batches."""
        self.actor, self.critic = models
        num_actions, num_steps, self._count = shape
        super().__init__(rank, timer)
        self._gradients = gradients
        with torch.no_grad():  # to know the shapes
            log_prob = self.actor.get_output_log_prob(self.actor(obs, stochastic_output=True))
            values: Tensor = self.critic(obs)
        params = self.actor.output_distribution_params
        recorded = {"values": values, "actions_log_prob": log_prob.unsqueeze(-1)}
        recorded |= {f"params.{i}": param for i, param in enumerate(params)}
        self.storage = st = Rollout(obs, num_actions, num_steps, recorded, rank.device)
        st.distribution_params = tuple(st.recorded[f"params.{i}"] for i in range(len(params)))
        self.memories = [Memory(model, num_steps) for model in models]
        before = [memory.before or None for memory in self.memories]
        st.saved_hidden_state_a, st.saved_hidden_state_c = before
        self._is_recurrent = any(before)
        distribution = self.actor.distribution
        self._std: Tensor = self.actor.output_std.flatten(0, -2).mean(dim=0)
        self._bounded = (
            PolicyStd(distribution) if type(distribution) is GaussianDistribution else None
        )
        size = distribution.input_dim
        self._no_output = values.new_zeros(1, *([size] if isinstance(size, int) else size))
        self._order = torch.zeros(len(values) * num_steps, dtype=torch.long, device=rank.device)
        self._advantages = values.new_zeros(len(self._order), 1)
        self._trajectories: list[Batch] = []

    @property
    def std(self) -> Tensor:
        return self._std

    def act(self, obs: TensorDict, transition: Transition) -> Tensor:
        recorded = transition.recorded
        with remembering(self.memories):
            transition.actions.copy_(self.actor(obs, stochastic_output=True))
            recorded["values"].copy_(self.critic(obs))
        log_prob = self.actor.get_output_log_prob(transition.actions)
        recorded["actions_log_prob"].copy_(log_prob.unsqueeze(-1))
        for i, param in enumerate(self.actor.output_distribution_params):
            recorded[f"params.{i}"].copy_(param)
        return transition.actions

    def evaluate(self, obs: TensorDict) -> Tensor:
        self.memories[1].recall()  # and its new hidden state is not kept
        values: Tensor = self.critic(obs)
        return values

    def shuffle(self) -> Tensor:
        st, count = self.storage, self._count
        if self._is_recurrent:
            self._trajectories = list(st.recurrent_mini_batch_generator(count, 1))
            size = st.num_envs // count
            used = st.advantages[:, : count * size].unflatten(1, (count, size))
            advantages: Tensor = used.transpose(0, 1)
            return advantages
        torch.randperm(len(self._order), out=self._order)
        torch.index_select(st.advantages.flatten(0, 1), 0, self._order, out=self._advantages)
        size = len(self._order) // count
        return self._advantages[: size * count].view(count, size)

    def mini_batch(self, number: int) -> Batch:
        if self._is_recurrent:
            return self._trajectories[number]
        st, size = self.storage, len(self._order) // self._count
        place = slice(number * size, (number + 1) * size)
        rows = self._order[place]

        def selected(buffer: Tensor) -> Tensor:
            return buffer.flatten(0, 1).index_select(0, rows)

        groups = {group: selected(buffer) for group, buffer in st.observations.items()}
        return Batch(
            observations=TensorDict(groups, batch_size=[size]),
            actions=selected(st.actions),
            values=selected(st.values),
            advantages=self._advantages[place],
            returns=selected(st.returns),
            old_actions_log_prob=selected(st.actions_log_prob),
            old_distribution_params=tuple(map(selected, st.distribution_params)),
        )

    def backward(self, batch: Batch, coefficients: Coefficients) -> Tensor:
        self._gradients.zero_()
        if coefficients.symmetry is not None:  # mirror images follow
            coefficients.symmetry.augment_batch(batch, len(batch.actions))
        return super().backward(batch, coefficients)

    def after_step(self) -> None:
        if self._bounded is not None:
            self._bounded.bound()

    def _learn_policy(self, batch: Batch, of: Coefficients) -> tuple[Tensor, ...]:
        actor, distribution = self.actor, self.actor.distribution
        batch, count = copy(batch), len(batch.actions)  # a mirror loss changes what it observes
        if of.symmetry is not None and of.symmetry.use_data_augmentation:
            count //= 2  # entropy and divergence are not those of mirror images
        own = slice(None if of.symmetry is None else count)
        mirror = batch.returns.new_zeros(())
        self._timer.begin("forward")
        # A model with its distribution samples as well: an update draws no numbers, or graphs that
        # are checked would change what follows.
        distribution.sample = lambda: distribution.mean
        try:
            with torch.enable_grad():
                state = {"masks": batch.masks, "hidden_state": batch.hidden_states[0]}
                actor(batch.observations, **state, stochastic_output=True)
                log_prob = actor.get_output_log_prob(batch.actions)
                entropy = actor.output_entropy[own].mean()
                log_ratio = log_prob.detach() - batch.old_actions_log_prob.squeeze(-1)
                advantages = batch.advantages.squeeze(-1)
                surrogate, gradient = surrogate_loss(log_ratio, advantages, of.clip_param)
                total = (log_prob * gradient).sum() - of.entropy_weight * entropy
                params = tuple(param[own] for param in actor.output_distribution_params)
                if of.symmetry is not None:
                    mirror = of.symmetry.compute_loss(actor, batch, count)
                    total = total + of.symmetry.mirror_loss_coeff * mirror
        finally:
            del distribution.sample
        kl = actor.get_kl_divergence(batch.old_distribution_params, params).mean()
        self._std.copy_(actor.output_std.flatten(0, -2).mean(dim=0))
        self._timer.begin("backward")
        with torch.enable_grad():
            total.backward()
        # Or the distribution would keep autograd's graph, which belongs to this stream, alive.
        distribution.update(self._no_output)
        return mirror.detach(), surrogate, entropy.detach(), kl.detach()

    @torch.no_grad()  # it holds for one thread
    def _learn_value(self, batch: Batch, of: Coefficients, timer: PhaseTimer) -> Tensor:
        timer.begin("forward")
        with torch.enable_grad():
            state = {"masks": batch.masks, "hidden_state": batch.hidden_states[1]}
            values = self.critic(batch.observations, **state)
            loss, gradient = value_loss(batch, values.detach(), of)
            timer.begin("backward")
            values.backward(gradient)
        return loss
