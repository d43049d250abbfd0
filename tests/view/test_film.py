"""The page of a film: it plays at the speed that is set, and again and again with Loop."""

from contextlib import closing
from pathlib import Path

import pytest

from simtrain.motion.clip import MotionClip, load_robot
from simtrain.view.film import FilmPage, MotionFilm

G1 = Path(__file__).parents[2] / "tasks" / "g1"


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
