"""Training on the warp engine, on Warp's CPU device, through the command."""

from __future__ import annotations

import pytest
import torch
from job import metrics_of

from simtrain.cli.train import train

FLAGS = "cartpole-balance --gpu-ids None --engine warp --num-envs 64 --max-iterations 3"


@pytest.mark.usefixtures("fast_compilation")
def test_cartpole_trains_on_the_warp_engine(here, capsys):
    # In this process, whose kernels are compiled already, rather than in one of its own.
    try:
        assert train([*FLAGS.split(), "--deterministic", "True"]) == 0
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    (run,) = here.glob("logs/*/*")
    lines = [(line["iteration"], line["Sim/overflow"]) for line in metrics_of(run)]
    assert lines == [(1, 0.0), (2, 0.0), (3, 0.0)]
    assert (run / "model_3.pt").is_file()
    assert "iteration 3/3" in capsys.readouterr().out
