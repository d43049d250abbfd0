"""An arm with one joint: the example of the README."""

from pathlib import Path

import simtrain as st
from simtrain import mdp


def is_level(env, joints):
    """1 if the arm is level, less if not. Shape: ``(num_envs,)``."""
    return (mdp.joint_pos(env, joints)[:, 0] - 1.571).square().neg().exp()


@st.task("level-arm")
def level_arm():
    """Lift a hanging arm and hold it level."""
    return st.TaskCfg(
        model=Path(__file__).with_name("level_arm.xml"),
        timestep=0.01,  # s; the policy acts at every second step
        decimation=2,
        episode_length_s=5.0,
        actions={"torque": st.JointEffortActionCfg("shoulder", scale=2.0)},  # N m
        observations={
            "actor": {
                "angle": st.ObservationTermCfg(mdp.joint_pos, joints="shoulder"),
                "speed": st.ObservationTermCfg(mdp.joint_vel, joints="shoulder"),
            }
        },
        rewards={"level": st.RewardTermCfg(is_level, weight=1.0, joints="shoulder")},
        terminations={"time_out": st.TerminationTermCfg(mdp.time_out, time_out=True)},
        num_envs=256,
        max_iterations=60,
    )
