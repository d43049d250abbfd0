"""Distillation against rsl_rl's own, and what it keeps."""

import copy
from dataclasses import replace

import pytest
import torch
from against_rsl_rl import ACTIONS, ALONE, ENVS, STEPS, act, record
from rsl_rl.algorithms import Distillation as RslDistillation
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from simtrain import ActorCfg
from simtrain.algorithms.cfg import DistillationCfg
from simtrain.algorithms.distillation import Distillation
from simtrain.algorithms.networks import make_actor

CFG = DistillationCfg(num_learning_epochs=2, gradient_length=3, learning_rate=1e-2)


def observed() -> TensorDict:
    random = {"student": torch.randn(ENVS, 3), "teacher": 2.0 * torch.randn(ENVS, 5) + 1.0}
    return TensorDict(random, batch_size=[ENVS])


def make(model: str = "gru", cfg: DistillationCfg = CFG) -> Distillation:
    student = ActorCfg((8,), model=model, rnn_hidden_dim=6, obs_groups=("student",), init_std=0.3)
    teacher = ActorCfg((7,), obs_groups=("teacher", "student"))
    obs = observed()
    models = [make_actor(each, obs, ACTIONS) for each in (student, teacher)]
    distillation = Distillation(cfg, (models[0], models[1]), obs, STEPS, ALONE)
    distillation.train_mode()
    return distillation


def reference(mine: Distillation, cfg: DistillationCfg = CFG) -> RslDistillation:
    """rsl_rl's own, with the same models."""
    student, teacher = copy.deepcopy((mine.actor, mine.teacher))
    student.reset()
    storage = RolloutStorage("distillation", ENVS, STEPS, observed(), [ACTIONS])
    theirs = RslDistillation(student, **(vars(cfg) | {"teacher": teacher, "storage": storage}))
    theirs.train_mode()
    return theirs


def roll_out(algorithm: Distillation | RslDistillation, seed: int) -> None:
    """Collect made-up steps; two episodes end within, one with the last step."""
    torch.manual_seed(seed)
    with torch.inference_mode():
        for step in range(STEPS):
            obs, dones = observed(), torch.zeros(ENVS, dtype=torch.bool)
            dones[1], dones[3], dones[0] = step == 1, step == 2, step == STEPS - 1
            act(algorithm, obs)
            record(algorithm, obs, torch.zeros(ENVS), dones, dones)


@pytest.mark.parametrize("model", ["mlp", "gru", "lstm"])
@pytest.mark.parametrize("changes", [{}, {"loss_type": "huber", "max_grad_norm": 0.05}])
def test_losses_and_parameters_are_those_of_rsl_rl(model, changes):
    cfg = DistillationCfg(**{**vars(CFG), **changes})
    mine = make(model, cfg)
    theirs = reference(mine, cfg)
    for seed in range(3):
        for algorithm in (mine, theirs):
            roll_out(algorithm, seed)
        losses = mine.update(), theirs.update()
        assert losses[0]["behavior"] == pytest.approx(losses[1]["behavior"], rel=1e-5)
        pairs = mine.actor.state_dict(), theirs.student.state_dict()
        for name, tensor in pairs[1].items():
            torch.testing.assert_close(pairs[0][name], tensor, rtol=1e-5, atol=1e-6, msg=name)
    assert mine.skipped_steps == 0


def test_a_student_comes_to_act_as_its_teacher():
    mine = make()
    losses = []
    for _ in range(40):
        roll_out(mine, 0)
        losses.append(mine.update()["behavior"])
    assert losses[-1] < 0.1 * losses[0]


def test_the_learning_rate_goes_to_its_end_in_equal_steps():
    mine = make(cfg=replace(CFG, learning_rate_end=2e-3))
    steady = make(cfg=replace(CFG, learning_rate=6e-3))
    steady.actor.load_state_dict(mine.actor.state_dict())
    steady.teacher.load_state_dict(mine.teacher.state_dict())
    for algorithm in (mine, steady):
        roll_out(algorithm, 0)
        algorithm.update(progress=0.5)
    assert mine.learning_rate == pytest.approx(6e-3)
    mine.set_hyper_parameter("learning_rate", 4e-3)  # as a population does: the first of the two
    mine.set_hyper_parameter("num_learning_epochs", 1)
    steady.set_hyper_parameter("learning_rate", 3e-3)
    steady.set_hyper_parameter("num_learning_epochs", 1)
    for algorithm in (mine, steady):
        roll_out(algorithm, 0)
        algorithm.update(progress=0.5)
    assert mine.learning_rate == pytest.approx(3e-3)
    assert all(map(torch.equal, mine.actor.parameters(), steady.actor.parameters()))


def test_a_student_goes_on_from_its_state_bit_for_bit():
    whole, other = make(), make()
    roll_out(whole, 0)
    whole.update()
    other.set_state(copy.deepcopy(whole.state()))
    other.set_hidden_states([tensor.clone() for tensor in whole.hidden_states()])
    for algorithm in (whole, other):
        roll_out(algorithm, 1)
    assert whole.update() == other.update()
    assert all(map(torch.equal, whole.tensors(), other.tensors()))
    assert all(map(torch.equal, whole.hidden_states(), other.hidden_states()))


def test_checkpoints_have_rsl_rls_keys_and_load_there():
    mine = make()
    theirs = reference(mine)
    roll_out(mine, 0)
    mine.update()
    assert theirs.load(copy.deepcopy(mine.save()), None, strict=True)
    for name, tensor in theirs.student.state_dict().items():
        assert torch.equal(tensor, mine.actor.state_dict()[name])
    (group,) = theirs.optimizer.param_groups
    assert group["lr"] == pytest.approx(CFG.learning_rate)
