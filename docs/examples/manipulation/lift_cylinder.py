"""The YAM arm lifts a standing cylinder instead of a cube."""

import mujoco

from simtrain import TaskCfg, task
from simtrain.config.tasks import discover


@task("yam-lift-cylinder")
def yam_lift_cylinder() -> TaskCfg:
    """Lift a standing cylinder from the table to a goal in the air."""
    cfg = discover().find("yam-lift-cube").make()
    # --8<-- [start:object]
    cfg.model = with_cylinder
    cfg.events["reset_cube"].params["pose_range"] = {
        "x": (-0.1, 0.1),
        "y": (-0.2, 0.2),
        "z": (0.005, 0.005),  # for the largest cylinder
    }
    # --8<-- [end:object]
    return cfg


# --8<-- [start:scene]
def with_cylinder() -> mujoco.MjSpec:
    """The scene of yam-lift-cube, its cube a cylinder of 3 cm by 6 cm and 80 g."""
    spec = discover().find("yam-lift-cube").make().model()
    geom = spec.geom("cube")
    geom.type, geom.size, geom.mass = mujoco.mjtGeom.mjGEOM_CYLINDER, [0.015, 0.03, 0.0], 0.08
    spec.key("home").qpos[10] = 0.03  # it stands on the table
    return spec


# --8<-- [end:scene]
