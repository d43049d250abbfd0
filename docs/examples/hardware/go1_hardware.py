"""The Go1 with what its hardware does: late actions, late observations, and motors with a line."""

from simtrain import DcMotorActuatorCfg, TaskCfg, task
from simtrain.config.tasks import discover

LEGS = (".*_hip_joint", ".*_thigh_joint", ".*_calf_joint")
MEASURED = ("base_ang_vel", "projected_gravity", "joint_pos", "joint_vel")


@task("go1-velocity-hardware")
def go1_velocity_hardware() -> TaskCfg:
    """Follow velocity commands on a flat floor, by delayed DC motors and sensors."""
    cfg = discover().find("go1-velocity-flat").make()
    # --8<-- [start:hardware]
    cfg.actuators["legs"] = DcMotorActuatorCfg(
        LEGS,
        saturation_effort={".*_(hip|thigh)_joint": 23.7, ".*_calf_joint": 35.55},
        velocity_limit={".*_(hip|thigh)_joint": 30.1, ".*_calf_joint": 20.06},
    )
    actions = cfg.actions["joint_pos"]
    actions.delay_min_lag = actions.delay_max_lag = 2  # physics steps of 10 ms
    for name in MEASURED:
        term = cfg.observation_terms()["actor"][name]
        term.delay_min_lag = term.delay_max_lag = 1  # control steps of 20 ms
    # --8<-- [end:hardware]
    return cfg
