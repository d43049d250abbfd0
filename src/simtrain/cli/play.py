"""``uv run play <run, checkpoint or task>``: watch a policy in a browser, or as a video."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from simtrain.algorithms.cfg import Flag
from simtrain.api import EngineFlag, make_env, open_policy
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.terminal import DONE, interruptible
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError
from simtrain.limits import Duration, Limits, NumEnvs, Port, Seed
from simtrain.view.opengl import choose_backend, has_display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simtrain.env.env import Env
    from simtrain.training.saved_policy import SavedPolicy
    from simtrain.view.film import Film
    from simtrain.view.panels import Checkpoints
    from simtrain.view.playback import Act

_HELP = """\
usage: play <run, checkpoint or task> [flags]

Watch a policy in a browser, or write a video of it.

  play <task>                                 the shipped policy of a task
  play logs/<task>/<run>                      the newest checkpoint of a run, in the browser
  play logs/<task>/<run>/model_100.pt         a certain checkpoint
  play logs/<task>/<run> --video out.mp4      a video, without a display
  play logs/<task>/<run> --command 0.8 0 0    a constant command
  play <task> --policy zero|random            a task without its policy
  play --replay <run>/nan_dump/<dump>         the last steps of a failed simulation

`play <run, checkpoint or task> --help` lists the flags, with the task's own values as defaults."""


@dataclass
class ViewerFlags:
    """Settings of the viewer."""

    viewer: Literal["auto", "web", "none"] = "auto"
    """web serves a page with the robot in 3-D; auto is web unless --video is given."""
    video: Path | None = None
    """Write an MP4 file instead; needs no display."""
    host: str = "127.0.0.1"
    """Address on which the web viewer listens; 0.0.0.0 lets all machines connect."""
    port: Port = 8080
    """Port of the web viewer; 0 for any free port."""

    @property
    def serves(self) -> bool:
        """Whether to serve a page."""
        return self.viewer == "web" or (self.viewer == "auto" and self.video is None)

    def check(self) -> None:
        """Raise ConfigError unless the video can be written and the page be served."""
        if not self.serves and self.video is None:
            raise ConfigError("--viewer none shows nothing; add --video out.mp4")
        if self.video is not None:
            from simtrain.view.video import check_video_path

            check_video_path(self.video)
            choose_backend()
        if self.serves:
            from simtrain.view.server import check_port

            check_port(self.host, self.port)


@dataclass
class PlayConfig(ViewerFlags):
    """Watch a policy in a browser, or write a video of it."""

    video: Path | None = None
    """Write an MP4 file of the first environment instead; needs no display."""
    command: tuple[str, ...] = ()
    """Constant command, as 0.8 0 0; for several commands, write each name before its values."""
    seconds: Duration = 20.0
    """Length of the video, s of simulated time."""
    policy: Literal["trained", "zero", "random"] = "trained"
    """Source of the actions: the policy, zeros, or uniform random actions in [-1, 1]."""
    disturbed: Flag = False
    """Keep the task's observation noise, pushes and curricula."""
    num_envs: NumEnvs = 4
    """Number of environments."""
    seed: Seed = 0
    """Seed of all random numbers."""
    device: str = "cpu"
    """Device of the simulation and the policy: cpu, cuda or cuda:1."""
    engine: EngineFlag = "auto"
    """Physics engine; auto takes warp on a GPU and mujoco on the CPU."""
    env: TaskCfg = field(default_factory=lambda: TaskCfg(Path(), 0.0, 0, 0.0))


@dataclass
class FilmFlags(ViewerFlags):
    """Settings of a film."""

    speed: Annotated[float, Limits(1e-4, 1e4)] = 1.0
    """Simulated seconds per second."""


@dataclass
class ReplayConfig(FilmFlags):
    """Show the last steps of a failed simulation, in a browser or as a video."""

    replay: Path = Path()
    """The dump: a folder in <run>/nan_dump."""


def play(arguments: Sequence[str]) -> int:
    """Parse the command line, check it, and show what it names; the exit code."""
    if list(arguments) in (["-h"], ["--help"]):
        print(_HELP)
        return DONE
    if any(argument.split("=")[0] == "--replay" for argument in arguments):
        return _replay(arguments)
    paths, flags = split_paths(arguments)
    if len(paths) != 1:
        usage = "`uv run play logs/<task>/<run> [flags]`"
        raise ConfigError(f"name one run, checkpoint or task first: {usage}")
    (path,) = paths

    from simtrain.training.saved_policy import named_task

    saved = None
    if (task := named_task(path)) is not None:
        default = task.configuration()
    else:
        saved = open_policy(path)
        default = saved.config.env
    config = parse_flags(f"play {path}", PlayConfig(env=default), flags)
    if saved is None and config.policy == "trained":
        try:
            saved = open_policy(path)
        except ConfigError as error:
            raise ConfigError(f"{error}; use --policy zero or --policy random instead") from error
        config = parse_flags(f"play {path}", PlayConfig(env=saved.config.env), flags)
    config.check()
    env = make_env(
        config.env,
        config.num_envs,
        device=config.device,
        engine=config.engine,
        seed=config.seed,
        disturbed=config.disturbed,
    )
    from simtrain.view.playback import hold_commands

    hold_commands(env, config.command)
    act = _policy(config, env, saved)
    title = str(path) if saved is None else _title(saved)
    if config.video is not None:
        from rich.console import Console
        from rich.progress import Progress

        from simtrain.view.video import record

        steps = range(max(1, round(config.seconds / env.step_dt)))
        console = Console(stderr=True)
        # Without a terminal it would leave an empty line behind.
        shown = Progress(transient=True, console=console, disable=not console.is_terminal)
        with interruptible(), shown as progress:
            record(env, act, config.video, progress.track(steps, description="drawing"), title)
        print(f"video: {config.video}")
    if config.serves:
        from simtrain.view.web import WebViewer

        if config.viewer == "auto" and not has_display():
            print("viewer: web, because this machine has no display (--viewer)")
        checkpoints = None if saved is None else _checkpoints(path, saved, act)
        viewer = WebViewer(
            env, act, host=config.host, port=config.port, title=title, checkpoints=checkpoints
        )
        viewer.announce(title)
        with interruptible(), closing(viewer):
            viewer.run()
    return DONE


def _replay(arguments: Sequence[str]) -> int:
    config = parse_flags("play", ReplayConfig(speed=0.1), arguments)
    config.check()

    from simtrain.training.features.failures import read_dump
    from simtrain.view.film import Replay

    dump = read_dump(config.replay)
    replay = Replay(dump.model, dump.states, dump.decimation, dump.message)
    print(f"environment {dump.env} in iteration {dump.iteration}: {dump.message}")
    for line in replay.show(replay.frames - 1):
        print(f"  {line}")
    show_film(replay, config, "it")
    return DONE


def show_film(film: Film, config: FilmFlags, name: str) -> None:
    """Write the video of a film, or serve its page until interrupted."""
    from simtrain.view.film import FilmPage, record_film

    with interruptible():
        if config.video is not None:
            record_film(film, config.video, config.speed)
            print(f"video: {config.video}")
        if config.serves:
            page = FilmPage(film, host=config.host, port=config.port, speed=config.speed)
            page.announce(name)
            with closing(page):
                page.run()


def _policy(config: PlayConfig, env: Env, saved: SavedPolicy | None) -> Act:
    import torch

    if config.policy == "trained" and saved is not None:
        return saved.policy(env.get_observations(), env.num_actions)
    shape = (env.num_envs, env.num_actions)
    if config.policy == "zero":
        return lambda obs, fresh: torch.zeros(shape, device=env.device)
    return lambda obs, fresh: torch.rand(shape, device=env.device) * 2.0 - 1.0


def _checkpoints(path: Path, saved: SavedPolicy, act: Act) -> Checkpoints | None:
    """The checkpoints of the run at `path`, for `act`; None if `act` is no policy of a run."""
    from simtrain.algorithms.networks import Policy
    from simtrain.run.checkpoint import BEST, model_paths
    from simtrain.training.saved_policy import open_policy
    from simtrain.view.panels import Checkpoints

    if saved.ships or not isinstance(act, Policy):
        return None

    def find() -> list[Path]:
        paths = model_paths(saved.run)
        others = dict.fromkeys((saved.run / BEST, saved.checkpoint))
        return [*(p for p in others if p.exists() and p not in paths), *paths]

    def load(checkpoint: Path) -> str:
        policy = open_policy(checkpoint, saved.config)
        act.load(policy.content["actor_state_dict"])
        return _title(policy)

    return Checkpoints(find, load, saved.checkpoint, follow=path.is_dir())


def _title(saved: SavedPolicy) -> str:
    return f"{saved.config.task}, iteration {saved.iteration}"
