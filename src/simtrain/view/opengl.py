"""The OpenGL library that draws without a window.

``MUJOCO_GL`` chooses it. Without this variable, it is EGL, which uses a GPU if there is one, or
else OSMesa, or else the window system of a display. The error for a missing library names its
package. MuJoCo reads ``MUJOCO_GL`` when it is imported; so this module imports it only inside
functions.
"""

import ctypes
import os
import sys
from importlib import import_module

from simtrain.errors import ConfigError

_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8", "glfw": None}
REMEDIES = {
    "egl": "`apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri` gives it Mesa's driver",
    "osmesa": "`apt-get install libosmesa6 libgl1` gives it all it needs",
    "glfw": "it needs a display (DISPLAY), and MUJOCO_GL=egl draws without",
}
_AUTO = ("", "enable", "enabled", "on", "true", "1")
_DISABLED = ("disable", "disabled", "off", "false", "0")
_EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"


class RenderingError(ConfigError):
    """Nothing can be drawn on this machine; names the package to install."""


def choose_backend() -> str:
    """``egl``, ``osmesa`` or ``glfw``; RenderingError if the one of ``MUJOCO_GL`` is missing."""
    wanted = os.environ.get("MUJOCO_GL", "").lower().strip()
    if wanted in _DISABLED:
        raise RenderingError(f"MUJOCO_GL={wanted} turns rendering off; unset it to draw")
    if wanted in _AUTO:
        if backend := next(filter(_is_available, _LIBRARIES), None):
            return backend
        raise RenderingError(f"there is no OpenGL to draw with: for EGL, {REMEDIES['egl']}")
    backend = "glfw" if wanted == "glx" else wanted
    if backend not in _LIBRARIES:
        raise RenderingError(f"MUJOCO_GL is {wanted!r}; it must be egl, osmesa or glfw")
    if not _is_available(backend):
        missing = f"{_LIBRARIES[backend] or 'a display'} is missing"
        raise RenderingError(f"MUJOCO_GL={wanted}, but {missing}: {REMEDIES[backend]}")
    return backend


def _is_available(backend: str) -> bool:
    library = _LIBRARIES[backend]
    if library is None:
        return has_display()
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def import_mujoco_without_opengl() -> None:
    """Import MuJoCo even if the library of ``MUJOCO_GL`` is missing: training does not need it."""
    wanted = os.environ.get("MUJOCO_GL", "")
    if wanted.lower().strip() in ("", *_DISABLED):
        return
    try:
        choose_backend()
    except RenderingError:
        os.environ["MUJOCO_GL"] = "disable"
        try:
            import_module("mujoco")
        finally:
            os.environ["MUJOCO_GL"] = wanted


def has_display() -> bool:
    """Whether windows can be opened, according to the environment variables."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def choose_egl_device() -> None:
    """Let EGL draw on PyTorch's current GPU, if this process uses one that is not the first.

    EGL has its own order, but MuJoCo takes a number for one in ``CUDA_VISIBLE_DEVICES``.
    """
    torch = sys.modules.get("torch")
    if _EGL_DEVICE in os.environ or torch is None or not torch.cuda.is_initialized():
        return
    number, egl = torch.cuda.current_device(), import_module("mujoco.egl.egl_ext")
    # Without NVIDIA's EGL, it draws on other devices, perhaps the CPU.
    if 0 < number < len(egl.eglQueryDevicesEXT()):
        os.environ[_EGL_DEVICE] = str(number)
