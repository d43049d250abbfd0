"""Evaluations by a graph of a step, by a tape on the CPU, against the same ones run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tape import Tape
from test_graphs import busy_cartpole, image, waits

from simtrain import ActorCfg, MetricTermCfg, ObservationTermCfg
from simtrain.algorithms.networks import make_actor
from simtrain.env.env import Env
from simtrain.sim import EngineCfg
from simtrain.training.evaluator import Evaluation, Evaluator

pytestmark = pytest.mark.usefixtures("fast_compilation")

ENVS, STEPS, CHECK = 4, 70, 32  # control steps of an episode, and of an evaluation until it checks


def speed(env: Env) -> torch.Tensor:
    return env.bind("qvel")[:, 0].abs()


def evaluations(
    *actors: ActorCfg, graphs: bool, **rewards: Callable[..., Any]
) -> tuple[list[Evaluation], Tape]:
    """Of a policy of each of the networks, one after the other, by one evaluator."""
    cfg = busy_cartpole(**rewards)
    cfg.observations["image"] = {"target": ObservationTermCfg(image)}
    cfg.metrics = {"speed": MetricTermCfg(speed), "fastest": MetricTermCfg(speed, reduce="max")}
    cfg.episode_length_s = STEPS * cfg.timestep * cfg.decimation
    evaluator = Evaluator(cfg, 2 * ENVS, engine=EngineCfg("warp"), max_envs=ENVS)
    tape = Tape(evaluator.env)
    evaluator._backend = tape if graphs else None
    results = []
    for seed, actor in enumerate(actors):
        torch.manual_seed(seed)
        network = make_actor(actor, evaluator.env.get_observations(), 1)
        evaluation = evaluator(actor, network.state_dict())
        assert evaluation is not None
        results.append(evaluation)
    return results, tape


MODELS = {
    "mlp": ActorCfg((8,)),
    "gru": ActorCfg((8,), model="gru", rnn_hidden_dim=4),
    "cnn": ActorCfg((8,), model="cnn", obs_groups=("actor", "image")),
}


@pytest.mark.parametrize("model", MODELS)
def test_an_evaluation_by_graphs_is_one_without_them_to_the_bit(model: str) -> None:
    actor = MODELS[model]
    eager, _ = evaluations(actor, actor, graphs=False)
    graphed, tape = evaluations(actor, actor, graphs=True)
    assert graphed == eager
    assert graphed[0] != graphed[1]
    assert graphed[0].lengths == [STEPS] * 2 * ENVS
    # Four rounds, of which the first makes the graph at its first check; its own has four steps.
    assert (tape.captures, tape.replays) == (1, 4 * STEPS - (CHECK - 1) + 4)


def test_a_network_of_another_size_has_a_graph_of_its_own() -> None:
    actors = ActorCfg((8,)), ActorCfg((16,)), ActorCfg((16,))
    eager, _ = evaluations(*actors, graphs=False)
    graphed, tape = evaluations(*actors, graphs=True)
    assert graphed == eager
    assert (tape.captures, tape.alive) == (2, 1)


def test_a_term_that_cannot_be_in_a_graph_is_named_and_changes_nothing() -> None:
    actor = ActorCfg((8,))
    (eager,), _ = evaluations(actor, graphs=False, term=waits)
    (graphed,), tape = evaluations(actor, graphs=True, term=waits)
    warning = graphed.warnings.pop("graphs")
    assert warning.startswith("steps run without CUDA graphs, and slower: ")
    assert "waits for the device (in the term rewards.term)" in warning
    assert graphed == eager
    assert tape.captures == 0
