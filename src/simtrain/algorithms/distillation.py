"""Distillation: on its own rollouts, a student learns the actions of a teacher that sees more.

The mathematics are those of ``rsl_rl.algorithms.Distillation``, with one read-back an update. A
mini-batch is `gradient_length` steps of all environments, one after another.
"""

from typing import Any

import torch
from rsl_rl.algorithms import Distillation as RslDistillation
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.algorithm import MakeReplay, MiniBatchAlgorithm, part_of_the_way
from simtrain.algorithms.cfg import DistillationCfg
from simtrain.algorithms.flat_adam import FlatAdam
from simtrain.algorithms.networks import Memory, remembering, update_normalization
from simtrain.algorithms.ppo import PPO
from simtrain.algorithms.rollout import Rollout, Transition
from simtrain.launch.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank


class Distillation(MiniBatchAlgorithm, RslDistillation):  # type: ignore[misc]
    """rsl_rl's distillation over one or more ranks; `actor` is the student."""

    _saved_networks = ("student", "teacher")

    def __init__(
        self,
        cfg: DistillationCfg,
        models: tuple[MLPModel, MLPModel],
        obs: TensorDict,
        num_steps_per_env: int,
        rank: Rank,
        timer: PhaseTimer = NO_TIMER,
    ) -> None:
        """`models` are student and teacher, `obs` is ``{group: (num_envs, *shape)}``; every rank
        starts as rank 0 does."""
        self.actor, teacher = (model.to(rank.device) for model in models)
        with torch.no_grad():  # to know the shapes
            self.actor(obs)
            recorded = {"privileged_actions": teacher(obs)}
        sizes = recorded["privileged_actions"].shape[-1], num_steps_per_env
        groups = [*self.actor.obs_groups, *getattr(self.actor, "obs_groups_2d", ())]
        storage = Rollout(obs.select(*groups), *sizes, recorded, rank.device)
        settings = vars(cfg) | {"teacher": teacher, "storage": storage}
        super().__init__(self.actor, **settings, device=rank.device)
        self.rank, self.timer, self.learning_threads = rank, timer, rank.threads
        # AdamW would wear down the standard deviation, which no loss depends on.
        networks = [self.actor.parameters()]
        self.optimizer = FlatAdam(networks, rank, timer, learning_rate=cfg.learning_rate)
        self.learning_rate = float(self.optimizer.lr)
        self._rates = (cfg.learning_rate, cfg.learning_rate_end)
        self.num_mini_batches = num_steps_per_env // self.gradient_length
        self._losses = torch.zeros(1, device=rank.device)
        self.memories = [Memory(model) for model in (self.actor, teacher)]
        for tensor in self.tensors():
            rank.broadcast(tensor)

    def inherit(self, before: Any) -> None:
        """See `MiniBatchAlgorithm.inherit`."""
        self.teacher.load_state_dict(before.teacher.state_dict())

    def set_hyper_parameter(self, name: str, value: float) -> None:
        """See `MiniBatchAlgorithm.set_hyper_parameter`; it sets the first of two learning rates."""
        super().set_hyper_parameter(name, value)
        if name == "learning_rate":
            self._rates = value, self._rates[1]

    @property
    def std(self) -> Tensor:
        """Standard deviations of the actions that the student took last."""
        std: Tensor = self.actor.output_std
        return std

    @torch.no_grad()
    def act_in(self, obs: TensorDict, transition: Transition) -> Tensor:
        """See `MiniBatchAlgorithm.act_in`."""
        transition.observe(obs)
        with remembering(self.memories):
            transition.actions.copy_(self.actor(obs, stochastic_output=True))
            transition.recorded["privileged_actions"].copy_(self.teacher(obs))
        return transition.actions

    @torch.no_grad()
    def update(
        self, graphs: MakeReplay | None = None, *, progress: float = 0.0
    ) -> dict[str, float]:
        """Bring the student nearer to the teacher, in place, by `graphs` if given; mean loss.

        `progress` is the part of training that is done, from 0 to 1.
        """
        first, last = self._rates
        if last is not None:
            self.learning_rate = part_of_the_way(progress, first, last)
            self.optimizer.lr.fill_(self.learning_rate)
        self._learn_epochs(graphs)
        update_normalization(self.actor, self.storage.observations.flatten(0, 1), self.rank)
        steps = self.num_learning_epochs * self.num_mini_batches * self.gradient_length
        (loss,) = self._read_back(self._losses / steps)
        return {"behavior": loss}

    @torch.no_grad()
    def learn_mini_batch(self, number: int) -> None:
        """Learn from the steps of a mini-batch, in place, and remember them."""
        st, memory = self.storage, self.memories[0]
        first = number * self.gradient_length
        self.timer.begin("forward")
        self.optimizer.gradients.zero_()
        if first == 0:  # an epoch begins
            memory.restore()
        memory.recall()
        with torch.enable_grad():
            losses = []
            for step in range(first, first + self.gradient_length):
                actions = self.actor(st.observations[step])
                losses.append(self.loss_fn(actions, st.recorded["privileged_actions"][step]))
                memory.forget_within_autograd(st.dones[step, :, 0])
            loss = torch.stack(losses).sum()
        self.timer.begin("backward")
        loss.backward()
        memory.keep()
        memory.recall()  # or the model would keep autograd's graph alive
        self.timer.begin("optimizer")
        self.optimizer.average()
        self.optimizer.clip_and_step(self.max_grad_norm)
        self._losses += loss.detach()

    def update_state(self) -> list[Tensor]:
        """See `MiniBatchAlgorithm.update_state`; with the student's hidden state."""
        return [*super().update_state(), *self.memories[0].tensors]

    state = RslDistillation.save  # the storage is empty between two updates


Algorithm = PPO | Distillation
