"""Training on the warp engine, on Warp's CPU device, through the command."""

from __future__ import annotations

import pytest
import torch
from job import metrics_of

from simtrain.cli.train import train
from simtrain.errors import ConfigError

SMALL = ["cartpole-balance", "--gpu-ids", "None", "--engine", "warp", "--num-envs", "64"]

FLEX = """
<mujoco>
  <worldbody>
    <flexcomp name="rope" type="grid" count="3 1 1" spacing="0.1 1 1" dim="1" radius="0.01">
      <edge equality="true"/>
    </flexcomp>
    <body name="cart">
      <joint name="slider" type="slide" axis="1 0 0"/> <geom size="0.1"/>
      <body><joint name="hinge" axis="0 1 0"/> <geom size="0.1"/></body>
    </body>
  </worldbody>
  <actuator><motor joint="slider"/></actuator>
  <keyframe><key name="up"/></keyframe>
</mujoco>
"""


@pytest.mark.usefixtures("fast_compilation")
def test_cartpole_trains_on_the_warp_engine(here, capsys):
    # In this process, whose kernels are compiled already, rather than in one of its own.
    try:
        assert train([*SMALL, "--max-iterations", "3", "--deterministic", "True"]) == 0
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    (run,) = here.glob("logs/*/*")
    lines = [(line["iteration"], line["Sim/overflow"]) for line in metrics_of(run)]
    assert lines == [(1, 0.0), (2, 0.0), (3, 0.0)]
    assert (run / "model_3.pt").is_file()
    assert "iteration 3/3" in capsys.readouterr().out


def test_a_model_that_warp_does_not_support_is_told_before_anything_is_built(here):
    (here / "rope.xml").write_text(FLEX)
    with pytest.raises(ConfigError, match="does not support flexes") as error:
        train([*SMALL, "--env.model", "rope.xml"])
    assert "--engine mujoco" in str(error.value)
    assert not (here / "logs").exists()
