import math

import mujoco
import numpy as np
import pytest
import torch
from needs_opengl import needs_opengl
from walker import set_state, value, walker_env, walker_model, walker_task

from simtrain import (
    CommandTermCfg,
    CurriculumTermCfg,
    SubTerrainCfg,
    TerminationTermCfg,
    TerrainCfg,
    mdp,
)
from simtrain.config.tasks import default_config
from simtrain.env.env import Env
from simtrain.env.model import check_task
from simtrain.env.names import resolve_params
from simtrain.env.terrain import make_heights
from simtrain.errors import ConfigError
from simtrain.mdp.locomotion import terrain
from simtrain.sim import EngineCfg
from simtrain.view.renderer import Picture

RANDOM = np.random.default_rng(0)


def _grid(side=8.0, resolution=0.1):
    along = np.arange(round(side / resolution)) * resolution - side / 2
    y, x = np.meshgrid(along, along, indexing="ij")
    return x, y


def _everything(**changes):
    kinds = {
        "flat": SubTerrainCfg(mdp.flat),
        "slope": SubTerrainCfg(mdp.pyramid_slope),
        "pit": SubTerrainCfg(mdp.pyramid_slope, inverted=True),
        "stairs_down": SubTerrainCfg(mdp.pyramid_stairs),
        "stairs_up": SubTerrainCfg(mdp.pyramid_stairs, inverted=True),
        "boxes": SubTerrainCfg(mdp.random_boxes),
        "waves": SubTerrainCfg(mdp.waves),
        "rough": SubTerrainCfg(mdp.random_rough),
    }
    return TerrainCfg(kinds, **{"num_levels": 3, "num_columns": 8, **changes})


def test_flat_is_flat():
    assert not terrain.flat(*_grid(), 0.5, RANDOM).any()


@pytest.mark.parametrize("inverted", [False, True])
def test_a_slope_rises_from_the_edge_to_its_platform(inverted):
    x, y = _grid()
    height = terrain.pyramid_slope(x, y, 0.5, RANDOM, (0.1, 0.5), 2.0, inverted)
    sign = -1.0 if inverted else 1.0
    middle = len(x) // 2
    assert height[middle, middle] == pytest.approx(sign * 0.3 * 3.0)
    assert height[middle, middle + 10] == pytest.approx(sign * 0.3 * 3.0)
    assert height[middle, middle + 20] == pytest.approx(sign * 0.3 * 2.0)
    assert height[middle + 20, middle - 30] == pytest.approx(sign * 0.3 * 1.0)
    assert not height[0].any()
    assert not height[:, 0].any()


@pytest.mark.parametrize("inverted", [False, True])
def test_stairs_have_equal_steps(inverted):
    x, y = _grid()
    height = terrain.pyramid_stairs(x, y, 1.0, RANDOM, (0.02, 0.15), 0.4, 2.0, inverted)
    profile = height[len(x) // 2, : len(x) // 2] / (-0.15 if inverted else 0.15)
    # Treads of four nodes; 3 m of stairs hold seven of them, the platform takes the rest.
    expected = np.minimum(np.arange(40) // 4, 7)
    np.testing.assert_allclose(profile, expected, atol=1e-9)


def test_boxes_have_flat_tops_within_their_bounds():
    height = terrain.random_boxes(*_grid(), 1.0, RANDOM, (0.0, 0.2), 0.4, 1.0)
    blocks = height.reshape(20, 4, 20, 4)
    flat = (blocks == blocks[:, :1, :, :1]).all(axis=(1, 3))
    assert flat[:8].all()
    tops = blocks[:8, 0, :, 0]
    assert np.abs(tops).max() <= 0.2
    assert tops.std() == pytest.approx(0.4 / math.sqrt(12), rel=0.15)
    assert not height[36:45, 36:45].any()


def test_waves_are_whole_sines():
    x, y = _grid()
    height = terrain.waves(x, y, 0.0, RANDOM, (0.1, 0.5), num_waves=2)
    expected = 0.1 * np.sin(np.pi / 2 * x) * np.sin(np.pi / 2 * y)
    np.testing.assert_allclose(height, expected, atol=1e-12)
    assert np.abs(height[0]).max() < 1e-12  # and so it meets its neighbours
    assert np.abs(height[:, 0]).max() < 1e-12


def test_roughness_is_uniform_noise():
    height = terrain.random_rough(*_grid(), 1.0, RANDOM, (0.0, 0.1))
    assert np.abs(height).max() <= 0.1
    assert height.std() == pytest.approx(0.2 / math.sqrt(12), rel=0.02)
    assert abs(np.corrcoef(height[:, :-1].ravel(), height[:, 1:].ravel())[0, 1]) < 0.05


def test_levels_go_along_x_and_kinds_along_y():
    cfg = _everything(border_width=1.0)
    heights = make_heights(cfg)
    assert heights.shape == (8 * 80 + 21, 3 * 80 + 21)
    slope = heights[10 + 80 : 10 + 160]  # the second column
    tops = [slope[:, 10 + 80 * i : 10 + 80 * (i + 1)].max() for i in range(3)]
    np.testing.assert_allclose(tops, [0.0, 0.2 * 3.0, 0.4 * 3.0], atol=1e-6)
    assert not heights[:10].any()
    assert not heights[:, -10:].any()
    np.testing.assert_array_equal(heights, make_heights(cfg))


def test_columns_are_shared_out_by_proportion():
    kinds = {
        "flat": SubTerrainCfg(mdp.flat, proportion=3.0),
        "slope": SubTerrainCfg(mdp.pyramid_slope, proportion=1.0, slope=(1.0, 1.0)),
    }
    heights = make_heights(TerrainCfg(kinds, num_levels=1, num_columns=4, border_width=0.0))
    tops = [heights[80 * i : 80 * (i + 1)].max() for i in range(4)]
    np.testing.assert_allclose(tops, [0.0, 0.0, 0.0, 3.0])


def test_the_terrain_takes_the_floors_place():
    model = walker_env(terrain=_everything()).model
    planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    assert not planes.any()
    assert model.nhfield == 1
    assert walker_model().compile().nhfield == 0


def test_environments_start_on_the_ground_in_the_middle_of_their_tiles():
    env = walker_env(48, terrain=_everything())
    terrain = env.terrain
    assert terrain.columns.tolist() == sorted(list(range(8)) * 6)
    assert set(terrain.levels.tolist()) == {0, 1, 2}
    x = (terrain.levels - 1) * 8.0
    y = (terrain.columns - 3.5) * 8.0
    torch.testing.assert_close(terrain.origins[:, :2], torch.stack((x, y), dim=1))
    ground = terrain.height(terrain.origins[:, :2])
    assert (terrain.origins[:, 2] >= ground - 1e-5).all()
    assert (terrain.origins[:, 2] <= ground + 0.2).all()


@pytest.mark.parametrize("task", ["go1-velocity-rough", "g1-velocity-rough"])
def test_robots_start_with_no_foot_in_the_ground(task):
    cfg = default_config(task).env
    kinds = cfg.terrain.sub_terrains
    cfg.terrain.sub_terrains = {name: kinds[name] for name in ("boxes", "waves", "stairs_up")}
    cfg.terrain.max_initial_level = cfg.terrain.num_levels - 1
    cfg.events["reset_joints"].params["position"] = (0.0, 0.0)
    torch.manual_seed(0)
    env = Env(cfg, 300, EngineCfg(threads=1))
    env.terrain.move(torch.full((300,), True), 7 - env.terrain.levels)
    env.reset()
    geoms = resolve_params({"geoms": r".*_foot\d?_collision"}, env.model, "cpu")["geoms"]
    places = env.bind("geom_xpos")[:, geoms.ids]
    ground = env.terrain.height(places[..., :2])
    radius = torch.as_tensor(env.model.geom_size[np.asarray(geoms.ids), 0]).float()
    inside = ground - (places[..., 2] - radius)
    assert (inside < 0.005).all()


def test_heights_agree_with_rays_through_the_simulated_terrain():
    env = walker_env(terrain=_everything())
    data = mujoco.MjData(env.model)
    mujoco.mj_forward(env.model, data)
    half_x, half_y = env.terrain.half_size
    points = (torch.rand(2000, 2) * 2.0 - 1.0) * torch.tensor([half_x, half_y]) * 0.99
    # On the lines between nodes both are linear; within a square MuJoCo has two triangles. Rays
    # keep off the lines themselves, where they may slip between two triangles.
    points[:, 1] = (points[:, 1] / 0.1).round() * 0.1 + 1e-4
    down, geom, group = np.array([0.0, 0.0, -1.0]), np.zeros(1, np.int32), np.zeros(6, np.uint8)
    group[0] = 1
    robot = env.model.body("base").id
    hits = [
        10.0 - mujoco.mj_ray(env.model, data, np.array([*p, 10.0]), down, group, 1, robot, geom)
        for p in points.double().tolist()
    ]
    difference = env.terrain.height(points) - torch.tensor(hits)
    assert difference.abs().max() < 5e-3


def test_the_scan_agrees_with_rays():
    env = walker_env(terrain=_everything(num_levels=1))
    yaw = 0.7
    pose = [3.0, 12.0, 3.0, math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2), 0.0, 0.0]
    set_state(env, torch.tensor([pose]))
    scan = value(env, mdp.height_scan, size=(1.6, 1.0), resolution=0.2, offset=0.0)[0]
    data = mujoco.MjData(env.model)
    data.qpos[:] = pose
    mujoco.mj_forward(env.model, data)
    field, down = env.model.geom("terrain").id, np.array([0.0, 0.0, -1.0])
    rays = []
    for forward in np.linspace(-0.8, 0.8, 9):
        for left in np.linspace(-0.5, 0.5, 6):
            start = np.array(pose[:3])
            start[0] += math.cos(yaw) * forward - math.sin(yaw) * left
            start[1] += math.sin(yaw) * forward + math.cos(yaw) * left
            rays.append(mujoco.mj_rayHfield(env.model, data, field, start, down))
    # Within a square between four nodes the two differ by a quarter of its twist at most.
    np.testing.assert_allclose(scan.numpy(), rays, atol=0.01)


def test_a_robot_stands_on_what_the_scan_sees():
    slope = {"slope": SubTerrainCfg(mdp.pyramid_slope, slope=(0.3, 0.3))}
    env = walker_env(terrain=TerrainCfg(slope, num_levels=1, num_columns=1))
    set_state(env, torch.tensor([[0.0, 0.0, 0.9 + 0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]))
    for _ in range(3):
        env.step(torch.tensor([[-0.1, 0.2]]))
    feet = env.bind("site_xpos")[0]
    heights = env.terrain.height(feet[:, :2])
    torch.testing.assert_close(feet[:, 2] - heights, torch.full((2,), 0.05), atol=0.01, rtol=0.0)


def test_levels_move_within_the_terrain_and_only_where_asked():
    env = walker_env(4, terrain=_everything(max_initial_level=0))
    terrain, column = env.terrain, env.terrain.columns.clone()
    assert not terrain.levels.any()
    mask = torch.tensor([True, True, True, False])
    terrain.move(mask, torch.tensor([1, 2, -1, 1]))
    assert terrain.levels.tolist() == [1, 2, 0, 0]
    torch.testing.assert_close(terrain.origins[:, 0], (terrain.levels - 1) * 8.0)
    terrain.move(mask, torch.ones(4, dtype=torch.long))
    assert 0 <= terrain.levels[1] < 3  # beyond the last: anywhere
    assert torch.equal(terrain.columns, column)


def _episodes(tracking, *, part=1.0, falls_after=None):
    """Mean change of the level in an episode of 20 s at `tracking` times the commanded velocity.

    Commands are drawn from `part` of the range of -1 to 1 m/s forward and half as much sideways.
    """
    curricula = {"levels": CurriculumTermCfg(mdp.terrain_levels, command="velocity")}
    terminations = {
        "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
        "fell": TerminationTermCfg(mdp.bad_orientation, limit_angle=1.0),
    }
    command = CommandTermCfg(
        mdp.UniformVelocityCommand,
        resampling_time_range=(4.0, 8.0),
        lin_vel_x=(-part, part),
        lin_vel_y=(-0.5 * part, 0.5 * part),
        ang_vel_z=(-1.0, 1.0),
        rel_standing_envs=0.1,
    )
    torch.manual_seed(0)
    env = walker_env(
        400,
        terrain=_everything(num_levels=5),
        curricula=curricula,
        terminations=terminations,
        commands={"velocity": command},
        episode_length_s=20.0,
        decimation=20,
    )
    terrain = env.terrain
    terrain.move(torch.full((400,), True), 2 - terrain.levels)
    qvel = env.bind("qvel").clone()
    for step in range(200 if falls_after is None else round(falls_after / env.step_dt)):
        env.episode_length_buf.fill_(step + 1)
        qvel[:, :2] = tracking * env.command("velocity")[:, :2]  # it never turns
        set_state(env, qvel=qvel)
        env.curricula.observe()
        env.commands.compute()
    env.terminations.terminated.fill_(falls_after is not None)
    env.curricula.compute(torch.full((400,), True))
    return (terrain.levels - 2).float().mean().item()


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_who_follows_the_command_goes_up(part):
    assert _episodes(1.0, part=part) >= 0.5
    assert _episodes(0.85, part=part) >= 0.5
    assert _episodes(0.7, part=part) == 0.0
    assert _episodes(0.4, part=part) <= -0.5


def test_who_falls_is_measured_against_the_rest_of_the_episode():
    assert _episodes(1.0, falls_after=4.0) <= -0.5
    assert _episodes(1.0, falls_after=19.0) >= 0.5


def test_a_level_changes_only_where_an_episode_ends():
    always = {"command": "velocity", "promote": 0.0, "demote": 0.0}
    curricula = {"levels": CurriculumTermCfg(mdp.terrain_levels, **always)}
    env = walker_env(3, terrain=_everything(), curricula=curricula)
    terrain = env.terrain
    terrain.move(torch.full((3,), True), 1 - terrain.levels)
    set_state(env, qvel=torch.zeros_like(env.bind("qvel")))
    env.command("velocity").fill_(500.0)
    env.curricula.observe()
    env.curricula.compute(torch.tensor([True, False, True]))
    assert terrain.levels.tolist() == [2, 1, 2]
    assert env.curricula.log["Curriculum/levels"] == pytest.approx(5 / 3)


def test_command_ranges_widen_with_the_steps():
    curricula = {
        "ranges": CurriculumTermCfg(mdp.command_ranges, command="velocity", start=0.2, steps=4)
    }
    env = walker_env(1, curricula=curricula)
    term = env.commands.terms["velocity"]
    for expected in (0.2, 0.4, 0.6, 0.8, 1.0, 1.0):
        env.curricula.compute(torch.tensor([True]))
        assert term.high[0] == pytest.approx(1.0 * expected)
        assert term.low[1] == pytest.approx(-0.5 * expected)
        env.step(torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sub_terrains": {}}, "needs a sub-terrain"),
        ({"tile_size": 8.05}, "--env.terrain.tile-size is 8.05; it must be an even multiple"),
        ({"max_initial_level": 3}, "--env.terrain.max-initial-level is 3; levels go from 0 to 2"),
    ],
)
def test_an_impossible_terrain_is_told(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_task(walker_task(terrain=TerrainCfg(**{**vars(_everything()), **changes})))


def test_an_unknown_parameter_of_a_tile_is_told():
    kinds = {"stairs": SubTerrainCfg(mdp.pyramid_stairs, step_heigth=(0.0, 0.1))}
    with pytest.raises(ConfigError, match=r"sub-terrains\.stairs: .*did you mean 'step_h"):
        check_task(walker_task(terrain=TerrainCfg(kinds)))


@needs_opengl
def test_the_terrain_can_be_seen():
    with Picture(walker_env(terrain=_everything()), width=320, height=240) as picture:
        pixels = picture.draw()
    assert pixels.shape == (240, 320, 3)
    assert pixels.std() > 10.0
