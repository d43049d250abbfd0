"""Any of rsl_rl's models, and a user's own, by autograd, into the same flat gradients.

Losses are those of ``rsl_rl.algorithms.PPO``. Recurrent models learn from whole trajectories, by
rsl_rl's mini-batches; what they remember is zero where an episode begins.
"""

from __future__ import annotations

from copy import copy

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules.distribution import GaussianDistribution
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.flat_adam import FlatGradients
from simtrain.algorithms.learners import Learner
from simtrain.algorithms.learners.losses import Coefficients, PolicyStd, surrogate_loss, value_loss
from simtrain.algorithms.rollout import Rollout, Transition
from simtrain.launch.phase_timer import PhaseTimer
from simtrain.launch.rank import Rank


class AutogradLearner(Learner):
    """See `simtrain.algorithms.learners.Learner`."""

    def __init__(
        self,
        models: tuple[MLPModel, MLPModel],
        obs: TensorDict,
        shape: tuple[int, int, int],
        gradients: FlatGradients,
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
        self._memories = [Memory(model) for model in models]
        params = self.actor.output_distribution_params
        recorded = {"values": values, "actions_log_prob": log_prob.unsqueeze(-1)}
        recorded |= {f"params.{i}": param for i, param in enumerate(params)}
        self.storage = st = Rollout(obs, num_actions, num_steps, recorded, rank.device)
        st.distribution_params = tuple(st.recorded[f"params.{i}"] for i in range(len(params)))
        saved = [memory.saved(num_steps) for memory in self._memories]
        st.saved_hidden_state_a, st.saved_hidden_state_c = saved
        self._is_recurrent = any(saved)
        if self._is_recurrent:
            self.refusal = "recurrent networks learn from trajectories, whose number changes"
        distribution = self.actor.distribution
        self._std: Tensor = self.actor.output_std.flatten(0, -2).mean(dim=0)
        self._bounded = (
            PolicyStd(distribution) if type(distribution) is GaussianDistribution else None
        )
        size = distribution.input_dim
        self._no_output = values.new_zeros(1, *([size] if isinstance(size, int) else size))
        self._order = torch.zeros(len(values) * num_steps, dtype=torch.long, device=rank.device)
        self._advantages = values.new_zeros(len(self._order), 1)
        self._trajectories: list[RolloutStorage.Batch] = []

    @property
    def std(self) -> Tensor:
        return self._std

    def begin_rollout(self) -> None:
        for memory in self._memories:
            memory.save()

    def act(self, obs: TensorDict, transition: Transition) -> Tensor:
        recorded = transition.recorded
        for memory in self._memories:
            memory.recall()
        transition.actions.copy_(self.actor(obs, stochastic_output=True))
        recorded["values"].copy_(self.critic(obs))
        for memory in self._memories:
            memory.keep()
        log_prob = self.actor.get_output_log_prob(transition.actions)
        recorded["actions_log_prob"].copy_(log_prob.unsqueeze(-1))
        for i, param in enumerate(self.actor.output_distribution_params):
            recorded[f"params.{i}"].copy_(param)
        return transition.actions

    def reset(self, dones: Tensor) -> None:
        for memory in self._memories:
            memory.forget(dones)

    def hidden_states(self) -> list[Tensor]:
        return [tensor for memory in self._memories for tensor in memory.tensors]

    def evaluate(self, obs: TensorDict) -> Tensor:
        self._memories[1].recall()  # and what it then remembers is not kept
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

    def mini_batch(self, number: int) -> RolloutStorage.Batch:
        if self._is_recurrent:
            return self._trajectories[number]
        st, size = self.storage, len(self._order) // self._count
        place = slice(number * size, (number + 1) * size)
        rows = self._order[place]

        def taken(buffer: Tensor) -> Tensor:
            return buffer.flatten(0, 1).index_select(0, rows)

        groups = {group: taken(buffer) for group, buffer in st.observations.items()}
        return RolloutStorage.Batch(
            observations=TensorDict(groups, batch_size=[size]),
            actions=taken(st.actions),
            values=taken(st.values),
            advantages=self._advantages[place],
            returns=taken(st.returns),
            old_actions_log_prob=taken(st.actions_log_prob),
            old_distribution_params=tuple(map(taken, st.distribution_params)),
        )

    def _prepare(self, batch: RolloutStorage.Batch, of: Coefficients) -> RolloutStorage.Batch:
        self._gradients.buffer.zero_()
        if of.symmetry is not None:  # mirror images follow
            of.symmetry.augment_batch(batch, len(batch.actions))
        return batch

    def after_step(self) -> None:
        if self._bounded is not None:
            self._bounded.bound()

    def _learn_policy(self, batch: RolloutStorage.Batch, of: Coefficients) -> tuple[Tensor, ...]:
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
                total = (log_prob * gradient).sum() - of.entropy_coef * entropy
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
    def _learn_value(
        self, batch: RolloutStorage.Batch, of: Coefficients, timer: PhaseTimer
    ) -> Tensor:
        timer.begin("forward")
        with torch.enable_grad():
            state = {"masks": batch.masks, "hidden_state": batch.hidden_states[1]}
            values = self.critic(batch.observations, **state)
            loss, gradient = value_loss(batch, values.detach(), of)
            timer.begin("backward")
            values.backward(gradient)
        return loss


class Memory:
    """A model's hidden state, kept in place; empty for one that is not recurrent."""

    def __init__(self, model: MLPModel) -> None:
        """`model` has been called, and so has a state."""
        self._model = model
        state = model.get_hidden_state()
        self._is_tuple = isinstance(state, tuple)
        self.tensors = [torch.zeros_like(part) for part in _parts(state)]
        self._saved: list[Tensor] = []

    def saved(self, num_steps: int) -> list[Tensor] | None:
        """Buffers of the state before each step, as rsl_rl's storage has them; None for none."""
        self._saved = [part.new_zeros(num_steps, *part.shape) for part in self.tensors]
        return self._saved or None

    def save(self) -> None:
        """Write the present state as that before a rollout; further trajectories begin with 0."""
        for saved, part in zip(self._saved, self.tensors, strict=True):
            saved[0].copy_(part)

    def recall(self) -> None:
        """Let the model go on from the state."""
        if self.tensors:
            state = tuple(self.tensors) if self._is_tuple else self.tensors[0]
            self._model.reset(hidden_state=state)

    def keep(self) -> None:
        """Take over the model's state, in place."""
        for kept, part in zip(self.tensors, _parts(self._model.get_hidden_state()), strict=True):
            kept.copy_(part)

    def forget(self, dones: Tensor) -> None:
        """Set the state of environments in `dones`, ``(num_envs,)``, to zero, in place."""
        for part in self.tensors:
            part.masked_fill_(dones.to(torch.bool).unsqueeze(-1), 0.0)

    def forget_within_autograd(self, dones: Tensor) -> None:
        """Let the model go on without its state of environments in `dones`, ``(num_envs,)``."""
        if self.tensors:
            mask = dones.to(torch.bool).unsqueeze(-1)
            parts = [part.masked_fill(mask, 0.0) for part in _parts(self._model.get_hidden_state())]
            self._model.reset(hidden_state=tuple(parts) if self._is_tuple else parts[0])


def _parts(state: Tensor | tuple[Tensor, ...] | None) -> list[Tensor]:
    """A hidden state of rsl_rl's as tensors: a GRU's is one, an LSTM's two."""
    if state is None:
        return []
    return list(state) if isinstance(state, tuple) else [state]
