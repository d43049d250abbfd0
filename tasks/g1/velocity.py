"""G1 follows velocity commands: forward, sideways, turning, and standing still."""

from pathlib import Path

from simtrain import CurriculumTermCfg, Mirror, TaskCfg, mdp, task
from simtrain.mdp.locomotion.recipe import rough_velocity_task, velocity_task

# Legs and waist; the arms are held where the keyframe has them.
JOINTS = ("(left|right)_(hip_.*|knee|ankle_.*)_joint", "waist_.*_joint")
FEET = "(left|right)_foot"
HIP_HEIGHT = 0.672  # m, above the ground

# What lifts a foot by 0.1 m.
BEND = {
    ".*_hip_pitch_joint": -0.35,
    ".*_knee_joint": 0.7,
    ".*_ankle_pitch_joint": -0.35,
}

# An eighth of what each motor's largest torque bends its servo by: noise of the first policy that
# lets the robot stand for a second.
ACTION_SCALE = {
    "(.*_hip_(pitch|yaw)|waist_yaw)_joint": 0.28,
    ".*_(hip_roll|knee)_joint": 0.18,
    "(.*_ankle_.*|waist_(roll|pitch))_joint": 0.22,
}


@task("g1-velocity-flat")
def g1_velocity_flat() -> TaskCfg:
    """Follow velocity commands on a flat floor."""
    cfg = velocity_task(
        Path(__file__).with_name("scene.xml"),
        joints=JOINTS,
        feet=FEET,
        foot_geoms=f"{FEET}[12]_collision",
        base="torso_link",
        hip_height=HIP_HEIGHT,
        base_height=0.74,
        offsets=(0.0, 0.5),
        bend=BEND,
        action_scale=ACTION_SCALE,
        lin_vel_x=(-0.5, 1.5),
        lin_vel_y=(-0.3, 0.3),
        ang_vel_z=(-1.0, 1.0),
        frequency=1.7,
        swing_height=0.09,
        symmetry=Mirror(),
    )
    cfg.curricula["command_ranges"] = CurriculumTermCfg(
        mdp.command_ranges,
        command="velocity",
        start=0.5,
        after_steps=9600,
        steps=28800,
        ranges=("lin_vel_x", "ang_vel_z"),
    )
    cfg.keyframe = "walking"  # knees bent, forearms level
    # The joints that step are not in it: their reference moves.
    cfg.rewards["posture"].params["std_moving"] = {
        ".*_hip_yaw_joint": 0.3,
        ".*_(hip_roll|ankle_roll)_joint": 0.2,
        "waist_.*_joint": 0.1,
    }
    return cfg


@task("g1-velocity-rough")
def g1_velocity_rough() -> TaskCfg:
    """Follow velocity commands over slopes, stairs, boxes, waves and rough ground."""
    cfg = rough_velocity_task(g1_velocity_flat(), hip_height=HIP_HEIGHT)
    cfg.commands["velocity"].params["lin_vel_x"] = (-0.5, 1.0)
    return cfg
