import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import two_ranks

from simtrain.training.loop import Report


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two ranks found, by rank, and what one found alone."""
    results = tmp_path_factory.mktemp("ranks") / "found"
    program = Path(__file__).with_name("two_ranks.py")
    subprocess.run([sys.executable, str(program), str(results)], check=True, timeout=500)
    keys = ("0", "1", "alone")
    found = {key: torch.load(results.with_suffix(f".{key}"), weights_only=False) for key in keys}
    return {**found, "runs": results.with_suffix(".runs")}


@pytest.mark.parametrize("update", two_ranks.UPDATES)
def test_two_ranks_learn_from_their_parts_as_one_does_from_all_the_data(found, update):
    for rank in "01":
        mine, alone = found[rank][update], found["alone"][update]
        for gradients, reference in zip(mine["gradients"], alone["gradients"], strict=True):
            assert (gradients - reference).norm() < 1e-6 * reference.norm()
        for tensor, reference in zip(mine["tensors"], alone["tensors"], strict=True):
            # Adam's steps are as long for gradients that are nothing but rounding.
            atol = 1e-5 if update == "update of a cnn" else 1e-6
            torch.testing.assert_close(tensor, reference, rtol=1e-5, atol=atol)
        assert mine["losses"] == pytest.approx(alone["losses"], rel=1e-4, abs=1e-6)
        assert mine["learning_rate"] == alone["learning_rate"]


def test_two_ranks_distil_like_one_with_one_all_reduce_a_step(found):
    for rank in "01":
        mine, alone = found[rank]["distillation"], found["alone"]["distillation"]
        for tensor, reference in zip(mine["tensors"], alone["tensors"], strict=True):
            torch.testing.assert_close(tensor, reference, rtol=1e-5, atol=1e-6)
        assert mine["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        # Four passes over two mini-batches; three for the normalizer and one for the loss.
        assert mine["all-reduces"] == 8 + 4
    pairs = zip(*(found[rank]["distillation"]["tensors"] for rank in "01"), strict=True)
    assert all(torch.equal(tensor, other) for tensor, other in pairs)


def test_normalizing_in_each_mini_batch_takes_one_all_reduce_more_an_update(found):
    each = found["0"]["update"]["all-reduces"]
    assert each > 0
    assert found["0"]["update per mini-batch"]["all-reduces"] == each + 1
    assert found["0"]["update"]["broadcasts"] == 0, "norms are exchanged on other hardware alone"


@pytest.mark.parametrize("how", ["trained", "trained on other hardware"])
def test_after_training_all_ranks_hold_the_same_bits(found, how):
    """On other hardware norms differ, too."""
    for tensor, other in zip(found["0"][how], found["1"][how], strict=True):
        assert torch.equal(tensor, other)


def test_a_run_that_begins_with_a_checkpoint_has_it_on_all_ranks(found):
    for rank in "01":
        assert all((tensor == 1).all() for tensor in found[rank]["begun"])


def test_rank_0_starts_from_the_states_of_a_single_rank_and_rank_1_from_others(found):
    assert torch.equal(found["0"]["state"], found["alone"]["state"])
    assert (found["1"]["state"] != found["alone"]["state"]).all()


def test_numbers_are_summed_with_their_counts_and_warnings_name_their_rank(found):
    for rank in "01":
        assert found[rank]["report"] == Report(
            sums={"curriculum": (5.0, 1.0), "return": (3.0, 3.0)},
            maxima={"seconds": 2.0},
            is_stopped=True,
            is_outdated=False,
            warnings=("rank 1: it is hot",),
        )


def test_two_ranks_go_on_as_if_nothing_had_happened(found):
    whole, resumed = (found["runs"] / name / "metrics.jsonl" for name in ("whole", "resumed"))
    assert timeless(resumed) == timeless(whole)
    assert [row["iteration"] for row in timeless(resumed)] == [1, 2, 3, 4, 5, 6]


def timeless(metrics):
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("wall_s", "Perf/"))} for row in rows]


def test_a_changed_bit_on_one_rank_is_found_and_the_rank_named(found):
    for rank in "01":
        same, changed = found[rank]["difference"]
        assert same == ""
        assert "after iteration 7 the parameters of rank 1 are not those of rank 0" in changed


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_both(found):
    for rank in "01":
        assert found[rank]["skipped"] == (8, True)


def test_phases_are_means_over_ranks_so_that_they_add_up_there_too(found):
    one, other = found["0"]["phases"], found["1"]["phases"]
    for (mine, metrics), (others, _) in zip(one, other, strict=True):
        for phase in mine:
            mean = (mine[phase] + others[phase]) / 2.0
            assert metrics[f"Perf/time/{phase}"] == pytest.approx(mean)
        assert mine["all_reduce"] == others["all_reduce"] > 0.0
        assert min(mine["waiting"], others["waiting"]) >= 0.0
        assert mine["waiting"] + others["waiting"] > 0.0
