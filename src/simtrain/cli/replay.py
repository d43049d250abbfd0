"""``uv run play --replay <dump>``: look at the last steps of a simulation that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simtrain.cli.exits import DONE
from simtrain.cli.parse import parse_flags
from simtrain.errors import ConfigError


@dataclass
class ReplayConfig:
    """Look at the last steps of a simulation that failed, in a browser or as a video."""

    replay: Path = Path()
    """The dump: a folder in <run>/nan_dump."""
    viewer: Literal["auto", "web", "none"] = "auto"
    """web serves a page; auto is web unless --video is given."""
    video: Path | None = None
    """Write an MP4 file instead; needs no display."""
    speed: float = 0.1
    """Simulated seconds a second."""
    host: str = "127.0.0.1"
    """Address that the web viewer listens on; 0.0.0.0 for everyone who can reach this machine."""
    port: int = 8080
    """Port of the web viewer; 0 for any that is free."""

    @property
    def serves(self) -> bool:
        """Whether to serve the web viewer."""
        return self.viewer == "web" or (self.viewer == "auto" and self.video is None)

    def check(self) -> None:
        """Raise ConfigError for values that cannot be."""
        if not self.serves and self.video is None:
            raise ConfigError("--viewer none shows nothing; add --video out.mp4")
        if not 0.0 < self.speed < float("inf"):
            raise ConfigError(f"--speed is {self.speed}; it must be greater than 0")
        if not 0 <= self.port < 2**16:
            raise ConfigError(f"--port is {self.port}; it must be from 0 to 65535")


def replay(arguments: Sequence[str]) -> int:
    """Parse the flags, and show the dump that they name; the exit code."""
    config = parse_flags("play", ReplayConfig(), arguments)
    config.check()
    if config.video is not None:
        from simtrain.view.opengl import choose_backend
        from simtrain.view.video import check_video_path

        check_video_path(config.video)
        choose_backend()
    if config.serves:
        from simtrain.view.server import check_port

        check_port(config.host, config.port)

    from simtrain.run.nan_dump import read_dump
    from simtrain.view.replay import Replay

    dump = read_dump(config.replay)
    shown = Replay(dump.model, dump.states, dump.decimation, dump.said)
    print(f"environment {dump.env} in iteration {dump.iteration}: {dump.said}")
    for line in shown.show(dump.steps - 1):
        print(f"  {line}")
    if config.video is not None:
        from simtrain.view.replay import record_replay

        record_replay(shown, config.video, config.speed)
        print(f"video: {config.video}")
    if config.serves:
        from simtrain.view.replay import ReplayPage

        page = ReplayPage(shown, host=config.host, port=config.port, speed=config.speed)
        print(f"watch it at {page.url} (Ctrl-C ends)", flush=True)
        try:
            page.run()
        finally:
            page.close()
    return DONE
