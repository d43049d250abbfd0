"""A member of a population: what is its own, and how it becomes another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simtrain.algorithms import network_morphism as morphism
from simtrain.algorithms.ppo import PPO
from simtrain.config.train import TrainConfig
from simtrain.env.randomness import forked_randomness
from simtrain.run.checkpoint import copied_to_host, packed, unpacked
from simtrain.training.loop import Trainer
from simtrain.training.population.evolution import Mutation, Values
from simtrain.training.population.hyper_parameters import term_parameter, with_values


@dataclass
class Member:
    """What is a member's own beside its training."""

    values: Values
    """Its hyper-parameters."""
    actor_dims: tuple[int, ...]
    critic_dims: tuple[int, ...]
    replaced: int = 0
    """The iteration at which it was last replaced."""
    best: float = -math.inf
    """The best fitness of any member so far, the larger the better."""
    wall_s: float = 0.0
    is_due: bool = False
    """Whether training stopped where an exchange is still to come."""
    held: list[Any] = field(default_factory=list)
    """The metrics of that iteration, which the exchange adds to."""


class MemberTraining:
    """The training of a member, as an exchange changes it."""

    def __init__(
        self,
        trainer: Trainer,
        config: TrainConfig,
        make_ppo: Callable[[TrainConfig], PPO],
        facts: Member,
    ) -> None:
        """`config` is the run's; `make_ppo` makes the algorithm where networks change sizes."""
        self._trainer, self._config, self._make_ppo = trainer, config, make_ppo
        self.facts = facts

    def config(self, facts: Member | None = None) -> TrainConfig:
        """The configuration with this member's hyper-parameters and sizes, or another's."""
        facts = facts or self.facts
        config = with_values(self._config, facts.values)
        actor = replace(config.ppo.actor, hidden_dims=facts.actor_dims)
        critic = replace(config.ppo.critic, hidden_dims=facts.critic_dims)
        return replace(config, ppo=replace(config.ppo, actor=actor, critic=critic))

    def handed_over(self) -> bytes:
        """What one that copies this member takes over: learner and curricula."""
        learner = copied_to_host(self._trainer.ppo.state())
        return packed({"learner": learner, "env": self._trainer.env.variables()})

    def become(self, facts: Member, handed_over: bytes | None = None) -> None:
        """Take on sizes and hyper-parameters and, if given, another's state, in place."""
        trainer, self.facts = self._trainer, facts
        ppo = trainer.ppo
        sizes = tuple(morphism.sizes_of(network.mlp) for network in (ppo.actor, ppo.critic))
        if sizes != (facts.actor_dims, facts.critic_dims):
            with forked_randomness(0, trainer.rank.device):
                ppo = self._make_ppo(self.config())
            ppo.rnd = trainer.ppo.rnd
        if handed_over is not None:
            state = unpacked(handed_over)
            ppo.set_state(state["learner"])
            trainer.env.set_variables(state["env"])
            for tensor in ppo.hidden_states():  # they are those of another network
                tensor.zero_()
        for name, value in facts.values.items():
            if name.startswith("ppo."):
                ppo.set_hyper_parameter(name.removeprefix("ppo.").replace("-", "_"), value)
            else:
                trainer.env.set_parameter(*term_parameter(self._config, name), value)
        trainer.set_ppo(ppo)  # also to end graphs, which hold numbers of before

    def mutate(self, mutation: Mutation, rng: np.random.Generator) -> None:
        """Change the networks, in place, if the mutation is one of them."""
        if mutation == "parameters":
            morphism.add_noise(self._trainer.ppo.actor.mlp, rng)
        elif mutation == "architecture":
            self._grow(rng)

    def _grow(self, rng: np.random.Generator) -> None:
        """Let both networks grow without changing what they compute; the optimizer starts anew."""
        before, sizes, layers = self._trainer.ppo, [], []
        configs = self._config.ppo.actor, self._config.ppo.critic
        for network, cfg in zip((before.actor, before.critic), configs, strict=True):
            dims, change = morphism.grow(morphism.sizes_of(network.mlp), cfg.activation, rng)
            sizes.append(dims)
            layers.append(change(morphism.layers_of(network.mlp)))
        self.become(replace(self.facts, actor_dims=sizes[0], critic_dims=sizes[1]))
        after = self._trainer.ppo
        after.set_hyper_parameter("learning_rate", before.learning_rate)
        pairs = ((before.actor, after.actor), (before.critic, after.critic))
        for (old, new), its_layers in zip(pairs, layers, strict=True):
            others = {k: v for k, v in old.state_dict().items() if not k.startswith("mlp.")}
            new.load_state_dict(others, strict=False)
            morphism.set_layers(new.mlp, its_layers)
