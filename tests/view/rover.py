"""A user's task to look at: a box on the ground that swings an arm, and a velocity command.

Tests import it, or copy this file into ``tasks/`` of a folder of their own.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from simtrain import (
    ActorCfg,
    CommandTermCfg,
    CriticCfg,
    EventTermCfg,
    JointEffortActionCfg,
    ObservationTermCfg,
    PpoCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    mdp,
    task,
)


def rover_model():
    import mujoco

    return mujoco.MjSpec.from_string("""
        <mujoco>
          <worldbody>
            <geom type="plane" size="0 0 1" rgba="0.3 0.3 0.3 1"/>
            <body name="base" pos="0 0 0.1">
              <freejoint/>
              <geom type="box" size="0.3 0.2 0.1" mass="20" rgba="0.9 0.5 0.1 1"/>
              <body name="arm" pos="0 0 0.15">
                <joint name="shoulder" axis="0 0 1" damping="0.1"/>
                <geom type="capsule" size="0.05" fromto="0 0 0 0.5 0 0" mass="1"
                  rgba="0.9 0.1 0.1 1"/>
              </body>
            </body>
          </worldbody>
          <actuator><motor joint="shoulder" gear="5" ctrlrange="-1 1"/></actuator>
        </mujoco>""")


def speed(env, joints):
    """Speed of the arm. Shape: (num_envs,)."""
    return env.bind("qvel")[:, joints.qvel][:, 0].abs()


@task("rover")
def rover(**changes: Any) -> TaskCfg:
    """Swing the arm."""
    cfg = TaskCfg(
        model=rover_model,
        timestep=0.01,
        decimation=2,
        episode_length_s=4.0,
        actions={"torque": JointEffortActionCfg("shoulder")},
        commands={
            "velocity": CommandTermCfg(
                mdp.UniformVelocityCommand,
                (1.0, 1.0),
                lin_vel_x=(-1.0, 2.0),
                lin_vel_y=(-0.5, 0.5),
                ang_vel_z=(-0.7, 0.7),
            )
        },
        observations={
            "actor": {
                "speed": ObservationTermCfg(mdp.joint_vel, joints="shoulder"),
                "command": ObservationTermCfg(mdp.generated_commands, command="velocity"),
            }
        },
        rewards={
            "speed": RewardTermCfg(speed, weight=0.5, joints="shoulder"),
            "alive": RewardTermCfg(mdp.is_alive, weight=1.0),
        },
        terminations={"time_out": TerminationTermCfg(mdp.time_out, time_out=True)},
        events={
            "reset": EventTermCfg(
                mdp.reset_joints_uniform, mode="reset", joints="shoulder", position=(-3.0, 3.0)
            )
        },
        num_envs=4,
        num_steps_per_env=8,
        max_iterations=4,
        ppo=PpoCfg(actor=ActorCfg((8,)), critic=CriticCfg((8,)), num_learning_epochs=2),
    )
    return replace(cfg, **changes)


def rover_env(num_envs: int = 1, **changes: Any) -> Any:
    from simtrain.env.env import Env
    from simtrain.sim import EngineCfg

    return Env(rover(**changes), num_envs, EngineCfg(threads=1))


@contextmanager
def playing(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """The command that serves the rover's page; it ends by Ctrl-C, with nothing more to say."""
    (folder / "tasks").mkdir()
    shutil.copy(__file__, folder / "tasks")
    command = ["env", "-u", "DISPLAY", "-u", "WAYLAND_DISPLAY", sys.executable]
    command += ["-m", "simtrain.cli.start", "play", "rover", "--num-envs", "2", "--port", "0"]
    process = subprocess.Popen(
        [*command, *flags], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert (*process.communicate(timeout=100.0), process.returncode) == ("", "", 130)
    finally:
        process.kill()
