"""Two small tasks of the manual's page "Networks": one needs a memory, the other sees an image."""

from __future__ import annotations

import mujoco
import torch
from torch import Tensor

from simtrain import (
    ActorCfg,
    CnnCfg,
    CommandTermCfg,
    CriticCfg,
    EventTermCfg,
    JointEffortActionCfg,
    JointVelocityActionCfg,
    MetricTermCfg,
    ObservationTermCfg,
    PpoCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    mdp,
    task,
)
from simtrain.env.commands import CommandTerm
from simtrain.env.env import Env
from simtrain.env.reading import read_as

SLIDES = ("x", "y")
MODEL = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <body name="cart">
      <joint name="x" type="slide" axis="1 0 0" range="-1 1" limited="true"/>
      <joint name="y" type="slide" axis="0 1 0" range="-1 1" limited="true"/>
      <geom size="0.1" mass="1"/>
    </body>
  </worldbody>
  <actuator>{actuators}</actuator>
</mujoco>
"""
MOTOR = '<motor joint="x"/>'
VELOCITIES = '<velocity joint="x" kv="20"/><velocity joint="y" kv="20"/>'
TIME_OUT = {"time_out": TerminationTermCfg(mdp.time_out, time_out=True)}


def rail() -> mujoco.MjSpec:
    """A cart that is pushed."""
    return mujoco.MjSpec.from_string(MODEL.format(actuators=MOTOR))


def table() -> mujoco.MjSpec:
    """A cart that is moved at some velocity."""
    return mujoco.MjSpec.from_string(MODEL.format(actuators=VELOCITIES))


# --8<-- [start:t_maze]
@task("t-maze")
def t_maze() -> TaskCfg:
    """Turn, at the end of a corridor, to the side that a sign showed at its beginning."""
    side = CommandTermCfg(Side, resampling_time_range=(1e6, 1e6))
    junction = ObservationTermCfg(at_junction)
    return TaskCfg(
        model=rail,
        timestep=0.01,
        decimation=2,
        episode_length_s=0.2,  # ten steps, the last two at the junction
        actions={"turn": JointEffortActionCfg("x")},
        commands={"side": side},
        observations={
            "actor": {"sign": ObservationTermCfg(sign), "junction": junction},
            "critic": {
                "side": ObservationTermCfg(mdp.generated_commands, command="side"),
                "junction": junction,
            },
        },
        rewards={"turned": RewardTermCfg(turned, weight=25.0)},  # 1 for an episode
        terminations=TIME_OUT,
        num_envs=128,
        num_steps_per_env=20,
        max_iterations=100,
        ppo=PpoCfg(
            ActorCfg((32,), rnn_hidden_dim=16), CriticCfg((32,), rnn_hidden_dim=16),
            entropy_coef=0.0, learning_rate=3e-3,
        ),
    )  # fmt: skip


# --8<-- [end:t_maze]


# --8<-- [start:image]
@task("find-the-goal")
def find_the_goal() -> TaskCfg:
    """Drive to a goal that is only seen from above, as a picture."""
    goal = CommandTermCfg(Goal, resampling_time_range=(1e6, 1e6))
    return TaskCfg(
        model=table,
        timestep=0.02,
        decimation=5,
        episode_length_s=3.0,
        actions={"drive": JointVelocityActionCfg(SLIDES)},
        commands={"goal": goal},
        observations={
            "actor": {"picture": ObservationTermCfg(picture)},  # a group of its own
            "critic": {
                "place": ObservationTermCfg(mdp.joint_pos, joints=SLIDES),
                "goal": ObservationTermCfg(mdp.generated_commands, command="goal"),
            },
        },
        rewards={"near": RewardTermCfg(near_goal, weight=1.0)},
        terminations=TIME_OUT,
        events={
            "place": EventTermCfg(
                mdp.reset_joints_uniform, mode="reset", joints=SLIDES, position=(-0.9, 0.9)
            )
        },
        metrics={"distance": MetricTermCfg(distance, reduce="last")},
        num_envs=64,
        num_steps_per_env=30,
        max_iterations=60,
        ppo=PpoCfg(
            ActorCfg((32,), model="cnn", cnn=CnnCfg((8, 16)), init_std=0.7), CriticCfg((64, 64)),
            entropy_coef=0.002,
        ),
    )  # fmt: skip


# --8<-- [end:image]


class Side(CommandTerm):
    """Left (1) or right (-1), the same for a whole episode."""

    def __init__(self, env: Env) -> None:
        self.command = env.buffer("command", (1,), reset=None)

    def resample(self, mask: Tensor) -> None:
        """Draw new sides where `mask`, boolean ``(num_envs,)``, in place."""
        drawn = torch.empty_like(self.command).uniform_(-1.0, 1.0).sign()
        torch.where(mask.unsqueeze(1), drawn, self.command, out=self.command)


@read_as("given")
def sign(env: Env) -> Tensor:
    """The side in the first two steps of an episode, then 0. Shape: ``(num_envs, 1)``."""
    return env.command("side") * (env.episode_length_buf < 2).unsqueeze(1)


@read_as("given")
def at_junction(env: Env) -> Tensor:
    """1 in the last two steps, else 0. Shape: ``(num_envs, 1)``."""
    return (env.episode_length_buf >= 8).float().unsqueeze(1)


def turned(env: Env) -> Tensor:
    """The action at the junction, at most 1, to the right side; negative to the wrong one."""
    action = env.actions[:, 0].clamp(-1.0, 1.0) * env.command("side")[:, 0]
    return action * (env.episode_length_buf > 8)


class Goal(CommandTerm):
    """A place on the table, m, the same for a whole episode."""

    def __init__(self, env: Env) -> None:
        self.command = env.buffer("command", (2,), reset=None)

    def resample(self, mask: Tensor) -> None:
        """Draw new goals where `mask`, boolean ``(num_envs,)``, in place."""
        drawn = torch.empty_like(self.command).uniform_(-0.9, 0.9)
        torch.where(mask.unsqueeze(1), drawn, self.command, out=self.command)


# --8<-- [start:picture]
@read_as("given")  # on a robot, by its camera
class picture:
    """The table from above: how much of each cell the cart covers, and the goal.

    Shape: ``(num_envs, 2, cells, cells)``.
    """

    def __init__(self, env: Env, cells: int = 12) -> None:
        side = torch.linspace(-1.0, 1.0, cells, device=env.device)
        self._centers, self._size = side, 2.0 / cells

    def __call__(self, env: Env) -> Tensor:
        """Bilinear weights of the cells around cart and goal."""
        places = torch.stack((env.bind("qpos")[:, :2], env.command("goal")), dim=1)
        apart = (places.unsqueeze(-1) - self._centers).abs() / self._size
        rows, columns = (1.0 - apart).clamp(min=0.0).unbind(dim=2)
        return rows.unsqueeze(-1) * columns.unsqueeze(-2)


# --8<-- [end:picture]


def distance(env: Env) -> Tensor:
    """From the cart to the goal, m. Shape: ``(num_envs,)``."""
    return torch.linalg.vector_norm(env.bind("qpos")[:, :2] - env.command("goal"), dim=1)


def near_goal(env: Env) -> Tensor:
    """1 at the goal, 1/e at a distance of 0.4 m. Shape: ``(num_envs,)``."""
    return torch.exp(-((distance(env) / 0.4) ** 2))
