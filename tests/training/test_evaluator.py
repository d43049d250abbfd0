"""Evaluations of a task whose returns, lengths, failures and metrics can be counted by hand."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
import torch
from tiny_task import STEP_DT, at_step, steps_lived, tiny_env, tiny_task

from simtrain import ActorCfg, EventTermCfg, MetricTermCfg, TerminationTermCfg, mdp
from simtrain.algorithms.networks import make_actor
from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg
from simtrain.training.evaluator import Estimate, Evaluation, Evaluator, with_margin

ACTOR = ActorCfg(hidden_dims=(4,))
FAILS = {
    "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
    "broke": TerminationTermCfg(at_step((3, 0, 0, 7))),
}
RANDOM = {
    "events": {
        "reset": EventTermCfg(
            mdp.reset_joints_uniform, mode="reset", joints="left_slide", velocity=(-1.0, 1.0)
        )
    },
    "metrics": {"position": MetricTermCfg(lambda env: env.bind("qpos")[:, 7], reduce="last")},
}


def lived(env: Env) -> torch.Tensor:
    return steps_lived(env)[:, 0]


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    """A policy of the tiny task."""
    torch.manual_seed(seed)
    return make_actor(ACTOR, tiny_env(1).get_observations(), 1).state_dict()


def evaluator(episodes: int, max_envs: int | None = None, seed: int = 0, **changes) -> Evaluator:
    engine = EngineCfg("mujoco", threads=1)
    return Evaluator(tiny_task(**changes), episodes, engine=engine, max_envs=max_envs, seed=seed)


def evaluated(episodes: int, **changes) -> Evaluation:
    return evaluator(episodes, **changes)(ACTOR, state())


def test_a_recurrent_policy_remembers_nothing_of_the_episode_before():
    actor = ActorCfg((4,), model="gru", rnn_hidden_dim=4, obs_normalization=False)
    torch.manual_seed(0)
    obs = tiny_env(1).get_observations()
    network = make_actor(actor, obs, 1)
    assert network(obs) != network(obs)  # it does remember
    metrics = {"pushed": MetricTermCfg(lambda env: env.actions[:, 0])}
    tested = evaluator(8, max_envs=4, terminations=FAILS, metrics=metrics)
    once, again = (tested(actor, network.state_dict()) for _ in range(2))
    # Two rounds of four, and the same once more: nothing is random in this task.
    assert once.lengths == [3, 10, 10, 7] * 2
    pushed = once.metrics["pushed"]
    assert pushed[:4] == pushed[4:] == again.metrics["pushed"][:4]


def test_the_first_episode_of_every_environment_counts_and_no_other():
    evaluation = evaluated(4, terminations=FAILS)
    assert evaluation.lengths == [3, 10, 10, 7]
    assert evaluation.returns == pytest.approx([STEP_DT * n for n in (3, 10, 10, 7)])
    assert evaluation.failed == [True, False, False, True]
    assert evaluation.tags(iteration=50) == {
        "Eval/mean_return": pytest.approx(7.5 * STEP_DT),
        "Eval/mean_episode_length": 7.5,
        "Eval/failure_rate": 0.5,
        "Eval/iteration": 50.0,
    }
    without_time_out = evaluated(2, terminations={})  # is cut at its longest episode
    assert (without_time_out.lengths, without_time_out.failed) == ([10, 10], [False, False])


def test_metrics_are_means_last_or_largest_values_of_the_episode_and_not_of_what_comes_after():
    def breaks(env):
        later = env.steps > 3
        return torch.where(later, torch.tensor((torch.nan, 1.0, 1.0, 1.0)), torch.ones(4))

    metrics = {
        "mean": MetricTermCfg(lived),
        "last": MetricTermCfg(lived, reduce="last"),
        "largest": MetricTermCfg(lambda env: -(lived(env) - 6.0).abs(), reduce="max"),
        "broken": MetricTermCfg(breaks),
    }
    evaluation = evaluated(4, terminations=FAILS, metrics=metrics)
    assert evaluation.metrics == {
        "mean": [2.0, 5.5, 5.5, 4.0],
        "last": [3.0, 10.0, 10.0, 7.0],
        "largest": [-3.0, 0.0, 0.0, 0.0],
        "broken": [1.0, 1.0, 1.0, 1.0],
    }
    assert evaluation.estimates["last"].value == 7.5


def test_fewer_environments_run_several_rounds_of_equal_size():
    tested = evaluator(9, max_envs=4, **RANDOM)
    assert tested.env.num_envs == 3
    evaluation = tested(ACTOR, state())
    assert evaluation.lengths == [10] * 9
    assert len(set(evaluation.metrics["position"])) == 9


def test_policies_meet_the_same_starts_again_and_again():
    tested = evaluator(3, **RANDOM)
    first, other, again = (tested(ACTOR, state(seed)) for seed in (1, 2, 1))
    assert again == first
    assert evaluator(3, **RANDOM)(ACTOR, state(1)) == first
    assert other.metrics["position"] != first.metrics["position"]
    assert evaluator(3, seed=1, **RANDOM)(ACTOR, state(1)).metrics != first.metrics


def test_an_evaluation_leaves_generators_and_threads_as_they_were():
    policy, draws = state(), []
    for evaluates in (False, True):
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)
        threads = torch.get_num_threads()
        if evaluates:
            evaluator(2, **RANDOM)(ACTOR, policy)
        assert torch.get_num_threads() == threads
        draws.append((torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()))
    assert draws[0] == draws[1]


def test_a_metric_of_another_shape_is_told_when_the_environments_are_built():
    metrics = {"wide": MetricTermCfg(steps_lived)}
    with pytest.raises(ConfigError, match=r"metrics\.wide has shape \(2, 1\); it must be"):
        evaluator(2, metrics=metrics)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(45.234, 43.9, 46.5), "45.2 ± 1.3"),
        (Estimate(1000.0, 985.0, 1015.0), "1000 ± 15"),
        (Estimate(0.2104, 0.198, 0.222), "0.210 ± 0.012"),
        (Estimate(1000.0, 1000.0, 1000.0), "1000"),
        (Estimate(3.25, -np.inf, np.inf), "3.25"),
    ],
)
def test_margins_have_two_digits_and_rates_are_percent(estimate, text):
    assert with_margin("mean_return", estimate) == text
    assert with_margin("failure_rate", Estimate(0.02, 0.006, 0.07)) == "2.0 % [0.6, 7.0]"


@pytest.mark.parametrize(("degrees", "t"), [(1, 12.706), (9, 2.262), (99, 1.984)])  # of tables
def test_a_mean_has_an_interval_by_students_t(degrees, t):
    values = [float(i) for i in range(degrees + 1)]
    estimate = Estimate.of_mean(values)
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    assert estimate.high - estimate.value == pytest.approx(half, rel=1e-3)


def test_one_value_says_nothing_about_the_mean_and_a_nan_neither():
    assert Estimate.of_mean([3.0]) == Estimate(3.0, -math.inf, math.inf)
    estimate = Estimate.of_mean([1.0, math.nan])
    assert all(map(math.isnan, (estimate.value, estimate.low, estimate.high)))


def test_rates_have_wilsons_interval_also_at_the_ends():
    half = Estimate.of_rate(5, 10)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
    never, always = Estimate.of_rate(0, 10), Estimate.of_rate(10, 10)
    assert (never.low, never.high) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert (always.low, always.high) == (pytest.approx(0.7225, abs=1e-4), 1.0)
