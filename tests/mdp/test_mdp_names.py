import pytest
import torch

from simtrain import mdp


def test_tolerance_is_one_at_zero_and_the_given_value_at_the_margin():
    value = torch.tensor([0.0, 2.0, -2.0])
    torch.testing.assert_close(mdp.tolerance(value, margin=2.0), torch.tensor([1.0, 0.1, 0.1]))
    torch.testing.assert_close(
        mdp.tolerance(torch.tensor([0.0, 0.5, 1.0, 3.0]), margin=1.0, value_at_margin=0.0),
        torch.tensor([1.0, 0.75, 0.0, 0.0]),
    )


def test_an_unknown_term_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match=r"no term 'joint_position' \(did you mean 'joint_pos"):
        _ = mdp.joint_position


def test_every_listed_term_is_there():
    assert all(getattr(mdp, name) is not None for name in dir(mdp))
