"""PPO: rsl_rl's models, distributions and storage, with an update that stays on the device.

Schulman et al., "Proximal policy optimization algorithms", 2017 (https://arxiv.org/abs/1707.06347).
The mathematics are those of ``rsl_rl.algorithms.PPO``, computed in another way: parameters and
gradients in one flat buffer each; the learning rate and the losses as tensors, read back once an
update. The part that depends on the kinds of models is in `simtrain.algorithms.learners`.
"""

from typing import Any

import torch
from rsl_rl.algorithms import PPO as RslPPO
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.algorithm import MakeReplay, MiniBatchAlgorithm, part_of_the_way
from simtrain.algorithms.cfg import PpoCfg
from simtrain.algorithms.flat_adam import FlatAdam, all_reduce
from simtrain.algorithms.learners import LOSSES, Learner
from simtrain.algorithms.learners.autograd import AutogradLearner
from simtrain.algorithms.learners.gaussian_mlp import GaussianMlpLearner
from simtrain.algorithms.networks import make_actor, make_critic, update_normalization
from simtrain.algorithms.rnd import METRICS, Rnd
from simtrain.algorithms.rollout import Transition, estimate_advantages
from simtrain.algorithms.symmetry import MirrorMaps, MirrorSymmetry
from simtrain.errors import ConfigError
from simtrain.launch.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank

MIN_LEARNING_RATE, MAX_LEARNING_RATE = 1e-5, 1e-2


class PPO(MiniBatchAlgorithm, RslPPO):  # type: ignore[misc]
    """rsl_rl's PPO over one or more ranks."""

    _saved_networks = ("actor", "critic", "rnd")

    def __init__(
        self,
        cfg: PpoCfg,
        obs: TensorDict,
        num_actions: int,
        num_steps_per_env: int,
        rank: Rank,
        timer: PhaseTimer = NO_TIMER,
        *,
        mirror: MirrorMaps | None = None,
    ) -> None:
        """Every rank starts as rank 0 does; `obs` is ``{group: (num_envs, *shape)}``.

        `mirror` is needed where `cfg` uses symmetry; weights of ``cfg.rnd`` are those of a step.
        """
        actor, critic = make_actor(cfg.actor, obs, num_actions), make_critic(cfg, obs)
        settings = vars(cfg) | {"actor": actor, "critic": critic, "storage": None}
        for name in ("symmetry", "rnd", "desired_kl_end", "entropy_coef_end"):
            del settings[name]
        super().__init__(**settings, device=rank.device)
        self.symmetry: MirrorSymmetry | None = None
        if cfg.symmetry.is_used:
            if actor.is_recurrent or critic.is_recurrent:
                raise ConfigError("--ppo.symmetry is not for recurrent networks")
            assert mirror is not None
            self.symmetry = MirrorSymmetry(cfg.symmetry, mirror)
        self.rank, self.timer = rank, timer
        # The divergence that the learning rate follows travels with the gradients.
        self.optimizer = FlatAdam(
            [actor.parameters(), critic.parameters()],
            rank,
            timer,
            learning_rate=cfg.learning_rate,
            kind=cfg.optimizer,
            extra=1,
        )
        # The divergence and the weight of the entropy; graphs read them.
        self._aim, self.entropy_weight = torch.zeros(2, device=rank.device)
        self._at_end = cfg.desired_kl_end, cfg.entropy_coef_end
        self.loss_names = LOSSES if self.symmetry is None else ("symmetry", *LOSSES)
        self._losses = torch.zeros(len(self.loss_names), device=rank.device)
        if cfg.rnd.weight != 0.0:
            self.rnd = Rnd(cfg, obs, rank, timer)
        models, shape = (actor, critic), (num_actions, num_steps_per_env, cfg.num_mini_batches)
        self.learner: Learner
        if GaussianMlpLearner.fits(*models):  # the faster one
            self.learner = GaussianMlpLearner(models, obs, shape, rank, timer, self.symmetry)
        else:
            gradients = self.optimizer.gradients
            self.learner = AutogradLearner(models, obs, shape, gradients, rank, timer)
        self.storage, self.memories = self.learner.storage, self.learner.memories
        if super().hidden_states():
            self.refusal = "recurrent networks learn from trajectories, whose number changes"
        self.learning_threads = self.learner.threads
        for tensor in self.tensors():
            rank.broadcast(tensor)

    @property
    def networks(self) -> dict[str, MLPModel]:
        """The networks that learn, by the names that they have in checkpoints."""
        return {"actor": self.actor, "critic": self.critic}

    @property
    def std(self) -> Tensor:
        """Standard deviations of the policy's actions, ``(num_actions,)``."""
        return self.learner.std

    def begin_rollout(self) -> None:
        """See `MiniBatchAlgorithm.begin_rollout`."""
        super().begin_rollout()
        self.learner.begin_rollout()

    @torch.no_grad()
    def act_in(self, obs: TensorDict, transition: Transition) -> Tensor:
        """See `MiniBatchAlgorithm.act_in`."""
        transition.observe(obs)
        return self.learner.act(obs, transition)

    @torch.no_grad()
    def compute_returns(self, obs: TensorDict) -> None:
        """Values, advantages and returns of the rollout, in place; `obs` follows its last step."""
        st, last = self.storage, self.learner.evaluate(obs)
        if self.rnd is not None:
            self.rnd.add_rewards(st, obs)
        estimate_advantages(st, last, self.gamma, self.lam)
        if not self.normalize_advantage_per_mini_batch:
            self._normalize(st.advantages.view(1, -1))

    @torch.no_grad()
    def update(
        self, graphs: MakeReplay | None = None, *, progress: float = 0.0
    ) -> dict[str, float]:
        """Improve policy and value on the rollout, by `graphs` if given; mean losses.

        `progress` is the part of training that is done, from 0 to 1.
        """
        kl, entropy = self._at_end
        self._aim.fill_(part_of_the_way(progress, self.desired_kl, kl))
        self.entropy_weight.fill_(part_of_the_way(progress, self.entropy_coef, entropy))
        self.timer.begin("mini_batches")
        advantages = self.learner.shuffle()
        if self.normalize_advantage_per_mini_batch:
            # Mini-batches are the same in every epoch, so that once is enough.
            self._normalize(advantages)
        self._learn_epochs(graphs)
        for network in (self.actor, self.critic):
            update_normalization(network, self.storage.observations.flatten(0, 1), self.rank)
        counts, names = (self.num_learning_epochs, self.num_mini_batches), [*self.loss_names]
        means = self._losses / (counts[0] * counts[1])
        if self.rnd is not None:
            means = torch.cat((means, self.rnd.update(self.storage.observations, *counts)))
            names += METRICS
        *losses, self.learning_rate = self._read_back(means, self.optimizer.lr)
        return dict(zip(names, losses, strict=True))

    @torch.no_grad()
    def learn_mini_batch(self, number: int) -> None:
        """Learn from a mini-batch of the shuffled rollout, in place: one optimizer step."""
        losses = self.learner.backward(self.learner.mini_batch(number), self)
        self.optimizer.extra[0] = losses[-1]
        self.timer.begin("optimizer")
        self.optimizer.average()
        if self.schedule == "adaptive":
            adapt_learning_rate(self.optimizer.lr, self.optimizer.extra[0], self._aim)
        self.optimizer.clip_and_step(self.max_grad_norm)
        self.learner.after_step()
        self._losses += losses

    def hidden_states(self) -> list[Tensor]:
        """See `MiniBatchAlgorithm.hidden_states`."""
        rewards = [] if self.rnd is None else [self.rnd.discounted]
        return [*super().hidden_states(), *rewards]

    def state(self) -> dict[str, Any]:
        """The state that `set_state` restores; the storage is empty between two updates."""
        steps = {} if self.rnd is None else {"rnd_steps": self.rnd.update_counter}
        return {**self.save(), **steps}

    def set_state(self, state: dict[str, Any], **options: bool) -> None:
        """See `MiniBatchAlgorithm.set_state`."""
        super().set_state(state, **options)
        if self.rnd is not None:
            self.rnd.update_counter = state["rnd_steps"]

    def inherit(self, before: Any) -> None:
        """See `MiniBatchAlgorithm.inherit`."""
        self.rnd = before.rnd
        self.set_hyper_parameter("learning_rate", before.learning_rate)

    def _normalize(self, advantages: Tensor) -> None:
        """Subtract each row's mean and divide by its standard deviation, of all ranks, in place."""
        rows = advantages.double().flatten(1)  # sums of squares are exact enough
        sums = torch.stack((rows.sum(dim=1), rows.square().sum(dim=1)))
        all_reduce(sums, self.rank, self.timer, then="advantage")
        count = rows.shape[1] * self.rank.world_size
        mean = sums[0] / count
        variance = (sums[1] - sums[0] * mean).clamp_(min=0.0) / max(count - 1, 1)
        shape = (-1, *[1] * (advantages.ndim - 1))
        advantages -= mean.float().view(shape)
        advantages /= variance.sqrt().float().view(shape) + 1e-8


def adapt_learning_rate(rate: Tensor, kl: Tensor, desired_kl: Tensor) -> None:
    """Adapt `rate`, 0-d, in place, by rsl_rl's rule: keep `kl` within a factor 2 of its target."""
    lower = (rate / 1.5).clamp_(min=MIN_LEARNING_RATE)
    higher = (rate * 1.5).clamp_(max=MAX_LEARNING_RATE)
    too_near = (kl < desired_kl / 2.0) & (kl > 0.0)
    rate.copy_(torch.where(kl > desired_kl * 2.0, lower, torch.where(too_near, higher, rate)))
