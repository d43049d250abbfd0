"""Selection and mutation, against cases computed by hand."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from simtrain.config.train import TrainConfig
from simtrain.training.features.evolution import (
    FACTOR,
    MUTATIONS,
    Candidate,
    HyperParameter,
    Settings,
    evolve,
    select,
)

ENTROPY = HyperParameter("ppo.entropy-coef", 1e-4, 0.03, "log")
EPOCHS = HyperParameter("ppo.num-learning-epochs", 2, 8, is_whole=True)
GAMMA = HyperParameter("ppo.gamma", 0.95, 0.998, "complement")
EVOLVING = (ENTROPY, EPOCHS, GAMMA)
START = {"ppo.entropy-coef": 0.01, "ppo.num-learning-epochs": 4, "ppo.gamma": 0.99}


def scripted(*numbers: float) -> SimpleNamespace:
    """A generator that gives these numbers."""
    return SimpleNamespace(random=iter(numbers).__next__)


def config(kind: str = "tournament", **settings) -> TrainConfig:
    """A population of which replaced members have no grace."""
    settings = {"selection": kind, "grace": 0, **settings}
    return TrainConfig("", **{f"population_{name}": value for name, value in settings.items()})


def candidate(fitness: float, margin: float = 0.5, age: int = 100, values=START, learns=True):
    estimate = None  # only the record of an exchange needs it
    return Candidate(Settings(values, {}), estimate, fitness, fitness - margin, age, learns)


def selected(config: TrainConfig, *members: float | Candidate, seed: int = 0):
    """The decisions about members, given by themselves or by their fitness."""
    candidates = [m if isinstance(m, Candidate) else candidate(m) for m in members]
    return select(config, candidates, np.random.default_rng(seed))


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
    assert which.mutated(before, scripted(0.5, 0.2)) == pytest.approx(grown)
    assert which.mutated(before, scripted(0.5, 0.8)) == pytest.approx(shrunk)


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


# So many are drawn that the best is among them.
EVERYONE = {"tournament_size": 50}


@pytest.mark.parametrize(
    ("settings", "members", "decisions"),
    [
        # 10 - 0.5 is above 8 and 9, and not above 9.6.
        (EVERYONE, (8.0, 9.0, 9.6, 10.0), [(3, True), (3, True), (2, True), (3, False)]),
        (
            {**EVERYONE, "grace": 40},
            (candidate(1.0, age=30), candidate(1.0), candidate(9.0)),
            [(0, False), (2, True), (2, False)],
        ),
        ({"kind": "truncation", "share": 0.5}, (1.0, 1.2), [(0, True), (1, False)]),
    ],
    ids=["a lead above the noise", "replaced lately", "truncation within the noise"],
)
def test_a_member_takes_the_place_of_an_old_one_if_it_leads_by_more_than_the_noise(
    settings, members, decisions
):
    assert selected(config(**settings), *members) == decisions


def test_the_worst_share_copies_from_the_best_share_by_truncation():
    for seed in range(20):
        fitness = 5.0, 1.0, 8.0, 2.0, 7.0, 6.0, 9.0, 4.0
        decisions = selected(config("truncation", share=0.25), *fitness, seed=seed)
        copies = {i: parent for i, (parent, _) in enumerate(decisions) if parent != i}
        assert copies.keys() == {1, 3}
        assert set(copies.values()) <= {2, 6}
        assert [mutated for _, mutated in decisions] == [i in (1, 3) for i in range(8)]


@pytest.mark.parametrize("kind", ["tournament", "truncation"])
@pytest.mark.parametrize("broken", [candidate(math.nan, age=0), candidate(99.0, learns=False)])
def test_a_member_that_is_not_finite_never_wins_and_is_replaced_whatever_its_age(kind, broken):
    for seed in range(50):
        decisions = selected(config(kind, share=0.5, grace=1000), broken, 1.0, 2.0, seed=seed)
        assert decisions[0][0] in (1, 2)
        assert [parent for parent, _ in decisions[1:]] == [1, 2]


@pytest.mark.parametrize("kind", ["tournament", "truncation"])
def test_a_thousand_generations_stay_within_bounds_and_keep_the_elite(kind):
    rng = np.random.default_rng(0)
    values = [dict(START) for _ in range(6)]
    evolving = config(kind, grace=20, mutations=(0.2, 0.8, 0.0, 0.0))
    moved = 0
    for _ in range(1000):
        fitness = rng.normal(size=6)
        fitness[rng.integers(6)] = rng.choice([math.nan, 0.3])
        members = [
            candidate(f, 0.1, int(rng.integers(100)), own)
            for f, own in zip(fitness, values, strict=True)
        ]
        decisions = evolve(evolving, members, EVOLVING, rng)
        best = int(np.nanargmax(fitness))
        assert (decisions[best].parent, decisions[best].mutation) == (best, "none")
        assert decisions[best].settings.values == values[best]
        for i, decision in enumerate(decisions):
            assert members[decision.parent].is_sound or decision.parent == i
            for parameter in EVOLVING:
                value = decision.settings.values[parameter.flag]
                assert parameter.low <= value <= parameter.high
        moved += sum(decision.parent != i for i, decision in enumerate(decisions))
        values = [decision.settings.values for decision in decisions]
    assert moved > 1000
    assert len({value["ppo.entropy-coef"] for value in values}) > 1


def test_mutations_come_as_often_as_their_weights_say():
    rng = np.random.default_rng(0)
    weights = (0.4, 0.4, 0.2, 0.0)
    mutations: Counter[str] = Counter()
    for _ in range(2000):
        members = [candidate(fitness) for fitness in (1.0, 1.1, 1.2)]
        decisions = evolve(config(mutations=weights), members, EVOLVING, rng)
        mutations.update(decision.mutation for decision in decisions[:2])
    for kind, weight in zip(MUTATIONS, weights, strict=True):
        assert mutations[kind] / 4000 == pytest.approx(weight, abs=0.03)
