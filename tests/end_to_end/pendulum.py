"""A user's task, in no package: tests copy this file into ``tasks/`` of a folder of their own.

It looks at the rank that it runs on, as real tasks should not.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import mujoco

import simtrain as st
from simtrain import mdp

RANK = os.environ.get("RANK")
HERE = Path(__file__).resolve().parent


def note_writing(event: str, arguments: tuple) -> None:
    """Note every file opened for writing below the log root, by rank."""
    if event == "open" and isinstance(arguments[0], str | os.PathLike):
        path, mode, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR) if mode is None else set(mode) & set("wax+")
        if writes and "/logs/" in str(Path(path).absolute()):
            with (HERE / f"opened-{RANK}").open("a") as file:
                file.write(f"{path}\n")


if RANK is not None:
    sys.addaudithook(note_writing)


class Upright:
    """The pole's height; optionally breaks in a rank, or is stuck there after some steps."""

    def __init__(self, env, joints, break_rank=-1, stuck_after=-1):
        self._joints = joints
        self._breaks = str(break_rank) == RANK
        self._may_stick = self._breaks or break_rank == -1
        self._stuck_after = stuck_after
        self._steps = 0
        print(f"the task says hello from rank {RANK}")

    def __call__(self, env):
        self._steps += 1
        if self._breaks and self._steps > 20:
            raise ValueError(f"no step number {self._steps}")
        while self._may_stick and self._steps > self._stuck_after >= 0:
            time.sleep(60.0)
        return env.bind("qpos")[:, self._joints.qpos][:, 0].cos()


def only_on_rank_1(env, mask):
    """Something to log that rank 0 never has."""
    return 5.0 if RANK == "1" else None


def pole():
    return mujoco.MjSpec.from_string("""
        <mujoco><worldbody><body>
          <joint name="hinge" axis="0 1 0" damping="0.1"/>
          <geom type="capsule" size="0.05" fromto="0 0 0 0 0 1"/>
        </body></worldbody>
        <actuator><motor joint="hinge" gear="1" ctrlrange="-5 5" ctrllimited="true"/></actuator>
        </mujoco>""")


@st.task("user-pendulum")
def user_pendulum() -> st.TaskCfg:
    """Hold a pendulum up."""
    return st.TaskCfg(
        model=pole,
        timestep=0.01,
        decimation=2,
        episode_length_s=0.2,
        actions={"torque": st.JointEffortActionCfg("hinge")},
        observations={
            "actor": {
                "angle": st.ObservationTermCfg(mdp.joint_pos, joints="hinge"),
                "speed": st.ObservationTermCfg(mdp.joint_vel, joints="hinge", scale=0.1),
            }
        },
        rewards={
            "upright": st.RewardTermCfg(
                Upright, weight=1.0, joints="hinge", break_rank=-1, stuck_after=-1
            )
        },
        terminations={"time_out": st.TerminationTermCfg(mdp.time_out, time_out=True)},
        events={
            "reset": st.EventTermCfg(
                mdp.reset_joints_uniform, mode="reset", joints="hinge", position=(-0.1, 0.1)
            )
        },
        curricula={"mine": st.CurriculumTermCfg(only_on_rank_1)},
        num_envs=4,
        num_steps_per_env=8,
        max_iterations=1_000_000,
        ppo=st.PpoCfg(actor=st.ActorCfg((16,)), critic=st.CriticCfg((16,)), num_learning_epochs=2),
    )
