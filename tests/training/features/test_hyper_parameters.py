"""Which numbers evolve, and mistakes in the flags of a population."""

from __future__ import annotations

import pytest

from simtrain.cli.parse import parse_flags
from simtrain.config.tasks import default_config
from simtrain.config.tree import with_overrides
from simtrain.errors import ConfigError
from simtrain.training.features.evolution import (
    HyperParameter,
    check_population_flags,
    hyper_parameters,
    term_parameter,
    values_of,
)

TASK = default_config("go1-velocity-flat")


def config_of(command: str):
    return parse_flags("train", TASK, command.split())


OF_BOTH = ["ppo.entropy-coef", "ppo.clip-param", "ppo.num-learning-epochs", "ppo.gamma", "ppo.lam"]
STUDENT = "--teacher run --population 2"
CLIPPED = f"{STUDENT} --distillation.max-grad-norm 1 --population-mutate distillation.max-grad-norm"


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("", ["ppo.desired-kl", *OF_BOTH]),
        ("--ppo.schedule fixed", ["ppo.learning-rate", *OF_BOTH]),
        (STUDENT, ["distillation.learning-rate", "distillation.num-learning-epochs"]),
        (f"{CLIPPED} 0.1 1 log", ["distillation.max-grad-norm"]),
    ],
    ids=["adaptive schedule", "fixed schedule", "student", "named number"],
)
def test_the_numbers_that_evolve_are_those_that_the_algorithm_uses(command, names):
    assert [parameter.flag for parameter in hyper_parameters(config_of(command))] == names


def test_flags_name_what_evolves_and_over_what_it_is_drawn():
    config = config_of(
        "--population 2 --population-mutate ppo.entropy-coef 1e-4 0.05 log "
        "--population-mutate env.rewards.posture.weight -2 0 "
        "--population-mutate ppo.num_learning_epochs 2 6"
    )
    check_population_flags(config)
    assert hyper_parameters(config) == (
        HyperParameter("ppo.entropy-coef", 1e-4, 0.05, "log"),
        HyperParameter("env.rewards.posture.weight", -2.0, 0.0),
        HyperParameter("ppo.num-learning-epochs", 2.0, 6.0, is_whole=True),
    )


def test_values_are_read_from_a_configuration_and_laid_over_it():
    evolving = (
        HyperParameter("ppo.gamma", 0.9, 0.999, "complement"),
        HyperParameter("env.rewards.track-lin-vel-xy.std", 0.1, 1.0),
    )
    values = {"ppo.gamma": 0.5, "env.rewards.track-lin-vel-xy.std": 0.7}
    assert values_of(with_overrides(TASK, values), evolving) == values
    assert values_of(TASK, evolving)["ppo.gamma"] == TASK.ppo.gamma
    place = term_parameter(TASK, "env.rewards.track-lin-vel-xy.std")
    assert place == ("rewards.track_lin_vel_xy", "std")


MUTATE = "--population 2 --population-mutate"
MISTAKES = [
    ("--population 1", "--population is 1; it must be 2 or more"),
    ("--ranks-per-member 2", "--ranks-per-member is 2, and it is for a population; add --popul"),
    ("--population-grace 3", "--population-grace is 3, and it is for a population; add --popul"),
    ("--population 2 --cpu-workers 2", "the ranks of a population follow from --population and"),
    ("--population 2 --population-share 0.7", "--population-share is 0.7; it must be 0.5 or less"),
    ("--population 2 --population-mutations 0 0 0 0", "one frequency must be above 0"),
    ("--population 2 --population-fitness lin_vel_err:min", "evaluations of the task give mean_re"),
    ("--population 2 --population-fitness mean_return:most", "write max or min after the colon"),
    (f"{MUTATE} ppo.entropy-coef 1e-4", "give a flag, two bounds and optionally a scale"),
    (f"{MUTATE} ppo.entropy-koef 0 1", "no number with this name (did you mean 'ppo.entropy-coe"),
    (f"{MUTATE} ppo.num-learning-epochs 1.5 2.7", "no two whole numbers lie between its bounds"),
    (f"{MUTATE} num-envs 64 128", "the task has no number with this name"),
    (f"{MUTATE} ppo.num-mini-batches 2 8", "ppo.num-mini-batches is fixed once environments"),
    (f"{MUTATE} env.timestep 0.001 0.01", "env.timestep is fixed once environments and networks"),
    (f"{MUTATE} distillation.learning-rate 0.1 1", "the task has no number with this name"),
    (f"--teacher run {MUTATE} distillation.gradient-length 2 4", "is fixed once environments and"),
    (f"{MUTATE} ppo.gamma 0.99 0.9", "the first bound must be below the second"),
    (f"{MUTATE} ppo.gamma low 0.9", "its bounds must be numbers"),
    (f"{MUTATE} ppo.gamma 0.9 1.5", "ppo.gamma is 1.5; it must be 1 or less"),
    (f"{MUTATE} ppo.gamma 0.9 1 complement", "its bounds must be below 1"),
    (f"{MUTATE} ppo.entropy-coef 0 1 log", "its bounds must be greater than 0"),
    (f"{MUTATE} ppo.entropy-coef 0.1 1 loq", "the scale must be one of linear, log, complement"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_told_in_one_line(command, message):
    with pytest.raises(ConfigError) as error:
        check_population_flags(config_of(command))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
