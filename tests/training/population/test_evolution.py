"""Selection and mutation, against cases computed by hand."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from simtrain.training.population.evolution import (
    FACTOR,
    Candidate,
    HyperParameter,
    Selection,
    evolve,
)

ENTROPY = HyperParameter("ppo.entropy-coef", 1e-4, 0.03, "log")
EPOCHS = HyperParameter("ppo.num-learning-epochs", 2, 8, is_whole=True)
GAMMA = HyperParameter("ppo.gamma", 0.95, 0.998, "complement")
EVOLVING = (ENTROPY, EPOCHS, GAMMA)
START = {"ppo.entropy-coef": 0.01, "ppo.num-learning-epochs": 4, "ppo.gamma": 0.99}


class Scripted:
    """A generator that gives what it is told."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = list(numbers)

    def random(self) -> float:
        return self._numbers.pop(0)


def candidates(*fitness: float, margin: float = 0.5, age: int = 100) -> list[Candidate]:
    return [Candidate(value, value - margin, age) for value in fitness]


@pytest.mark.parametrize(
    ("which", "before", "grown", "shrunk"),
    [
        (ENTROPY, 0.01, 0.012, 0.01 / 1.2),
        (ENTROPY, 0.029, 0.03, 0.029 / 1.2),
        (EPOCHS, 4, 5, 3),
        (EPOCHS, 8, 8, 7),
        (EPOCHS, 2, 3, 2),
        (GAMMA, 0.99, 1.0 - 0.01 * 1.2, 1.0 - 0.01 / 1.2),
        (GAMMA, 0.998, 1.0 - 0.002 * 1.2, 0.998),
    ],
)
def test_a_number_is_multiplied_or_divided_within_its_bounds(which, before, grown, shrunk):
    assert which.mutated(before, Scripted(0.5, 0.2)) == pytest.approx(grown)
    assert which.mutated(before, Scripted(0.5, 0.8)) == pytest.approx(shrunk)


def test_one_number_in_ten_is_drawn_anew_and_whole_numbers_stay_whole():
    rng = np.random.default_rng(0)
    values = [ENTROPY.mutated(0.01, rng) for _ in range(10_000)]
    usual = {round(0.01 * FACTOR, 9), round(0.01 / FACTOR, 9)}
    drawn = [value for value in values if round(value, 9) not in usual]
    assert len(drawn) / len(values) == pytest.approx(0.1, abs=0.01)
    assert np.median(np.log(drawn)) == pytest.approx(np.log(1e-4 * 0.03) / 2.0, abs=0.3)
    epochs = [EPOCHS.draw(rng) for _ in range(2000)]
    assert set(epochs) == set(range(2, 9))
    assert {type(value) for value in [*epochs, EPOCHS.mutated(4, rng)]} == {int}


def test_the_best_of_a_tournament_takes_a_place_only_if_it_leads_by_more_than_the_noise():
    everyone = Selection(size=50)  # so many are drawn that the best is among them
    rng = np.random.default_rng(0)
    # 10 - 0.5 is above 8 and 9, and not above 9.6.
    decisions = everyone(candidates(8.0, 9.0, 9.6, 10.0), rng)
    assert decisions == [(3, True), (3, True), (2, True), (3, False)]


def test_a_member_that_was_replaced_lately_is_left_alone():
    young, old = candidates(1.0, age=30), candidates(1.0, 9.0, age=100)
    assert Selection(size=50, grace=40)(young + old, np.random.default_rng(0)) == [
        (0, False),
        (2, True),
        (2, False),
    ]


def test_the_worst_share_copies_from_the_best_share_by_truncation():
    select = Selection("truncation", share=0.25)
    for seed in range(20):
        decisions = select(
            candidates(5.0, 1.0, 8.0, 2.0, 7.0, 6.0, 9.0, 4.0), np.random.default_rng(seed)
        )
        copies = {i: parent for i, (parent, _) in enumerate(decisions) if parent != i}
        assert copies.keys() == {1, 3}
        assert set(copies.values()) <= {2, 6}
        assert [mutated for _, mutated in decisions] == [i in (1, 3) for i in range(8)]


def test_by_truncation_a_bad_member_within_the_noise_mutates_itself():
    decisions = Selection("truncation", share=0.5)(candidates(1.0, 1.2), np.random.default_rng(0))
    assert decisions == [(0, True), (1, False)]


@pytest.mark.parametrize("kind", ["tournament", "truncation"])
@pytest.mark.parametrize(
    "broken", [Candidate(math.nan, math.nan, 0), Candidate(99.0, 98.0, 0, False)]
)
def test_a_member_that_is_not_finite_never_wins_and_is_replaced_whatever_its_age(kind, broken):
    select = Selection(kind, size=2, share=0.5, grace=1000)
    for seed in range(50):
        decisions = select([broken, *candidates(1.0, 2.0)], np.random.default_rng(seed))
        assert decisions[0][0] in (1, 2)
        assert [parent for parent, _ in decisions[1:]] == [1, 2]


@pytest.mark.parametrize("kind", ["tournament", "truncation"])
def test_a_thousand_generations_stay_within_bounds_and_keep_the_elite(kind):
    rng = np.random.default_rng(0)
    values = [dict(START) for _ in range(6)]
    weights = {"none": 0.2, "hyper_parameters": 0.8}
    moved = 0
    for _ in range(1000):
        fitness = rng.normal(size=6)
        fitness[rng.integers(6)] = rng.choice([math.nan, 0.3])
        members = [Candidate(f, f - 0.1, int(rng.integers(100))) for f in fitness]
        decisions = evolve(members, values, EVOLVING, Selection(kind, grace=20), weights, rng)
        best = int(np.nanargmax(fitness))
        assert (decisions[best].parent, decisions[best].mutation) == (best, "none")
        assert decisions[best].values == values[best]
        for decision in decisions:
            assert members[decision.parent].is_sound or decision.parent == decisions.index(decision)
            for parameter in EVOLVING:
                assert parameter.low <= decision.values[parameter.flag] <= parameter.high
        moved += sum(decision.parent != i for i, decision in enumerate(decisions))
        values = [decision.values for decision in decisions]
    assert moved > 1000
    assert len({value["ppo.entropy-coef"] for value in values}) > 1


def test_mutations_come_as_often_as_their_weights_say():
    rng = np.random.default_rng(0)
    weights = {"none": 0.4, "hyper_parameters": 0.4, "parameters": 0.2, "architecture": 0.0}
    mutations: Counter[str] = Counter()
    for _ in range(2000):
        decisions = evolve(
            candidates(1.0, 1.1, 1.2), [START] * 3, EVOLVING, Selection(), weights, rng
        )
        mutations.update(decision.mutation for decision in decisions[:2])
    for kind, weight in weights.items():
        assert mutations[kind] / 4000 == pytest.approx(weight, abs=0.03)
