"""Videos of the policy during training; they do not change the training results."""

from collections.abc import Iterator
from contextlib import contextmanager
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
    """With ``--video``, records the policy in a separate environment, on the CPU.

    If this fails, a warning is shown and training continues without the video.
    """

    main_rank_only = True

    def __init__(self, context: RunContext, trainer: Trainer, recorder: Recorder) -> None:
        self._context = context
        self._trainer = trainer
        self._recorder = recorder
        self._env: Env | None = None

    def __enter__(self) -> Self:
        """Make the environment, and check whether this machine can draw it."""
        config = self._context.config
        if not config.video:
            return self
        with self._warning("training goes on without videos"):
            from simtrain.view.renderer import Picture

            with forked_randomness(config.seed):
                env = Env(evaluation_task(config.env), 1, EngineCfg(threads=1))
            with Picture(env) as picture:
                picture.draw()
            (self._context.run / VIDEOS).mkdir(exist_ok=True)
            self._env = env
        return self

    def after_iteration(self, iteration: Iteration) -> None:
        """Record a video every ``--video-interval`` iterations and at the end."""
        config, trainer, number = self._context.config, self._trainer, iteration.number
        due = iteration.is_last or number % config.video_interval == 0
        # A run that is to stop has a deadline.
        if self._env is None or not due or self._context.stop():
            return
        from simtrain.view.video import record

        env, path = self._env, self._context.run / VIDEOS / f"iteration_{number}.mp4"
        with self._warning(f"no video of iteration {number}"):
            with forked_randomness(config.seed):
                cfg, obs = trainer.config.ppo.actor, env.get_observations()
                policy = Policy(cfg, obs, env.num_actions, trainer.ppo.actor.state_dict())
                note = f"{config.task}, iteration {number}"
                record(env, policy, path, range(config.video_length), note, (640, 360))
            self._recorder.records.write_video(number, path)

    @contextmanager
    def _warning(self, text: str) -> Iterator[None]:
        try:
            yield
        except (ConfigError, SimulationError, OSError) as error:
            self._context.console.say(f"warning: {text}: {error}")
