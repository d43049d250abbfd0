"""Which OpenGL draws, on machines with and without its libraries."""

import ctypes

import pytest

from simtrain.view.opengl import RenderingError, backend_error, choose_backend


@pytest.fixture
def machine(monkeypatch):
    """A machine with some libraries and some variables, and no others."""

    def make(*libraries, **variables):
        def load(library):
            if library not in libraries:
                raise OSError(f"{library}: cannot open shared object file")

        for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(ctypes, "CDLL", load)

    return make


def test_egl_comes_before_osmesa_and_that_before_windows(machine):
    machine("libEGL.so.1", "libOSMesa.so.8", DISPLAY=":0")
    assert choose_backend() == "egl"
    machine("libOSMesa.so.8", DISPLAY=":0")
    assert choose_backend() == "osmesa"
    machine(DISPLAY=":0")
    assert choose_backend() == "glfw"
    machine(WAYLAND_DISPLAY="wayland-0")
    assert choose_backend() == "glfw"


def test_mujoco_gl_decides(machine):
    machine("libEGL.so.1", "libOSMesa.so.8", MUJOCO_GL="OSMesa")
    assert choose_backend() == "osmesa"
    machine("libEGL.so.1", MUJOCO_GL="glfw", DISPLAY=":0")
    assert choose_backend() == "glfw"
    machine("libEGL.so.1", MUJOCO_GL="on")
    assert choose_backend() == "egl"


def test_what_is_missing_is_named_by_its_package(machine):
    machine()
    with pytest.raises(RenderingError, match=r"apt-get install libegl1.*libosmesa6"):
        choose_backend()
    machine("libOSMesa.so.8", MUJOCO_GL="egl")
    with pytest.raises(RenderingError, match=r"libEGL.so.1 is missing: `apt-get install libegl1`"):
        choose_backend()
    machine("libEGL.so.1", MUJOCO_GL="osmesa")
    with pytest.raises(RenderingError, match=r"libOSMesa.so.8 is missing.* libosmesa6`"):
        choose_backend()


def test_mujoco_gl_that_draws_nothing_is_told(machine):
    machine("libEGL.so.1", MUJOCO_GL="disable")
    with pytest.raises(RenderingError, match="MUJOCO_GL=disable turns rendering off; unset it"):
        choose_backend()
    machine("libEGL.so.1", MUJOCO_GL="vulkan")
    with pytest.raises(RenderingError, match="'vulkan'; it must be egl, osmesa or glfw"):
        choose_backend()


def test_windows_need_a_display(machine):
    machine("libEGL.so.1", MUJOCO_GL="glfw")
    with pytest.raises(RenderingError, match=r"needs a display.*MUJOCO_GL=egl draws without"):
        choose_backend()


def test_a_library_that_fails_is_told_with_its_reason_and_what_to_install():
    error = backend_error("egl", ImportError("Cannot initialize\n a EGL device display."))
    assert "by egl fails: Cannot initialize a EGL device display.; " in str(error)
    assert "apt-get install libegl-mesa0 libgl1-mesa-dri" in str(error)
