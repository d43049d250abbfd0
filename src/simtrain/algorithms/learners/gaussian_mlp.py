"""Feed-forward networks and a Gaussian of one standard deviation in all states: no autograd.

Values, log-probabilities and normalized observations are computed once a rollout; mini-batches are
slices of one shuffled copy; networks work in buffers that are made once, gradients are formulas.
"""

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules.distribution import GaussianDistribution
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.learners import Learner
from simtrain.algorithms.learners.buffered_mlp import BufferedMlp, normalized_input
from simtrain.algorithms.learners.losses import (
    Coefficients,
    PolicyStd,
    Samples,
    log_prob,
    policy_losses,
    value_loss,
)
from simtrain.algorithms.rollout import Rollout, Transition
from simtrain.algorithms.symmetry import MirroredRows, MirrorSymmetry
from simtrain.launch.phase_timer import PhaseTimer
from simtrain.launch.rank import Rank


class GaussianMlpLearner(Learner):
    """See `simtrain.algorithms.learners.Learner`."""

    @staticmethod
    def fits(actor: MLPModel, critic: MLPModel) -> bool:
        """Whether these are such models: rsl_rl's own, for a class derived from one may differ."""
        kinds = type(actor), type(critic), type(actor.distribution)
        return kinds == (MLPModel, MLPModel, GaussianDistribution)

    def __init__(
        self,
        models: tuple[MLPModel, MLPModel],
        obs: TensorDict,
        shape: tuple[int, int, int],
        rank: Rank,
        timer: PhaseTimer,
        symmetry: MirrorSymmetry | None,
    ) -> None:
        """`models` are actor and critic, whose parameters have their ``.grad``; `shape` is actions,
        steps of a rollout and mini-batches."""
        self.actor, self.critic = models
        num_actions, num_steps, num_mini_batches = shape
        super().__init__(rank, timer)
        device = rank.device
        step = torch.zeros(obs.batch_size[0], num_actions, device=device)
        recorded = {"actor_input": step.new_zeros(len(step), self.actor.obs_dim), "mean": step}
        self.storage = st = Rollout(obs, num_actions, num_steps, recorded, device)
        self._std = PolicyStd(self.actor.distribution)
        self._rollout_std = torch.zeros_like(step[0])  # of the actions, the same in all steps
        self._mean = st.recorded["mean"]
        st.distribution_params = (self._mean, self._rollout_std.expand_as(self._mean))
        self._critic_input = step.new_zeros(num_steps, len(step), self.critic.obs_dim)
        self._last_critic_input = torch.zeros_like(self._critic_input[0])
        self._shuffled = Samples(*map(torch.zeros_like, self._samples()))
        size = len(self._shuffled.actions) // num_mini_batches  # a remainder is left out
        parts = zip(*(buffer.split(size) for buffer in self._shuffled), strict=True)
        self.mini_batches = [Samples(*part) for part in parts][:num_mini_batches]
        self._mirrored: list[MirroredRows] = []
        if symmetry is not None:
            self.mini_batches = [self._with_images(b, symmetry) for b in self.mini_batches]
        self._rows = max(st.num_envs, len(self.mini_batches[0].actor_input))
        self._policy = BufferedMlp(self.actor.mlp, self._rows)
        self._value = BufferedMlp(self.critic.mlp, self._rows)
        self._noise = torch.zeros_like(step)

    @property
    def std(self) -> Tensor:
        return self._std()

    def begin_rollout(self) -> None:
        self._rollout_std.copy_(self.std)

    def act(self, obs: TensorDict, transition: Transition) -> Tensor:
        inputs, mean = transition.recorded["actor_input"], transition.recorded["mean"]
        normalized_input(self.actor, obs, out=inputs)
        self._policy(inputs, out=mean)
        noise = self._noise.normal_()
        return torch.addcmul(mean, noise, self._rollout_std, out=transition.actions)

    def evaluate(self, obs: TensorDict) -> Tensor:
        st = self.storage
        z = (st.actions - self._mean).div_(self._rollout_std)
        st.actions_log_prob.copy_(log_prob(z, self._rollout_std))
        normalized_input(self.critic, st.observations, out=self._critic_input)
        inputs, values = self._critic_input.flatten(0, 1), st.values.flatten(0, 1)
        for part, out in zip(inputs.split(self._rows), values.split(self._rows), strict=True):
            self._value(part, out=out)
        return self._value(normalized_input(self.critic, obs, out=self._last_critic_input))

    def shuffle(self) -> Tensor:
        order = torch.randperm(len(self._shuffled.actions), device=self._noise.device)
        for samples, shuffled in zip(self._samples(), self._shuffled, strict=True):
            torch.index_select(samples, 0, order, out=shuffled)
        for rows in self._mirrored:
            rows.fill()
        count = len(self.mini_batches)
        size = len(order) // count
        return self._shuffled.advantages[: size * count].view(count, size)

    def mini_batch(self, number: int) -> Samples:
        return self.mini_batches[number]

    def _learn_policy(self, batch: Samples, of: Coefficients) -> tuple[Tensor, ...]:
        self._timer.begin("forward")
        mean, std = self._policy(batch.actor_input), self.std
        means, symmetry = mean.view(-1, *batch.mean.shape), of.symmetry
        halves = 2 if symmetry is not None and symmetry.use_data_augmentation else 1
        surrogate, entropy, kl, gradient, by_std = policy_losses(
            batch, self._rollout_std, means[:halves], std, of.clip_param, of.entropy_weight
        )
        mirror = surrogate
        if symmetry is not None:
            mirror, gradient = symmetry.mirror_loss(means, gradient)
        self._timer.begin("backward")
        self._policy.backward(gradient.flatten(0, 1))
        self._std.backward(by_std, std)
        return mirror, surrogate, entropy, kl

    def after_step(self) -> None:
        self._std.bound()

    @torch.no_grad()  # it holds for one thread
    def _learn_value(self, batch: Samples, of: Coefficients, timer: PhaseTimer) -> Tensor:
        timer.begin("forward")
        values = self._value(batch.critic_input).view(-1, *batch.values.shape)
        loss, gradient = value_loss(batch, values, of)
        timer.begin("backward")
        self._value.backward(gradient.flatten(0, 1))
        return loss

    def _with_images(self, batch: Samples, symmetry: MirrorSymmetry) -> Samples:
        """The mini-batch with room for its mirror images behind it, which `shuffle` writes.

        Where these are learned from, actions have a leading axis of samples and images.
        """

        def mirrored(network: MLPModel, inputs: Tensor) -> Tensor:
            groups = [symmetry.maps.observations[group] for group in network.obs_groups]
            self._mirrored.append(MirroredRows(inputs, groups, network.obs_normalizer))
            return self._mirrored[-1].both

        batch = batch._replace(actor_input=mirrored(self.actor, batch.actor_input))
        if not symmetry.use_data_augmentation:
            return batch
        actions = MirroredRows(batch.actions, [symmetry.maps.actions])
        self._mirrored.append(actions)
        both = actions.both.view(2, *batch.actions.shape)
        critic_input = mirrored(self.critic, batch.critic_input)
        return batch._replace(critic_input=critic_input, actions=both)

    def _samples(self) -> Samples:
        """The rollout with steps and environments in one axis; views."""
        st = self.storage
        inputs = st.recorded["actor_input"], self._critic_input
        rest = st.actions, st.actions_log_prob, st.values, st.returns, st.advantages, self._mean
        return Samples(*(buffer.flatten(0, 1) for buffer in (*inputs, *rest)))
