"""Files are read only if they are files, whole, and of a size that fits."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.report import ReportConfig
from simtrain.errors import ConfigError
from simtrain.files import (
    check_path,
    check_uncompressed,
    damage_as_config_error,
    read_file,
    written_whole,
)


def test_a_file_is_read_whole(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    assert read_file(tmp_path / "file", "the file", 7) == b"content"


def test_what_is_no_regular_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "large").write_bytes(b"")
    os.truncate(tmp_path / "large", 2**42)
    for path, reason in {
        tmp_path / "pipe": "it is no regular file",
        Path("/dev/zero"): "it is no regular file",
        tmp_path: "Is a directory",
        tmp_path / "loop": "Too many levels of symbolic links",
        tmp_path / "gone": "No such file or directory",
        tmp_path / "large": r"it has 4.1e\+03 GiB, and at most .* GiB can be read",
    }.items():
        with pytest.raises(ConfigError, match=f"^the file {path} cannot be read: {reason}"):
            read_file(path, "the file")


def test_a_path_at_which_nothing_can_be_is_told_in_one_short_line(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    check_path(tmp_path / "new", "--output")
    for path in ("a" * 5000, str(tmp_path / "loop"), "a\0b", "a\udc80"):
        with pytest.raises(
            ConfigError, match=r"^--output .* (cannot be used|is no path): "
        ) as told:
            check_path(path, "--output")
        assert len(str(told.value)) < 400


def test_every_path_of_a_command_line_is_checked(tmp_path):
    for flags, message in (
        (["--output", "a" * 300], "--output a+ cannot be used: File name too long"),
        (["--output", ""], "--output is empty; it must be a path"),
        (["--output="], "--output is empty; it must be a path"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_flags("report", ReportConfig(), flags)
    for words in (["a" * 300], ["logs", ""]):
        with pytest.raises(ConfigError, match="path"):
            split_paths(words)


def test_an_archive_that_grows_is_refused(tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(2**20))
    with zipfile.ZipFile(path) as archive, pytest.raises(ValueError, match="packed into"):
        check_uncompressed(archive, path.stat().st_size)


@pytest.mark.parametrize("error", [TypeError("bad\nworse"), RecursionError("bad")])
def test_what_damage_leads_to_is_told_in_one_line(error):
    with pytest.raises(ConfigError) as told, damage_as_config_error("file is damaged"):
        raise error
    assert str(told.value) == "file is damaged: bad"


def test_a_file_appears_once_it_is_complete(tmp_path):
    with written_whole(tmp_path / "model.pt") as file:
        file.write(b"new")
        assert "model.pt" not in [p.name for p in tmp_path.iterdir()]
    assert (tmp_path / "model.pt").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")

    def write_half() -> None:
        with written_whole(path) as file:
            file.write(b"half of the new")
            raise failure

    with pytest.raises(failure):
        write_half()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]
