"""Robots of the Menagerie, from a made-up clone of it and a made-up cache."""

import os
from pathlib import Path

import pytest

from simtrain.assets import menagerie
from simtrain.errors import ConfigError

ROBOT = """<mujoco model="{}">
  <worldbody><body name="base"><geom size="0.1"/></body></worldbody>
</mujoco>"""
SCENE = """<mujoco>
  <include file="go2.xml"/>
  <worldbody><geom name="floor" type="plane" size="1 1 1"/></worldbody>
</mujoco>"""


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    for name in ("MENAGERIE_ROOT", "MENAGERIE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _write(folder: Path, model: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "go2.xml").write_text(ROBOT.format(model))
    (folder / "scene.xml").write_text(SCENE)
    return folder


def test_a_robot_comes_from_the_folder_that_menagerie_root_names(monkeypatch, tmp_path):
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path / "clone"))
    folder = _write(tmp_path / "clone" / "unitree_go2", "go2")
    model = menagerie("unitree_go2").compile()
    assert [model.geom(i).name for i in range(model.ngeom)] == ["floor", ""]
    spec = menagerie("unitree_go2", "go2")
    spec.body("base").add_site(name="imu")
    assert spec.compile().nsite == 1
    assert menagerie("unitree_go2", "go2").compile().nsite == 0  # another one each time

    with pytest.raises(ConfigError, match=r"'unitree_go' in MENAGERIE_ROOT=.*mean 'unitree_go2'"):
        menagerie("unitree_go")
    with pytest.raises(
        ConfigError, match=r"no go1.xml \(did you mean 'go2'\?\); .* has go2, scene"
    ):
        menagerie("unitree_go2", "go1")
    (folder / "scene.xml").write_text("<mujoco")
    with pytest.raises(ConfigError, match=r"scene.xml is not a valid model: XML parse error"):
        menagerie("unitree_go2")


def test_a_robot_comes_from_the_cache_of_the_package(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="`uvx mujoco-menagerie prefetch unitree_go2` gets it"):
        menagerie("unitree_go2")
    models = tmp_path / "cache" / "mujoco_menagerie" / "models"
    for number, version in enumerate(("old", "new", "unfinished")):
        folder = _write(models / f"unitree_go2-{version}", version)
        if version != "unfinished":
            (folder / ".complete").touch()
        os.utime(folder, (number, number))
    assert menagerie("unitree_go2", "go2").modelname == "new"
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match="elsewhere"):
        menagerie("unitree_go2")
