"""Videos of the policy while it trains, without changing its training by a bit."""

from pathlib import Path
from typing import Self

from simtrain.algorithms.networks import Policy
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.env.randomness import forked_randomness
from simtrain.errors import ConfigError, SimulationError
from simtrain.run.directory import VIDEOS
from simtrain.sim import EngineCfg
from simtrain.training.context import RunContext
from simtrain.training.features import Feature, Iteration
from simtrain.training.features.recorder import Recorder
from simtrain.training.loop import Trainer


class TrainingVideo(Feature):
    """With ``--video`` records the policy in an environment of its own, on the CPU.

    Failures end in a warning: training goes on without the video.
    """

    main_rank_only = True

    def __init__(self, context: RunContext, trainer: Trainer, recorder: Recorder) -> None:
        self._context = context
        self._trainer = trainer
        self._recorder = recorder
        self._env: Env | None = None

    def __enter__(self) -> Self:
        """Make the environment, and try whether this machine can draw it."""
        config = self._context.config
        if not config.video:
            return self
        try:
            from simtrain.view.renderer import Picture

            with forked_randomness(config.seed):
                env = Env(evaluation_task(config.env), 1, EngineCfg(threads=1))
            with Picture(env) as picture:
                picture.draw()
            (self._context.run / VIDEOS).mkdir(exist_ok=True)
            self._env = env
        except (ConfigError, SimulationError, OSError) as error:
            self._context.console.say(f"warning: training goes on without videos: {error}")
        return self

    def after_iteration(self, iteration: Iteration) -> None:
        """Record a video every ``--video-interval`` iterations and at the end."""
        due = iteration.is_last or iteration.number % self._context.config.video_interval == 0
        # A run that is to stop has a deadline.
        if self._env is None or not due or self._context.stop():
            return
        path = self._context.run / VIDEOS / f"iteration_{iteration.number}.mp4"
        try:
            self._record(self._env, path, iteration.number)
        except (ConfigError, SimulationError, OSError) as error:
            text = f"warning: no video of iteration {iteration.number}: {error}"
            self._context.console.say(text)
        else:
            self._recorder.records.write_video(iteration.number, path)

    def _record(self, env: Env, path: Path, iteration: int) -> None:
        from simtrain.view.video import record

        config, trainer = self._context.config, self._trainer
        with forked_randomness(config.seed):
            cfg, obs = trainer.config.ppo.actor, env.get_observations()
            policy = Policy(cfg, obs, env.num_actions, trainer.ppo.actor.state_dict())
            note = f"{config.task}, iteration {iteration}"
            record(env, policy, path, range(config.video_length), note, (640, 360))
