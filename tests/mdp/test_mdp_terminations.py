import math

import pytest
import torch
from walker import CONTACTS, set_contact, set_state, value, walker_env

from simtrain import SubTerrainCfg, TerrainCfg, mdp


def _at(env, *bases):
    rows = [[*base, 0.0, 0.0] for base in bases]
    set_state(env, torch.tensor(rows))
    return env


@pytest.mark.parametrize("axis", [0, 1])
def test_bad_orientation_is_a_lean_beyond_the_limit(axis):
    leans = []
    for angle in (0.49, 0.51, 3.0):
        quaternion = [math.cos(angle / 2), 0.0, 0.0, 0.0]
        quaternion[1 + axis] = math.sin(angle / 2)
        leans.append((0.0, 0.0, 1.0, *quaternion))
    env = _at(walker_env(3), *leans)
    assert mdp.bad_orientation(env, limit_angle=0.5).tolist() == [False, True, True]


def test_height_is_measured_from_the_ground():
    upright = (1.0, 0.0, 0.0, 0.0)
    env = _at(walker_env(2), (0.0, 0.0, 0.31, *upright), (0.0, 0.0, 0.29, *upright))
    assert mdp.root_height_below_minimum(env, 0.3).tolist() == [False, True]
    slope = SubTerrainCfg(mdp.pyramid_slope, slope=(0.5, 0.5))
    env = walker_env(2, terrain=TerrainCfg({"slope": slope}, num_levels=1, num_columns=1))
    _at(env, (0.0, 0.0, 1.81, *upright), (0.0, 0.0, 1.79, *upright))
    assert mdp.root_height_below_minimum(env, 0.3).tolist() == [False, True]


def test_the_terrain_ends_a_margin_before_its_border_does():
    upright = (1.0, 0.0, 0.0, 0.0)
    flat = {"flat": SubTerrainCfg(mdp.flat)}
    env = walker_env(3, terrain=TerrainCfg(flat, num_levels=2, num_columns=1, border_width=2.0))
    # 2 x 8 m of tiles along x, 8 m along y, and the border: 10 m and 6 m from the middle.
    _at(env, (8.9, 4.9, 1.0, *upright), (-9.1, 0.0, 1.0, *upright), (0.0, 5.1, 1.0, *upright))
    assert mdp.terrain_out_of_bounds(env, margin=1.0).tolist() == [False, True, True]
    assert not mdp.terrain_out_of_bounds(walker_env(), margin=1.0).any()


def test_contact_is_illegal_beyond_the_threshold():
    env = walker_env(2)
    set_contact(env, [[1.0, 0.0], [0.0, 3.0]], force=2.0)
    assert value(env, mdp.illegal_contact, sensors=CONTACTS, threshold=5.0).tolist() == [
        False,
        True,
    ]
