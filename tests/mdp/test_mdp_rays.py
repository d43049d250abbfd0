"""Ray casts, in a world whose distances are known."""

from __future__ import annotations

import math

import mujoco
import pytest
import torch
from tiny_task import tiny_env

from simtrain import Mirror, ObservationTermCfg, mdp
from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.training.reflection import Reflection, mirror_maps

MODEL = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <geom name="wall" type="box" size="0.1 9 9" pos="3.1 0 0" group="2"/>
    <geom name="block" type="box" size="0.15 0.15 0.25" pos="0.4 -0.2 0.25" group="3"/>
    <body name="robot" pos="0 0 1">
      <freejoint/> <geom name="robot" size="0.05" pos="0 0 -0.1" mass="1"/>
      <site name="head"/> <site name="tail" pos="-0.5 0 0"/>
      <site name="left_ear" pos="0.1 0.2 0" euler="0 20 40"/>
      <site name="right_ear" pos="0.1 -0.2 0" euler="0 20 -40"/>
    </body>
    <body pos="0 9 5">
      <joint name="left_slide" type="slide" axis="1 0 0"/> <geom size="0.1" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor joint="left_slide"/> <motor site="head"/></actuator>
</mujoco>
"""
GRID = {"size": (0.8, 0.4), "resolution": 0.2}


def _env(func, model=MODEL, **params) -> Env:
    term = ObservationTermCfg(func, params={"sites": "head", **params})
    return tiny_env(
        2,
        model=lambda: mujoco.MjSpec.from_string(model),
        observations={"actor": {"rays": term}},
        symmetry=Mirror({"left_ear": "right_ear"}),
    )


def _seen(func, qpos=(0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0), **params) -> torch.Tensor:
    """What the second of two environments sees from a pose of the robot."""
    env = _env(func, **params)
    mask = torch.tensor([False, True])
    env.sim.write("qpos", torch.tensor(qpos), mask, slice(0, 7))
    env.sim.forward()
    return env.observations.compute()["actor"][1]


def _turned(axis: int, degrees: float) -> tuple[float, ...]:
    turn = [math.cos(math.radians(degrees) / 2), 0.0, 0.0, 0.0]
    turn[1 + axis] = math.sin(math.radians(degrees) / 2)
    return (0.0, 0.0, 1.0, *turn)


def test_a_grid_finds_blocks_passes_through_the_own_body_and_turns_with_the_heading():
    # The block goes from 0.25 to 0.55 along x and from -0.35 to -0.05 along y.
    level, expected = _seen(mdp.ray_grid, **GRID), torch.ones(5, 3)
    expected[4, 0] = 0.5
    torch.testing.assert_close(level.view(5, 3), expected)
    # Forward along -y: the block is a step ahead, and two to the left.
    wide = _seen(mdp.ray_grid, _turned(2, -90.0), size=(0.8, 0.8), resolution=0.2).view(5, 5)
    assert (wide < 0.99).nonzero().tolist() == [[3, 4]]
    torch.testing.assert_close(_seen(mdp.ray_grid, _turned(1, 20.0), **GRID), level)  # not tilted
    along = _seen(mdp.ray_grid, _turned(1, 20.0), alignment="site", size=(0.0, 0.0))
    assert along.item() == pytest.approx(1.0 / math.cos(math.radians(20.0)), rel=1e-5)


def test_a_grid_from_above_sees_what_is_higher_than_the_site():
    low = (0.4, -0.2, 0.3, 1.0, 0.0, 0.0, 0.0)
    params = {"size": (0.0, 0.0), "geom_groups": (3,)}
    assert _seen(mdp.ray_grid, low, height=2.0, **params).item() == pytest.approx(-0.2, abs=1e-5)


def test_rays_meet_the_groups_that_are_named_up_to_the_largest_distance():
    assert (_seen(mdp.ray_grid, geom_groups=(5,), max_distance=2.5, **GRID) == 2.5).all()
    assert (_seen(mdp.ray_grid, max_distance=0.7, **GRID) == 0.7).sum() == 14


def test_a_ring_scans_around_or_down():
    around = _seen(mdp.ray_ring, count=4, elevation=0.0, radius=0.5, max_distance=8.0)
    torch.testing.assert_close(around, torch.tensor([2.5, 8.0, 8.0, 8.0]))
    oblique = _seen(mdp.ray_ring, count=3, radius=0.0, elevation=-45.0, geom_groups=(0,))
    torch.testing.assert_close(oblique, torch.full((3,), math.sqrt(2.0)))
    # Several sites stand side by side.
    both = _seen(mdp.ray_ring, sites=("head", "tail"), count=2, elevation=0.0, max_distance=9.0)
    torch.testing.assert_close(both, torch.tensor([2.9, 9.0, 3.4, 9.0]))


def test_a_camera_sees_depth_from_the_top_left():
    image = _seen(mdp.ray_pinhole, width=4, height=3, fovy=60.0, max_distance=20.0)
    assert image.shape == (1, 3, 4)
    pixel = 2.0 * math.tan(math.radians(30.0)) / 3
    torch.testing.assert_close(image[0, :2], torch.full((2, 4), 3.0))
    # The lowest row meets the floor 1 m below, or the block.
    torch.testing.assert_close(image[0, 2, :2], torch.full((2,), 1.0 / pixel))
    params = {"width": 8, "height": 8, "geom_groups": (2,), "max_distance": 20.0}
    left, right = (_seen(mdp.ray_pinhole, _turned(2, a), **params)[0, 0] for a in (30.0, -30.0))
    torch.testing.assert_close(left, right.flip(0))
    assert (left.diff() < 0.0).all()  # looking to the left, the wall is nearer on the right


@pytest.mark.parametrize("alignment", ["site", "yaw", "world"])
@pytest.mark.parametrize(
    ("func", "params"),
    [
        (mdp.ray_grid, GRID),
        (mdp.ray_ring, {"count": 7, "elevation": -20.0}),
        (mdp.ray_pinhole, {"width": 5, "height": 4, "fovy": 90.0}),
    ],
)
def test_a_reflected_robot_sees_what_the_reflection_of_its_rays_tells(func, params, alignment):
    params = {"sites": (".*_ear", "head"), "alignment": alignment, "max_distance": 9.0, **params}
    seen = _seen(func, (0.1, 0.3, 1.0, 0.9, 0.1, 0.2, 0.3), **params)
    other_side = MODEL.replace('pos="0.4 -0.2 0.25"', 'pos="0.4 0.2 0.25"')
    image = _seen(func, (0.1, -0.3, 1.0, 0.9, -0.1, 0.2, -0.3), model=other_side, **params)
    reflect = mirror_maps(_env(func, **params), torch.device("cpu")).observations["actor"]
    torch.testing.assert_close(reflect(seen.unsqueeze(0))[0], image)
    assert not torch.allclose(seen, image, atol=0.1)


def test_rays_that_have_no_mirror_image_are_refused():
    def refuse(model, normal, match, **params):
        env = _env(mdp.ray_ring, model, sites=".*_ear", **params)
        env.cfg.symmetry = Mirror({"left_ear": "right_ear"}, normal)
        with pytest.raises(ConfigError, match=match):
            Reflection(env.cfg, env.model)

    turned = MODEL.replace("0 20 -40", "0 20 40")
    text = "rays: the site 'left_ear' is not oriented like its mirror image"
    refuse(turned, "y", text)
    refuse(turned, "y", text, alignment="site")
    facing = MODEL.replace("0 20 40", "0 0 0").replace("0 20 -40", "0 0 180")
    refuse(facing, "x", "rays: the pattern of its rays is not symmetric", count=3)
