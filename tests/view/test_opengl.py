"""Which OpenGL draws, on machines with and without its libraries."""

import ctypes
import os
import sys
from types import SimpleNamespace

import mujoco
import pytest
import torch

from simtrain.view import renderer
from simtrain.view.opengl import RenderingError, choose_backend, choose_egl_device

EGL, OSMESA = "libEGL.so.1", "libOSMesa.so.8"


@pytest.fixture
def machine(monkeypatch):
    """A machine with some libraries and some variables, and no others."""

    def make(libraries, **variables):
        def load(library):
            if library not in libraries:
                raise OSError(f"{library}: cannot open shared object file")

        for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(ctypes, "CDLL", load)

    return make


@pytest.mark.parametrize(
    ("libraries", "variables", "backend"),
    [
        ((EGL, OSMESA), {"DISPLAY": ":0"}, "egl"),
        ((OSMESA,), {"DISPLAY": ":0"}, "osmesa"),
        ((), {"WAYLAND_DISPLAY": "wayland-0"}, "glfw"),
        ((EGL, OSMESA), {"MUJOCO_GL": "OSMesa"}, "osmesa"),
        ((EGL,), {"MUJOCO_GL": "glfw", "DISPLAY": ":0"}, "glfw"),
        ((EGL,), {"MUJOCO_GL": "on"}, "egl"),
    ],
)
def test_what_is_there_and_mujoco_gl_decide(libraries, variables, backend, machine):
    machine(libraries, **variables)
    assert choose_backend() == backend


@pytest.mark.parametrize(
    ("libraries", "wanted", "message"),
    [
        ((), "", r"for EGL, `apt-get install libegl1 "),
        ((OSMESA,), "egl", r"libEGL.so.1 is missing: `apt-get install libegl1 "),
        ((EGL,), "disable", "MUJOCO_GL=disable turns rendering off; unset it"),
        ((EGL,), "vulkan", "'vulkan'; it must be egl, osmesa or glfw"),
        ((EGL,), "glfw", r"needs a display.*MUJOCO_GL=egl draws without"),
    ],
)
def test_errors_name_the_package_or_the_variable(libraries, wanted, message, machine):
    machine(libraries, MUJOCO_GL=wanted)
    with pytest.raises(RenderingError, match=message):
        choose_backend()


def test_a_library_that_fails_is_reported_with_the_reason_and_the_package(monkeypatch):
    def fail():
        raise ImportError("Cannot initialize\n a EGL device display.")

    monkeypatch.setattr(renderer, "choose_backend", lambda: "egl")
    monkeypatch.setattr(renderer, "choose_egl_device", fail)
    says = "by egl fails: Cannot initialize a EGL device display.; `apt-get install libegl1 "
    with pytest.raises(RenderingError, match=says):
        renderer.Canvas(mujoco.MjModel.from_xml_string("<mujoco/>"), 32, 32)


@pytest.mark.parametrize(
    ("gpu", "devices", "own", "chosen"),
    [
        (0, 4, None, None),  # MuJoCo tries the first visible GPU first, and then others
        (2, 4, None, "2"),
        (2, 4, "0", "0"),
        (1, 1, None, None),  # Mesa's alone
        (None, 4, None, None),  # on the CPU
    ],
)
def test_egl_draws_on_the_gpu_of_the_process_unless_the_user_says_where(
    gpu, devices, own, chosen, monkeypatch
):
    name = "MUJOCO_EGL_DEVICE_ID"
    monkeypatch.setenv(name, own or "")
    if own is None:
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: gpu)
    egl = SimpleNamespace(eglQueryDevicesEXT=lambda: [None] * devices)
    monkeypatch.setitem(sys.modules, "mujoco.egl.egl_ext", egl)
    choose_egl_device()
    assert os.environ.get(name) == chosen
