"""The page of a film, and the film of a failed simulation from the run's files on."""

import itertools
from contextlib import closing
from pathlib import Path

import imageio_ffmpeg
import mujoco
import numpy as np
import pytest
from needs_opengl import needs_opengl

from simtrain.cli.play import play
from simtrain.env.nan_guard import Dump
from simtrain.errors import ConfigError
from simtrain.motion.clip import MotionClip, load_robot
from simtrain.training.features.failures import read_dump, write_dump
from simtrain.view.film import FilmPage, MotionFilm, Replay

G1 = Path(__file__).parents[2] / "tasks" / "g1"
ARM = """<mujoco><option timestep="0.01"/><worldbody>
    <body><joint name="shoulder" axis="0 1 0"/><geom type="capsule" size="0.05" fromto="0 0 0 0 0 1"
      rgba="1 0.5 0 1"/></body>
  </worldbody><actuator><motor name="motor" joint="shoulder"/></actuator></mujoco>"""


@pytest.fixture
def dump(tmp_path):
    """Four steps; the arm swings, and in the last one its speed is not finite."""
    model = mujoco.MjModel.from_xml_string(ARM)
    content = np.zeros(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, content)
    states = {
        "time": np.arange(4) * 0.02,
        "qpos": np.array([[0.0], [0.5], [1.0], [1.5]]),
        "qvel": np.array([[0.0], [25.0], [50.0], [np.nan]]),
        "ctrl": np.array([[0.0], [0.1], [-0.7], [0.2]]),
    }
    folder = tmp_path / "nan_dump"
    write_dump(folder, Dump(5, "oh", states, content.tobytes()), decimation=2, iteration=9)
    return folder


def rewrite(dump, **changes):
    states = dict(np.load(dump / "states.npz"))
    np.savez(dump / "states.npz", **{**states, **changes})


def _replay(dump):
    return Replay(dump.model, dump.states, dump.decimation, dump.message)


def test_each_step_is_shown_with_its_largest_values_and_the_failure_is_simulated_again(dump):
    replay = _replay(read_dump(dump))
    assert replay.show(2) == [
        "step 3 of 4, 0.040 s", "largest |qpos| 1   |qvel| 50   |ctrl| 0.7"
    ]  # fmt: skip
    tip = replay.data.geom_xpos[0]
    assert tip == pytest.approx([0.5 * np.sin(1.0), 0.0, 0.5 * np.cos(1.0)])
    lines = replay.show(3)
    assert lines[0] == "step 4 of 4, 0.060 s, in which it failed"
    assert lines[2] == "not finite: qvel of joint shoulder"
    assert lines[3].startswith("physics step 1: Nan, Inf or huge value in QVEL at DOF 0")


def test_positions_that_are_not_finite_leave_the_last_ones_to_be_seen(dump):
    saved = read_dump(dump)
    saved.states["qpos"][3] = np.inf
    replay = _replay(saved)
    replay.show(2)
    before = replay.data.geom_xpos.copy()
    assert "not finite: qpos of joint shoulder" in replay.show(3)
    assert (replay.data.geom_xpos == before).all()
    saved.states["qpos"][3] = saved.states["qvel"][3] = 0.5
    assert _replay(saved).failure == [
        "simulated again on the CPU it does not fail; training said: oh"
    ]


@needs_opengl
def test_a_video_shows_the_steps_slowly(dump, tmp_path, capsys):
    path = tmp_path / "out.mp4"
    assert play(["--replay", str(dump), "--video", str(path), "--speed", "0.06"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("environment 5 in iteration 9: oh\n  step 4 of 4")
    frames = imageio_ffmpeg.read_frames(str(path))
    meta = next(frames)
    assert meta["fps"] == 30.0
    pixels = [np.frombuffer(frame, np.uint8).astype(int) for frame in frames]
    # 0.02 s at that speed last ten frames; the last step stays for two seconds.
    assert len(pixels) == 3 * 10 + 60
    changes = [np.abs(new - old).mean() for old, new in itertools.pairwise(pixels)]
    assert sorted(np.argsort(changes)[-3:]) == [9, 19, 29]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda dump: (dump / "states.npz").unlink(), "is no dump of a failed simulation"),
        (lambda dump: (dump / "states.npz").write_bytes(b"no"), "is damaged"),
        (lambda dump: (dump / "model.mjb").write_bytes(b"no"), "checksum of model.mjb is wrong"),
        (lambda dump: rewrite(dump, qvel=np.zeros((4, 7))), "damaged: qvel is of another model"),
        (lambda dump: rewrite(dump, nonsense=np.zeros(4)), "damaged: it has an unknown 'nonsense'"),
        (lambda dump: rewrite(dump, qpos=np.array([object()])), "is damaged: .*allow_pickle"),
    ],
)
def test_a_damaged_dump_is_told(dump, damage, message):
    damage(dump)
    with pytest.raises(ConfigError, match=message):
        play(["--replay", str(dump), "--port", "0"])


def test_frames_go_by_in_real_time_and_begin_again_or_stop_at_the_end():
    model = load_robot(G1 / "scene.xml")
    film = MotionFilm(MotionClip.load(G1 / "motions" / "bow.npz", model), model)
    with closing(FilmPage(film, host="127.0.0.1", port=0, speed=1.5)) as page:
        assert page.next_frame(10.0, 0.4) == pytest.approx(10.0 + 0.4 * 1.5 * 50.0)
        assert page.next_frame(269.0, 0.1) == 270.0
        assert page._playing.value
        assert page.next_frame(270.0, 0.1) == pytest.approx(0.1 * 1.5 * 50.0)
        page._loop.value = False
        assert page.next_frame(269.0, 0.1) == 270.0
        assert not page._playing.value
        page._playing.value = True  # as a person does
        assert page.next_frame(270.0, 0.1) == pytest.approx(0.1 * 1.5 * 50.0)
        assert page._playing.value
        film.end_seconds = 2.0  # for which the last frame stays, as of a failure
        assert page.next_frame(269.0, 1.0) == pytest.approx(269.0 + 1.5 * 50.0)
        assert page.next_frame(269.0, 10.0) == 270.0 + 2.0 * 1.5 * 50.0
