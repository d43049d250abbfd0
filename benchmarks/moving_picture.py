"""The README's moving picture: policies that ship, side by side, as a GIF that repeats smoothly.

  uv run python benchmarks/moving_picture.py --output docs/images/policies.gif

draws what `TILES` names and ships by now (`uv run simtrain export <run> --ship`); the README
shows it by

  ![Trained policies that ship: ...](docs/images/policies.gif)

Each follows its robot, under a command of its own, for the same time. The last frames fade into
the first. The number of colours falls until the file is smaller than `--most-megabytes`.

  uv run python benchmarks/moving_picture.py --output docs/images/control_suite.gif --columns 6 \\
      --height 112 --seconds 3 --fps 12.5 --policies logs/dmc-*/*_dmc_seed-1

draws runs in rows, each by a camera of its model or from the side.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg
import mujoco
import numpy as np
import torch
import tyro

from simtrain.env.env import Env
from simtrain.env.model import compile_model, evaluation_task
from simtrain.env.randomness import seed_everything
from simtrain.errors import ConfigError
from simtrain.mdp.rotations import yaw_of
from simtrain.sim import EngineCfg
from simtrain.training.saved_policy import open_policy
from simtrain.view.renderer import Canvas, take_state


@dataclass(frozen=True)
class Tile:
    """A policy to show, a task's or a run's, and from where."""

    policy: str
    after_s: float
    """Simulated time before the first frame, s."""
    command: tuple[float, ...] = ()
    """What the task's first command is held at; empty for a task without."""
    width: float = 1.0
    """In heights."""
    azimuth: float = 0.0
    elevation: float = -12.0
    """Direction of the camera that follows a robot, degrees, seen from where the robot looks to."""
    zoom: float = 1.0
    seed: int = 0


TILES = (
    Tile("go1-velocity-flat", 2.0, (0.8, 0.0, 0.0), width=1.1, azimuth=120.0, zoom=0.95),
    Tile("g1-velocity-flat", 2.0, (0.8, 0.0, 0.0), width=0.7, azimuth=130.0, zoom=1.0),
    Tile("g1-tracking", 0.0, width=0.7, azimuth=150.0, seed=3),
    Tile("yam-lift-cube", 0.0, width=1.1, azimuth=140.0, elevation=-25.0, seed=1),
    Tile("cartpole-swingup", 0.0, width=1.3),
)


SIDE = Tile("", 2.0, azimuth=90.0)
"""From the side, if the model has no camera that shows the robot."""


@dataclass
class Options:
    """Draw policies side by side."""

    output: Path = Path("docs/images/policies.gif")
    policies: tuple[str, ...] = ()
    """Runs or tasks to show in the tiles' places, in their order; none for the tasks of `TILES`."""
    columns: int | None = None
    """Policies in a row, in equal tiles; None for those of `TILES`, all in one."""
    height: int = 200
    """Pixels."""
    seconds: float = 4.0
    fps: float = 20.0
    """A GIF can have 10, 12.5, 16.67, 20, 25 and 50."""
    fade_s: float = 0.4
    most_megabytes: float = 3.0


def main() -> None:
    options = tyro.cli(Options)
    if options.columns is None:
        names = [*options.policies, *(tile.policy for tile in TILES[len(options.policies) :])]
        chosen = list(zip(TILES, names, strict=False))
    else:
        chosen = [(SIDE, name) for name in options.policies]
    tiles = []
    for tile, name in chosen:
        try:
            open_policy(Path(name))
        except ConfigError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        tiles.append(np.stack(list(frames(tile, name, options))))
    if not tiles:
        sys.exit("error: there is nothing to show")
    video = faded(in_rows(tiles, options.columns), round(options.fade_s * options.fps))
    for colours in (192, 128, 96, 64, 48, 32, 24, 16):
        content = as_gif(video, options.fps, colours)
        print(f"{colours} colours: {len(content) / 1e6:.2f} MB")
        if len(content) < 1e6 * options.most_megabytes:
            options.output.write_bytes(content)
            print(f"picture: {options.output}")
            return
    sys.exit(
        "error: it is too large with 16 colours, too; make --height, --seconds or --fps smaller"
    )


@torch.inference_mode()
def frames(tile: Tile, name: str, options: Options) -> Iterator[np.ndarray]:
    """Frames of a policy, uint8 ``(height, width, 3)``, those that fade included."""
    seed_everything(tile.seed)
    saved = open_policy(Path(name))
    cfg = evaluation_task(saved.config.env)
    cfg.terminations = {}  # it goes on past the end of an episode
    env = Env(cfg, 1, EngineCfg(threads=1))
    obs = env.reset()
    act, step = saved.policy(obs, env.num_actions), 0
    if tile.command:
        env.commands.hold(next(iter(env.commands.terms)), tile.command)
    model = compile_model(cfg, visuals=True)
    data, view = mujoco.MjData(model), model.vis.global_
    size = (round(tile.width * options.height / 2) * 2, options.height)
    with ExitStack() as stack:
        for frame in range(round((options.seconds + options.fade_s) * options.fps)):
            while (step + 1) * env.step_dt <= tile.after_s + frame / options.fps + 1e-6:
                obs, *_ = env.step(act(obs, env.is_fresh))
                step += 1
            if frame == 0:
                yaw = yaw_of(env.bind("qpos")[:, env.base.quaternion]) if tile.command else 0.0
                view.azimuth, view.elevation = tile.azimuth + math.degrees(yaw), tile.elevation
                view.fovy /= tile.zoom
                canvas = stack.enter_context(Canvas(model, *size))
            take_state(env, 0, model, data)
            terms = () if tile.command else env.commands.terms.values()
            markers = [marker for term in terms for marker in term.markers(0)]
            # Closer behind the robot than in a video, so that it stays in the middle.
            yield canvas.render(data, passed_s=4.0 / options.fps, markers=markers)


def in_rows(tiles: list[np.ndarray], columns: int | None) -> np.ndarray:
    """Tiles, each ``(frames, height, width, 3)``, in rows of so many; white where none is."""
    columns = columns or len(tiles)
    tiles = tiles + [np.full_like(tiles[0], 255)] * (-len(tiles) % columns)
    rows = [tiles[start : start + columns] for start in range(0, len(tiles), columns)]
    return np.concatenate([np.concatenate(row, axis=2) for row in rows], axis=1)


def faded(video: np.ndarray, count: int) -> np.ndarray:
    """Without the last `count` frames, into which the first ones fade."""
    if count == 0:
        return video
    shares = np.linspace(0.0, 1.0, count + 2)[1:-1].reshape(-1, 1, 1, 1)
    begin = shares * video[:count] + (1.0 - shares) * video[-count:]
    return np.concatenate((begin.round().astype(np.uint8), video[count:-count]))


def as_gif(video: np.ndarray, fps: float, colours: int) -> bytes:
    """An animation of frames, ``(frames, height, width, 3)``, that repeats, of so many colours."""
    _, height, width, _ = video.shape
    palette = f"split[a][b];[a]palettegen=max_colors={colours}[p];[b][p]paletteuse=dither=none"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "rawvideo"]
    command += ["-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    command += ["-vf", palette, "-loop", "0", "-f", "gif", "-"]
    return subprocess.run(command, input=video.tobytes(), check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()
