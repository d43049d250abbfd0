import math
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from walker import set_state, value, walker_env, walker_model, walker_task

from simtrain import CommandTermCfg, CurriculumTermCfg, SubTerrainCfg, TerrainCfg, mdp
from simtrain import TerminationTermCfg as Termination
from simtrain.config.tasks import default_config
from simtrain.env.env import Env
from simtrain.env.model import check_task, evaluation_task
from simtrain.env.names import resolve_params
from simtrain.env.terrain import make_heights
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg

RANDOM, UPRIGHT = np.random.default_rng(0), (1.0, 0.0, 0.0, 0.0)


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
    return TerrainCfg(**{"sub_terrains": kinds, "num_levels": 3, "num_columns": 8, **changes})


@pytest.mark.parametrize(("inverted", "sign"), [(False, 1.0), (True, -1.0)])
def test_pyramids_rise_from_the_edge_to_their_platform(inverted, sign):
    x, y = _grid()
    middle = len(x) // 2
    slope = sign * mdp.pyramid_slope(x, y, 0.5, RANDOM, (0.1, 0.5), 2.0, inverted)
    assert slope[middle, middle] == slope[middle, middle + 10] == pytest.approx(0.3 * 3.0)
    assert slope[middle, middle + 20] == pytest.approx(0.3 * 2.0)
    assert slope[middle + 20, middle - 30] == pytest.approx(0.3 * 1.0)
    assert not slope[0].any()
    assert not slope[:, 0].any()
    stairs = sign * mdp.pyramid_stairs(x, y, 1.0, RANDOM, (0.02, 0.15), 0.4, 2.0, inverted)
    # Treads of four nodes; 3 m of stairs hold seven of them, the platform takes the rest.
    expected = 0.15 * np.minimum(np.arange(40) // 4, 7)
    np.testing.assert_allclose(stairs[middle, :middle], expected, atol=1e-9)


def test_boxes_have_flat_tops_within_their_bounds():
    height = mdp.random_boxes(*_grid(), 1.0, RANDOM, (0.0, 0.2), 0.4, 1.0)  # type: ignore[call-arg]
    blocks = height.reshape(20, 4, 20, 4)
    flat = (blocks == blocks[:, :1, :, :1]).all(axis=(1, 3))
    assert flat[:8].all()
    tops = blocks[:8, 0, :, 0]
    assert np.abs(tops).max() <= 0.2
    assert tops.std() == pytest.approx(0.4 / math.sqrt(12), rel=0.15)
    assert not height[36:45, 36:45].any()


def test_waves_are_whole_sines_and_roughness_is_uniform_noise():
    x, y = _grid()
    height = mdp.waves(x, y, 0.0, RANDOM, (0.1, 0.5), num_waves=2)
    expected = 0.1 * np.sin(np.pi / 2 * x) * np.sin(np.pi / 2 * y)  # 0 at the tile's edges
    np.testing.assert_allclose(height, expected, atol=1e-12)
    rough = mdp.random_rough(x, y, 1.0, RANDOM, (0.0, 0.1))
    assert np.abs(rough).max() <= 0.1
    assert rough.std() == pytest.approx(0.2 / math.sqrt(12), rel=0.02)
    assert abs(np.corrcoef(rough[:, :-1].ravel(), rough[:, 1:].ravel())[0, 1]) < 0.05


def test_levels_go_along_x_and_kinds_along_y_by_their_proportions():
    cfg = _everything(border_width=1.0)
    heights = make_heights(cfg)
    assert heights.shape == (8 * 80 + 21, 3 * 80 + 21)
    slope = heights[10 + 80 : 10 + 160]  # the second column
    tops = [slope[:, 10 + 80 * i : 10 + 80 * (i + 1)].max() for i in range(3)]
    np.testing.assert_allclose(tops, [0.0, 0.2 * 3.0, 0.4 * 3.0], atol=1e-6)
    assert not heights[:10].any()
    assert not heights[:, -10:].any()
    np.testing.assert_array_equal(heights, make_heights(cfg))
    kinds = {
        "flat": SubTerrainCfg(mdp.flat, proportion=3.0),
        "slope": SubTerrainCfg(mdp.pyramid_slope, proportion=1.0, slope=(1.0, 1.0)),
    }
    heights = make_heights(TerrainCfg(kinds, num_levels=1, num_columns=4, border_width=0.0))
    np.testing.assert_allclose(heights[:-1].reshape(4, -1).max(axis=1), [0.0, 0.0, 0.0, 3.0])


def test_environments_start_on_the_ground_in_the_middle_of_their_tiles():
    env = walker_env(48, terrain=_everything())
    terrain = env.terrain
    assert not (env.model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE).any()
    assert walker_model().compile().nhfield == 0
    assert terrain.columns.tolist() == sorted(list(range(8)) * 6)
    assert set(terrain.levels.tolist()) == {0, 1, 2}
    middles = torch.stack(((terrain.levels - 1) * 8.0, (terrain.columns - 3.5) * 8.0), dim=1)
    torch.testing.assert_close(terrain.origins[:, :2], middles)
    above = terrain.origins[:, 2] - terrain.height(terrain.origins[:, :2])
    assert above.min() >= -1e-5
    assert above.max() <= 0.2


@pytest.mark.parametrize("task", ["go1-velocity-rough", "g1-velocity-rough"])
def test_robots_start_with_no_foot_in_the_ground(task):
    cfg = default_config(task).env
    kinds = cfg.terrain.sub_terrains
    cfg.terrain.sub_terrains = {name: kinds[name] for name in ("boxes", "waves", "stairs_up")}
    cfg.terrain.max_initial_level = cfg.terrain.num_levels - 1
    cfg.events["reset_joints"].params["position"] = (0.0, 0.0)
    env = Env(cfg, 300, EngineCfg(threads=1))
    env.terrain.move(torch.full((300,), True), 7 - env.terrain.levels)
    env.reset()
    geoms = resolve_params({"geoms": r".*_foot\d?_collision"}, env.model, "cpu")["geoms"]
    places = env.bind("geom_xpos")[:, geoms.ids]
    radius = torch.as_tensor(env.model.geom_size[np.asarray(geoms.ids), 0]).float()
    inside = env.terrain.height(places[..., :2]) - (places[..., 2] - radius)
    assert (inside < 0.005).all()


def test_heights_agree_with_rays_through_the_simulated_terrain():
    env = walker_env(terrain=_everything())
    data = mujoco.MjData(env.model)
    mujoco.mj_forward(env.model, data)
    points = (torch.rand(2000, 2) * 2.0 - 1.0) * torch.tensor(env.terrain.half_size) * 0.99
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
    # Also of robots that were thrown away.
    far = torch.tensor([[math.nan, 0.0], [1e30, -1e30], [math.inf, -math.inf]])
    assert torch.isfinite(env.terrain.height(far)).all()
    assert torch.isfinite(env.terrain.highest(far)).all()


def test_the_scan_agrees_with_rays_as_numbers_and_as_an_image():
    env, yaw = walker_env(terrain=_everything(num_levels=1)), 0.7
    pose = [3.0, 12.0, 3.0, math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2), 0.0, 0.0]
    set_state(env, torch.tensor([pose]))
    scan = value(env, mdp.height_scan, size=(1.6, 1.0), resolution=0.2, offset=0.0)[0]
    image = value(env, mdp.height_scan, size=(1.6, 1.0), offset=0.3, image=True)
    torch.testing.assert_close(image, scan.view(1, 1, 9, 6) - 0.3)
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


def test_episodes_end_by_the_height_above_the_ground_and_before_the_border_does():
    slope = {"slope": SubTerrainCfg(mdp.pyramid_slope, slope=(0.5, 0.5))}
    env = walker_env(4, terrain=TerrainCfg(slope, num_levels=2, num_columns=1, border_width=2.0))
    # 2 x 8 m of tiles along x, 8 m along y, and the border: 10 m and 6 m from the middle.
    at = [(8.9, 4.9, 0.31), (-9.1, 0.0, 0.29), (4.0, 0.0, 1.81), (4.0, 5.1, 0.29)]
    set_state(env, torch.tensor([(*place, *UPRIGHT, 0.0, 0.0) for place in at]))
    assert mdp.root_height_below_minimum(env, 0.3).tolist() == [False, True, False, True]
    assert mdp.terrain_out_of_bounds(env, margin=1.0).tolist() == [False, True, False, True]


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
    bounds = {"lin_vel_x": (-part, part), "lin_vel_y": (-part / 2, part / 2)}
    bounds |= {"ang_vel_z": (-1.0, 1.0), "rel_standing_envs": 0.1}
    env = walker_env(
        400,
        terrain=_everything(num_levels=5),
        curricula={"levels": CurriculumTermCfg(mdp.terrain_levels, command="velocity")},
        terminations={"fell": Termination(mdp.bad_orientation, limit_angle=1.0)},
        commands={"velocity": CommandTermCfg(mdp.UniformVelocityCommand, (4.0, 8.0), **bounds)},
        episode_length_s=20.0,
        decimation=20,
    )
    terrain, everywhere = env.terrain, torch.full((400,), True)
    terrain.move(everywhere, 2 - terrain.levels)
    qvel = env.bind("qvel").clone()
    for step in range(200 if falls_after is None else round(falls_after / env.step_dt)):
        env.episode_length_buf.fill_(step + 1)
        qvel[:, :2] = tracking * env.command("velocity")[:, :2]  # it never turns
        env.sim.write("qvel", qvel)  # nothing moves
        env.curricula.observe()
        env.commands.compute()
    env.terminations.terminated.fill_(falls_after is not None)
    env.curricula.compute(everywhere)
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
    env.terrain.move(torch.full((3,), True), 1 - env.terrain.levels)
    env.command("velocity").fill_(500.0)
    env.curricula.observe()
    env.curricula.compute(torch.tensor([True, False, True]))
    assert env.terrain.levels.tolist() == [2, 1, 2]
    assert env.curricula.log["Curriculum/levels"] == pytest.approx(5 / 3)


def test_an_episode_ends_when_the_commands_add_up_to_the_distance_but_not_in_evaluations():
    params = {"command": "velocity", "distance": 3.0}
    terminations = {"walked": Termination(mdp.commanded_distance, time_out=True, **params)}
    env = walker_env(3, terminations=terminations)
    speeds, step_dt = torch.tensor([0.0, 0.5, 1.0]) / env.step_dt, env.step_dt
    ended = []
    for _ in range(4):
        env.command("velocity")[:, :2] = torch.stack([speeds, 0.0 * speeds], dim=1)
        ended.append(env.step(torch.zeros(3, 2))[2].tolist())
    assert ended == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert step_dt * speeds[2] * 4 > 3.0
    evaluated = evaluation_task(walker_task(terminations=terminations))
    assert evaluated.terminations["walked"].params["distance"] > 1e6
    assert terminations["walked"].params["distance"] == 3.0


def test_more_environments_stand_after_some_steps():
    params = {"command": "velocity", "share": 1.0, "after_steps": 2}
    env = walker_env(4, curricula={"standing": CurriculumTermCfg(mdp.standing_envs, **params)})
    everywhere = torch.ones(4, dtype=torch.bool)
    for share in (0.0, 0.0, 1.0):
        env.curricula.compute(everywhere)
        env.commands.terms["velocity"].resample(everywhere)
        env.commands.terms["velocity"].update()
        assert (env.command("velocity") == 0.0).all() == (share == 1.0)
        env.step(torch.zeros(4, 2))


def _widening(**params):
    params = {"command": "velocity", "start": 0.2, "steps": 4, **params}
    return walker_env(1, curricula={"ranges": CurriculumTermCfg(mdp.command_ranges, **params)})


@pytest.mark.parametrize(
    ("params", "forward", "left"),
    [
        ({}, (0.2, 0.4, 0.6, 0.8, 1.0, 1.0), (0.2, 0.4, 0.6, 0.8, 1.0, 1.0)),
        ({"after_steps": 2, "ranges": ("lin_vel_x",)}, (0.2, 0.2, 0.2, 0.6, 1.0, 1.0), (1.0,) * 6),
    ],
)
def test_command_ranges_widen_with_the_steps(params, forward, left):
    env = _widening(**params)
    term: Any = env.commands.terms["velocity"]
    for x, y in zip(forward, left, strict=True):
        env.curricula.compute(torch.tensor([True]))
        assert term.high[0] == pytest.approx(1.0 * x)
        assert term.low[1] == pytest.approx(-0.5 * y)
        env.step(torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ranges": ("lin_vel_z",)}, "ranges has 'lin_vel_z' .*did you mean"),
        ({"after_steps": 4}, "after_steps is 4; it must be below steps, 4"),
    ],
)
def test_ranges_that_cannot_widen_are_refused(params, message):
    with pytest.raises(ConfigError, match=message):
        _widening(**params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sub_terrains": {}}, "needs a sub-terrain"),
        ({"tile_size": 8.05}, "--env.terrain.tile-size is 8.05; it must be an even multiple"),
        ({"max_initial_level": 3}, "--env.terrain.max-initial-level is 3; levels go from 0 to 2"),
        (
            {"sub_terrains": {"stairs": SubTerrainCfg(mdp.pyramid_stairs, step_heigth=(0.0, 0.1))}},
            r"sub-terrains\.stairs: .*did you mean 'step_h",
        ),
    ],
)
def test_an_impossible_terrain_is_told(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_task(walker_task(terrain=_everything(**changes)))
