from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from simtrain.errors import ConfigError
from simtrain.run import directory
from simtrain.run.directory import check_file, check_folder, make_run_directory, write_config


def test_a_run_is_named_by_its_task_its_time_and_its_name(tmp_path, monkeypatch):
    noon = datetime(2030, 1, 2, 12, 0, 0)
    monkeypatch.setattr(directory, "datetime", SimpleNamespace(now=lambda: noon))
    assert make_run_directory(tmp_path / "logs", "hop", "") == (
        tmp_path / "logs" / "hop" / "2030-01-02_12-00-00"
    )
    runs = [make_run_directory(tmp_path, "hop", "x") for _ in range(3)]  # in the same second
    assert [run.name.removeprefix("2030-01-02_12-00-00") for run in runs] == ["_x", "_x_2", "_x_3"]
    assert all(run.is_dir() for run in runs)


@pytest.mark.parametrize("log_root", ["file/logs", "link", "/proc/logs", "task-is-a-file"])
def test_a_log_root_where_no_folder_can_be_made_is_told(tmp_path, log_root):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "logs")
    (tmp_path / "task-is-a-file").mkdir()
    (tmp_path / "task-is-a-file" / "hop").touch()
    root = tmp_path / log_root  # not even root, whom permissions do not bind, can write to /proc

    def check_and_make() -> None:
        check_folder(root, "--log-root")
        make_run_directory(root, "hop", "")

    with pytest.raises(ConfigError, match="--log-root") as error:
        check_and_make()
    assert str(root) in str(error.value)
    assert "\n" not in str(error.value)


def test_checking_a_folder_makes_nothing(tmp_path):
    check_folder(tmp_path / "a" / "b", "--log-root")
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_file(Path("new.json"), "--json")
    Path("folder").mkdir()
    problems = {"gone/new.json": "gone is not a folder", "folder": "it is a folder"}
    for path, problem in problems.items():
        with pytest.raises(ConfigError, match=f"^--json {path} cannot be written: {problem}$"):
            check_file(Path(path), "--json")


def test_the_configuration_is_written_with_versions_devices_and_commit(tmp_path):
    write_config(tmp_path / "config.yaml", {"seed": 3, "dims": [64, 64]}, ["cpu"])
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert content["config"] == {"seed": 3, "dims": [64, 64]}
    assert content["devices"] == ["cpu"]
    assert {"python", "simtrain", "mujoco", "torch", "rsl-rl-lib"} <= set(content["versions"])
    assert content["git"] is None or len(content["git"]["commit"]) == 40
