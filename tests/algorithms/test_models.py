"""Models that learn by autograd: what they remember, and which ones are refused."""

from typing import Any

import pytest
import torch
from against_rsl_rl import copies, learn, make_ppo, observed, roll_out
from rsl_rl.models import MLPModel
from waiting import RefuseWaiting

from simtrain import CnnCfg
from simtrain.errors import ConfigError

IMAGES = {"actor": {"obs_groups": ("actor", "camera")}, "value": {"obs_groups": ("camera",)}}


def test_the_value_after_a_rollout_is_not_remembered():
    ppo = make_ppo("gru")
    roll_out(ppo, seed=0)
    before = copies(ppo.hidden_states())
    with torch.inference_mode():
        ppo.compute_returns(observed())
    assert all(map(torch.equal, before, ppo.hidden_states()))


def test_waiting_is_refused() -> None:
    flags = torch.tensor([True, False])
    for wait in (
        lambda: bool(flags.any()),
        lambda: flags.nonzero(),
        lambda: flags[flags],
        lambda: torch.tensor([1.0, 2.0]),
    ):
        with RefuseWaiting(), pytest.raises(AssertionError, match="waits"):
            wait()


def test_a_mini_batch_of_images_does_not_wait_for_the_device():
    ppo = make_ppo("cnn", **IMAGES)
    roll_out(ppo, seed=0)
    with RefuseWaiting():
        ppo.learner.shuffle()
        ppo.learn_mini_batch(0)


def test_autograds_graph_is_let_go_after_a_mini_batch():
    ppo = make_ppo("cnn", **IMAGES)
    learn(ppo, 0)
    assert not ppo.actor.output_mean.requires_grad
    assert not ppo.actor.output_std.requires_grad


def test_images_alone_have_no_statistics():
    ppo = make_ppo("cnn", "mlp", actor=IMAGES["value"], value={"obs_groups": ("actor",)})
    assert not ppo.actor.obs_normalization


class NeedsMore(MLPModel):
    def __init__(self, *args: Any, wanted: int, **more: Any) -> None:
        super().__init__(*args, **more)


OF_IMAGES = {"obs_groups": ("camera",)}
LARGE = CnnCfg((2,), kernel_size=(9,), padding="none")
REFUSED = [
    ("cnn", {}, "cnn, and the observations in actor are flat; it needs a group"),
    ("cnn", {**OF_IMAGES, "cnn": LARGE}, r"cnn, and it cannot be made: .* Kernel size: \(9 x 9"),
    ("mlp", OF_IMAGES, r"mlp, and camera has shape \(1, 4, 6\); images need a cnn"),
    ("gru", OF_IMAGES, "gru, and camera has shape"),
    (f"{__name__}:Nothing", {}, "cannot be found: module .* has no attribute 'Nothing'"),
    (f"{__name__}:NeedsMore", {}, "it cannot be made: .* 'wanted'"),
    (f"{__name__}:observed", {}, "is not a class derived from rsl_rl.models.MLPModel"),
]


@pytest.mark.parametrize(("model", "actor", "message"), REFUSED)
def test_a_model_that_does_not_fit_is_refused_by_name(model, actor, message):
    with pytest.raises(ConfigError, match=f"--ppo.actor.model .*{message}"):
        make_ppo(model, actor=actor)
