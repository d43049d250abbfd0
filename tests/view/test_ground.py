import numpy as np
import pytest
import torch
from rover import rover_env

from simtrain import SubTerrainCfg, TerrainCfg, mdp
from simtrain.view.web import ground_mesh


def _ground(tile, **sizes):
    """The rover on a single tile, and the mesh of its ground."""
    env = rover_env(terrain=TerrainCfg({"tile": tile}, num_levels=1, num_columns=1, **sizes))
    return env, ground_mesh(env.model)


def test_the_ground_lies_where_the_terrain_is_without_holes_and_few_triangles_where_it_is_even():
    waves = SubTerrainCfg(mdp.waves, amplitude=(0.3, 0.3))
    env, mesh = _ground(waves, tile_size=4.0, border_width=1.0)
    points = torch.as_tensor(np.array(mesh.vertices), dtype=torch.float32)
    assert points[:, 2].max() - points[:, 2].min() > 0.2
    torch.testing.assert_close(points[:, 2], env.terrain.height(points[:, :2]))
    assert (mesh.face_normals[:, 2] > 0.0).all()

    for kind in (mdp.flat, mdp.pyramid_slope, mdp.pyramid_stairs):
        env, mesh = _ground(SubTerrainCfg(kind), border_width=2.0)
        assert len(mesh.faces) < 0.2 * 2 * 120 * 120  # of all: 12 m of nodes 0.1 m apart
        points = torch.as_tensor(np.array(mesh.triangles_center), dtype=torch.float32)
        heights = env.terrain.height(points[:, :2])
        torch.testing.assert_close(points[:, 2], heights, atol=5e-3, rtol=0.0)
        # Seen from above, it covers all of the ground.
        (ax, ay), (bx, by) = np.diff(mesh.triangles[:, :, :2], axis=1).transpose(1, 2, 0)
        assert 0.5 * (ax * by - ay * bx).sum() == pytest.approx(144.0)
