import mujoco
import numpy as np
import pytest
import torch
from needs_opengl import needs_opengl
from rover import rover_env, rover_model

from simtrain.env.commands import Arrow, Frame
from simtrain.view.renderer import Canvas, Picture, robot_radius

pytestmark = needs_opengl
SIZE = {"width": 320, "height": 180}


def _draw(env, index=0):
    with Picture(env, **SIZE) as picture:
        return picture.draw(index)


def _move(env, position):
    qpos = env.bind("qpos").clone()
    qpos[:, :3] = torch.tensor(position)
    env.sim.write("qpos", qpos)
    env.sim.forward()


def _colored(pixels, rgb):
    """How many pixels have nearly this hue."""
    wanted = np.array(rgb) / np.linalg.norm(rgb)
    length = np.linalg.norm(pixels, axis=-1) + 1e-6
    return int(((pixels @ wanted / length > 0.97) & (length > 60)).sum())


ORANGE = (0.9, 0.5, 0.1)


def test_the_camera_follows_smoothly_and_jumps_after_a_reset():
    env = rover_env()
    with Picture(env, **SIZE) as picture:

        def column():
            """The robot's horizontal place in the picture, on average."""
            pixels = picture.draw(passed_s=0.0)
            hits = [_colored(pixels[:, i : i + 1], ORANGE) for i in range(320)]
            return np.average(np.arange(320), weights=hits)

        pixels = picture.draw()
        assert (pixels.shape, pixels.dtype) == ((180, 320, 3), np.uint8)
        assert _colored(pixels[45:135, 80:240], ORANGE) > 0.9 * _colored(pixels, ORANGE) > 450
        start = column()
        _move(env, (0.5, 0.5, 0.1))
        assert abs(column() - start) > 5.0
        picture.draw(passed_s=100.0)
        assert column() == pytest.approx(start, abs=1.0)
        _move(env, (40.0, 0.0, 0.1))
        assert column() == pytest.approx(start, abs=1.0)


def test_a_camera_that_stands_in_the_world_shows_the_place_and_not_the_robot():
    def model():
        spec = rover_model()
        spec.worldbody.add_camera(pos=(0.0, -3.0, 0.5), xyaxes=(1.0, 0.0, 0.0, 0.0, 0.0, 1.0))
        return spec

    env = rover_env(model=model)
    with Picture(env, **SIZE) as picture:
        assert _colored(picture.draw(), ORANGE) > 500
        _move(env, (40.0, 0.0, 0.1))
        assert _colored(picture.draw(), ORANGE) == 0


def test_a_robot_in_a_plane_is_followed_by_the_camera_of_its_model():
    spec = rover_model()
    base = spec.body("base")
    spec.delete(base.joints[0])
    base.add_joint(type=mujoco.mjtJoint.mjJNT_SLIDE, axis=(1.0, 0.0, 0.0))
    tracking = mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
    base.add_camera(pos=(0.0, -3.0, 0.5), xyaxes=(1, 0, 0, 0, 0, 1), mode=tracking)
    model = spec.compile()
    data = mujoco.MjData(model)
    with Canvas(model, 320, 180) as canvas:
        for place in (0.0, 40.0):
            data.qpos[0] = place
            mujoco.mj_forward(model, data)
            assert _colored(canvas.render(data), ORANGE) > 500


def test_each_environment_has_its_own_picture_and_drawing_changes_nothing():
    env = rover_env(2)
    qpos = env.bind("qpos").clone()
    qpos[:, 7] = torch.tensor([0.0, 1.5])
    env.sim.write("qpos", qpos)
    env.commands.hold("velocity", [0.0, 0.0, 0.0])
    with Picture(env, **SIZE) as picture:
        before, random = env.sim.state(), torch.get_rng_state()
        first, second, again = picture.draw(0), picture.draw(1), picture.draw(0)
    assert (first == again).all()
    assert (first != second).any(axis=-1).mean() > 0.01
    after = env.sim.state()
    assert all(torch.equal(value, after[name]) for name, value in before.items()
               if isinstance(value, torch.Tensor))  # fmt: skip
    assert torch.equal(random, torch.get_rng_state())


def test_each_environment_is_drawn_in_its_own_size():
    def model():
        spec = rover_model()
        spec.body("base").first_geom().name = "box"
        spec.body("arm").add_geom(size=[0.02] * 3, contype=0, conaffinity=0)  # to be looked at
        return spec

    env = rover_env(2, model=model)
    box = env.model.geom("box").id
    half = env.sim.expand("geom_size")[:, box : box + 1] * torch.tensor([1.0, 0.5]).view(2, 1, 1)
    env.sim.write("geom_size", half, None, slice(box, box + 1))
    with Picture(env, **SIZE) as picture:
        first, second, again = (_colored(picture.draw(i), ORANGE) for i in (0, 1, 0))
    assert second < 0.5 * first
    assert again == first


def test_commands_are_drawn_as_an_arrow_and_written(monkeypatch):
    env, texts = rover_env(), []
    green = (0.15, 0.75, 0.25)
    render = Picture.render
    monkeypatch.setattr(Picture, "render", lambda *args: texts.append(args[3]) or render(*args))
    env.commands.hold("velocity", [0.0, 0.0, 0.0])
    assert _colored(_draw(env), green) == 0
    env.commands.hold("velocity", [2.0, -0.5, 0.25])
    assert _colored(_draw(env), green) > 20
    line = "velocity:  forward [m/s] +2.00   left [m/s] -0.50   turn [rad/s] +0.25"
    assert texts[-1] == [line, ""]


def test_a_pose_is_drawn_as_three_axes_that_are_turned_like_it(monkeypatch):
    env, at = rover_env(), np.array([0.0, 0.0, 0.3])

    def drawn(*markers):
        monkeypatch.setattr(env.commands.terms["velocity"], "markers", lambda index: markers)
        return _draw(env)

    # By 120 degrees, which turns x to y, y to z and z to x; as long as its axes look like arrows.
    frame = drawn(Frame(tuple(at), (0.5, 0.5, 0.5, 0.5), length=0.3))
    ends = at + 0.3 * np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    of = zip(ends, np.eye(3), strict=True)
    arrows = [Arrow(tuple(at), tuple(end), tuple(rgb)) for end, rgb in of]
    assert (frame == drawn(*arrows)).all()
    assert (frame != drawn()).any(axis=-1).sum() > 50


def test_the_radius_is_what_the_robot_reaches_and_counts_all_that_moves():
    # From the base's middle, the tip of the arm is farther away than the corners of the box.
    assert robot_radius(rover_env().model) == pytest.approx(np.hypot(0.15, 0.25) + 0.3, abs=0.03)

    def model():
        spec = rover_model()
        ball = spec.worldbody.add_body(pos=(0.0, 3.0, 0.1))
        ball.add_freejoint()
        ball.add_geom(size=(0.1, 0.0, 0.0))
        return spec

    assert robot_radius(rover_env(model=model).model) == pytest.approx(3.1, abs=0.01)
