"""Go1 follows velocity commands: forward, sideways, turning, and standing still."""

import copy
from pathlib import Path

from simtrain import ActorCfg, CurriculumTermCfg, Mirror, TaskCfg, mdp, task
from simtrain.mdp.locomotion.recipe import rough_velocity_task, velocity_task

FEET = "(FR|FL|RR|RL)_foot"
HIP_HEIGHT = 0.283  # m, above the ground


@task("go1-velocity-flat")
def go1_velocity_flat() -> TaskCfg:
    """Follow velocity commands on a flat floor."""
    cfg = velocity_task(
        Path(__file__).with_name("scene.xml"),
        joints=(".*_hip_joint", ".*_thigh_joint", ".*_calf_joint"),
        feet=FEET,
        foot_geoms=f"{FEET}_collision",
        base="trunk",
        hip_height=HIP_HEIGHT,
        base_height=0.27,
        offsets=(0.0, 0.5, 0.5, 0.0),  # front right and rear left together, then the others
        bend={".*_thigh_joint": 0.22, ".*_calf_joint": -0.44},  # what lifts a foot by 0.08 m
        action_scale=0.5,
        lin_vel_x=(-1.0, 2.0),
        lin_vel_y=(-0.5, 0.5),
        ang_vel_z=(-1.0, 1.0),
        frequency=3.2,
        swing_height=0.08,
        sole=0.023,  # radius of a foot
        symmetry=Mirror(),
    )
    cfg.curricula["command_ranges"] = CurriculumTermCfg(
        mdp.command_ranges, command="velocity", start=0.5, steps=2400, ranges=("lin_vel_x",)
    )
    # Calves swing further than thighs: their bend is twice as large.
    cfg.rewards["posture"].params["std_moving"] = {
        ".*_hip_joint": 0.2,
        ".*_thigh_joint": 0.4,
        ".*_calf_joint": 0.6,
    }
    # The trunk is flat: loads shift its center less far up and down.
    cfg.events["trunk_center_of_mass"].params["ranges"]["z"] = (-0.02, 0.02)
    del cfg.rewards["self_collision"]  # the model has no sensor of it; its legs do not meet
    return cfg


@task("go1-velocity-rough")
def go1_velocity_rough() -> TaskCfg:
    """Follow velocity commands over slopes, stairs, boxes, waves and rough ground."""
    cfg = rough_velocity_task(go1_velocity_flat(), hip_height=HIP_HEIGHT)
    cfg.commands["velocity"].params["lin_vel_x"] = (-1.0, 1.0)
    return cfg


@task("go1-velocity-rough-blind")
def go1_velocity_rough_blind() -> TaskCfg:
    """Walk on rough ground with proprioception only: for a student of go1-velocity-rough."""
    cfg = go1_velocity_rough()
    seen = copy.deepcopy(cfg.observations["actor"])
    del seen["height_scan"]
    for term in seen.values():
        term.history_length = 0
    cfg.observations["proprioception"] = seen
    cfg.ppo.actor = ActorCfg(
        obs_groups=("proprioception",),
        model="gru",
        hidden_dims=(128, 128),
        rnn_hidden_dim=128,
        init_std=0.2,  # of the student's own actions, while it learns from its teacher's
    )
    return cfg
