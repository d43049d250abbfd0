"""Files are read only if they are regular, whole, and of a size that fits; so is memory given."""

from __future__ import annotations

import gc
import os
import resource
import zipfile
from pathlib import Path

import pytest
from tiny_task import tiny_env

from simtrain import files
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.report import ReportConfig
from simtrain.cli.train import train
from simtrain.errors import ConfigError
from simtrain.files import (
    check_path,
    check_uncompressed,
    damage_as_config_error,
    read_file,
    written_whole,
)


def test_reading_takes_the_memory_that_the_file_needs(tmp_path):
    """A limit of memory (``ulimit -v``) may leave less than is free on the machine."""
    (tmp_path / "file").write_bytes(b"content")
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26, before[1]))
    try:
        assert read_file(tmp_path / "file", "the file") == b"content"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_what_is_no_regular_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "large").write_bytes(b"")
    os.truncate(tmp_path / "large", 2**42)
    (tmp_path / "pointer").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    for path, reason in {
        tmp_path / "pipe": "it is no regular file",
        Path("/dev/zero"): "it is no regular file",
        tmp_path: "Is a directory",
        tmp_path / "loop": "Too many levels of symbolic links",
        tmp_path / "gone": "No such file or directory",
        tmp_path / "pointer": "Git LFS has not loaded it; say `git lfs pull`",
        tmp_path / "large": r"it has 4.1e\+03 GiB, and at most .* GiB can be read",
    }.items():
        with pytest.raises(ConfigError, match=f"^the file {path} cannot be read: {reason}"):
            read_file(path, "the file")


def test_a_path_at_which_nothing_can_be_is_refused_in_one_short_line(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    check_path(tmp_path / "new", "--output")
    refused = r"^--output .* (cannot be used|is no path): "
    for path in ("a" * 5000, str(tmp_path / "loop"), "a\0b", "a\udc80"):
        with pytest.raises(ConfigError, match=refused) as error:
            check_path(path, "--output")
        assert len(str(error.value)) < 400


def test_every_path_of_a_command_line_is_checked():
    for flags, message in {
        ("--output", "a" * 300): "--output a+ cannot be used: File name too long",
        ("--output", ""): "--output is empty; it must be a path",
        ("--output=",): "--output is empty; it must be a path",
    }.items():
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


def test_a_child_that_reads_a_model_destroys_nothing_of_its_parent(tmp_path):
    """What owns threads, such as a simulation, would wait for them: a child does not have them."""
    parent, thresholds = os.getpid(), gc.get_threshold()

    class Owner:
        def __del__(self) -> None:
            if os.getpid() != parent:
                os._exit(1)

    def read() -> int:
        if gc.isenabled():
            gc.collect()  # as any allocation may
        return 1

    model = tmp_path / "robot.xml"
    model.write_text("<mujoco/>")
    gc.collect()
    gc.set_threshold(10**6)  # the garbage stays until the child is there
    try:
        owner = Owner()
        owner.itself = owner  # type: ignore[attr-defined]
        del owner
        assert files.read_in_child_first(model, read) == 1
    finally:
        gc.set_threshold(*thresholds)


def test_damage_is_reported_in_one_line():
    message = r"^file is damaged: bad$"
    with pytest.raises(ConfigError, match=message), damage_as_config_error("file is damaged"):
        raise RecursionError("bad\nworse")


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


def test_a_container_has_the_memory_of_its_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "_CONTAINER", tmp_path)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 400\nfile 500\n")
    assert files.available_memory() == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert files.available_memory() > 2**20


def test_more_than_the_free_memory_is_refused_with_the_number_that_fits(monkeypatch):
    monkeypatch.setattr(files, "available_memory", lambda: 2**30)
    files.check_memory(2**30, 100)
    message = (
        r"^100 environments need about 2 GiB of memory, and 1 GiB are free; use --num-envs 50,"
    )
    with pytest.raises(ConfigError, match=message):
        files.check_memory(2**31, 100)
    with pytest.raises(ConfigError, match=r"100 environments in each of 4 ranks need .* fewer"):
        files.check_memory(2**31, 100, 4)
    monkeypatch.setattr(files, "available_memory", lambda: 10_000)
    with pytest.raises(ConfigError, match="3 environments need about"):
        tiny_env(3)


@pytest.mark.parametrize(
    "flags",
    ["--num-envs 16000000", "--ppo.critic.hidden-dims 65536 65536 65536"],
)
def test_a_training_that_does_not_fit_leaves_no_folder(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"need about .* GiB of memory, and .* GiB are free; use"):
        train(["cartpole-balance", "--gpu-ids", "None", *flags.split()])
    assert list(tmp_path.iterdir()) == []
