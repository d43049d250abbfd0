"""Random network distillation: a reward for states that the policy has seldom seen.

Burda et al., "Exploration by random network distillation", 2018 (https://arxiv.org/abs/1810.12894):
how badly a network predicts the output of another that is random and fixed. The mathematics are
those of ``rsl_rl.extensions.RandomNetworkDistillation``; rewards are computed once a rollout, and
the predictor has mini-batches of its own.
"""

import torch
from rsl_rl.extensions import RandomNetworkDistillation
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.cfg import PpoCfg
from simtrain.algorithms.flat_adam import FlatAdam, all_reduce
from simtrain.algorithms.networks import groups_or_actors, learn_statistics, merge_statistics
from simtrain.algorithms.rollout import Rollout
from simtrain.errors import ConfigError
from simtrain.launch.phase_timer import PhaseTimer
from simtrain.launch.rank import Rank

METRICS = ("rnd", "Rnd/mean_intrinsic_reward")


class Rnd(RandomNetworkDistillation):  # type: ignore[misc]
    """rsl_rl's random network distillation over one or more ranks."""

    def __init__(self, ppo: PpoCfg, obs: TensorDict, rank: Rank, timer: PhaseTimer) -> None:
        """`obs` is ``{group: (num_envs, size)}``; weights in ``ppo.rnd`` are those of a step."""
        cfg, groups = ppo.rnd, groups_or_actors(ppo, ppo.rnd, obs)
        if images := [group for group in groups if obs[group].ndim > 2]:
            raise ConfigError(f"--ppo.rnd.obs-groups has {images[0]!r}, an image; give flat groups")
        settings = vars(cfg) | {"obs_groups": {"rnd_state": list(groups)}}
        schedule = {n: settings.pop(n) for n in ("initial_step", "final_step", "final_value")}
        settings["weight_schedule"] = {"mode": cfg.weight_schedule, **schedule}
        num_states = sum(obs[group].shape[-1] for group in groups)
        super().__init__(num_states, **settings, device=rank.device)
        self._rank, self._timer = rank, timer
        networks = [self.predictor.parameters()]
        self.optimizer = FlatAdam(networks, rank, timer, learning_rate=cfg.learning_rate)
        self.discounted = torch.zeros(obs.batch_size[0], device=rank.device)
        """Discounted sum of each environment's rewards, which normalizes them."""
        self._mean_reward = torch.zeros((), device=rank.device)

    @torch.no_grad()
    def add_rewards(self, rollout: Rollout, last_obs: TensorDict) -> None:
        """Add intrinsic rewards to those of a rollout, in place; `last_obs` follows it."""
        errors, weights = torch.zeros_like(rollout.rewards[..., 0]), []
        following = [*rollout.observations.unbind(0)[1:], last_obs]
        for error, obs in zip(errors.unbind(), following, strict=True):
            state = self.state_normalizer(self.get_rnd_state(obs))
            difference = self.target(state) - self.predictor(state)
            torch.linalg.vector_norm(difference, dim=1, out=error)
            self.update_counter += 1
            schedule = self.weight_scheduler_params
            weights.append(self.weight_scheduler(step=self.update_counter, **schedule))
        if self.reward_normalization:
            errors = self._normalized(errors)
        for error, weight in zip(errors.unbind(), weights, strict=True):
            error.mul_(weight)
        rollout.rewards[..., 0] += errors
        self._mean_reward = errors.mean()

    @torch.no_grad()
    def update(self, observations: TensorDict, epochs: int, num_mini_batches: int) -> Tensor:
        """Train the predictor on a rollout's observations, in place: `METRICS` of this rank."""
        raw = self.get_rnd_state(observations).flatten(0, 1)
        order = torch.randperm(len(raw), device=raw.device)
        state = self.state_normalizer(raw[order])
        target = self.target(state)
        size = len(raw) // num_mini_batches
        batches = list(zip(state.split(size), target.split(size), strict=True))[:num_mini_batches]
        total = torch.zeros_like(self._mean_reward)
        for _ in range(epochs):
            for inputs, wanted in batches:
                self._timer.begin("forward")
                self.optimizer.gradients.zero_()
                with torch.enable_grad():
                    loss = torch.nn.functional.mse_loss(self.predictor(inputs), wanted)
                self._timer.begin("backward")
                loss.backward()
                self._timer.begin("optimizer")
                self.optimizer.average()
                self.optimizer.clip_and_step(None)
                total += loss.detach()
        self._timer.begin("other")
        if self.state_normalization:
            learn_statistics(self.state_normalizer, raw, self._rank)
        return torch.stack((total / (epochs * num_mini_batches), self._mean_reward))

    def _normalized(self, rewards: Tensor) -> Tensor:
        """Rewards, ``(steps, num_envs)``, by the deviation of their discounted sums until then."""
        sums, normalizer = torch.zeros_like(rewards), self.reward_normalizer.emp_norm
        for reward, out in zip(rewards.unbind(), sums.unbind(), strict=True):
            self.discounted.mul_(self.reward_normalizer.disc_avg.gamma).add_(reward)
            out.copy_(self.discounted)
        deviations = torch.zeros_like(rewards[:, :1])
        count, moments = len(self.discounted) * self._rank.world_size, sums.double()
        moments = torch.stack((moments.sum(dim=1), moments.square().sum(dim=1)))
        all_reduce(moments, self._rank, self._timer, then="advantage")
        means, squares = (moments / count).unbind()
        variances = (squares - means.square()).clamp_(min=0.0)
        number = torch.full_like(normalizer.count, count)
        for mean, variance, out in zip(means.float(), variances.float(), deviations, strict=True):
            merge_statistics(normalizer, number, mean, variance)
            out.copy_(normalizer.get_buffer("_std"))
        return torch.where(deviations > 0.0, rewards / deviations, rewards)
