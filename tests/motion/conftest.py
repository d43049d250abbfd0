from __future__ import annotations

import mujoco
import pytest
from robot import make_robot


@pytest.fixture(scope="package")
def model(tmp_path_factory) -> mujoco.MjModel:
    return make_robot(tmp_path_factory.mktemp("robot"))
