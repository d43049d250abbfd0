"""YAM arm lifts a cube from the table to a goal in the air."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain import (
    ActorCfg,
    CnnCfg,
    CommandTermCfg,
    CriticCfg,
    EventTermCfg,
    GaussianNoiseCfg,
    JointPositionActionCfg,
    MetricTermCfg,
    ObservationTermCfg,
    PpoCfg,
    RelativeJointPositionActionCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
    task,
)

if TYPE_CHECKING:
    import mujoco

ARM = Path(__file__).with_name("yam.xml")
ARM_JOINTS, GRIPPER = "joint[1-6]", "left_finger"
PADS = ("left_pad", "right_pad")
HOME = (0.0, 1.047, 1.05, -0.9, 0.0, 0.0, 0.0375, -0.0375)
CALM_STEPS = 4800  # without randomization, at first
FAR = 0.6  # what the camera sees at most, m
FROM_GRASP = {"origin": "grasp", "frame": "arm"}


def lift_scene() -> mujoco.MjSpec:
    """The arm, a table and a cube; put another arm or object here."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(ARM))
    add_table(spec)
    add_cube(spec, "cube", size=0.04, mass=0.05)
    add_contact_sensors(spec, [(pad, "cube") for pad in PADS])
    add_contact_sensors(spec, [(part, "table") for part in (*PADS, "palm", "wrist")])
    cube = (0.3, 0.0, 0.02, 1.0, 0.0, 0.0, 0.0)
    spec.add_key(name="home", qpos=[*HOME, *cube], ctrl=HOME[:7])
    return spec


def add_table(spec: mujoco.MjSpec) -> None:
    """Add a table, its top at z = 0, and light."""
    import mujoco

    top = spec.worldbody.add_geom(name="table", type=mujoco.mjtGeom.mjGEOM_PLANE)
    top.size, top.rgba = [0.0, 0.0, 0.05], [0.55, 0.58, 0.60, 1.0]
    spec.worldbody.add_light(pos=[0.4, -0.7, 1.6], dir=[-0.1, 0.4, -1.0], diffuse=[0.6] * 3)
    spec.visual.headlight.ambient = spec.visual.headlight.diffuse = [0.4] * 3
    spec.visual.global_.azimuth, spec.visual.global_.elevation = 140.0, -25.0
    spec.stat.center, spec.stat.extent = [0.25, 0.0, 0.15], 0.7


def add_cube(spec: mujoco.MjSpec, name: str, *, size: float, mass: float) -> None:
    """Add a cube that moves freely: a body and its geom, of edge `size`, m, and `mass`, kg."""
    import mujoco

    body = spec.worldbody.add_body(name=name, pos=[0.3, 0.0, size / 2.0])
    body.add_freejoint(name=f"{name}_joint")
    geom = body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_BOX, mass=mass)
    geom.size, geom.rgba = [size / 2.0] * 3, [0.85, 0.3, 0.2, 1.0]


def add_contact_sensors(spec: mujoco.MjSpec, pairs: list[tuple[str, str]]) -> None:
    """Add contact sensors of pairs of geoms, ``<first>_<second>``: [found, fx, fy, fz], N."""
    import mujoco

    for first, second in pairs:
        sensor = spec.add_sensor(name=f"{first}_{second}", type=mujoco.mjtSensor.mjSENS_CONTACT)
        sensor.objtype = sensor.reftype = mujoco.mjtObj.mjOBJ_GEOM
        sensor.objname, sensor.refname = first, second
        sensor.intprm[:3] = (3, 3, 1)  # what is found and the force; the net force; one row


@task("yam-lift-cube")
def yam_lift_cube() -> TaskCfg:
    """Lift a cube from the table to a goal in the air."""

    def noisy(func, bound: float, **params) -> ObservationTermCfg:
        return ObservationTermCfg(func, noise=UniformNoiseCfg(-bound, bound), **params)

    def drawn(**params) -> EventTermCfg:
        return EventTermCfg(
            mdp.randomize_field, mode="reset", after_steps=CALM_STEPS, shared=True, **params
        )

    def at_goal(distance: float) -> MetricTermCfg:
        where = {"command": "goal", "place": "cube", "distance": distance}
        return MetricTermCfg(mdp.at_goal, reduce="last", duration_s=0.5, **where)

    grasp = {"sensors": "(left|right)_pad_cube"}
    on_table = {"sensors": ".*_table"}
    actor = {
        "joint_pos": noisy(mdp.joint_pos_rel, 0.005, joints=(ARM_JOINTS, GRIPPER)),
        "cube_pos": noisy(mdp.position_in_frame, 0.003, places="cube", **FROM_GRASP),
        "cube_ori": noisy(mdp.orientation_in_frame, 0.03, places="cube", frame="grasp"),
        "goal_pos": ObservationTermCfg(mdp.goal_in_frame, command="goal", **FROM_GRASP),
        "last_action": ObservationTermCfg(mdp.last_action),
    }
    critic = {
        "joint_pos": ObservationTermCfg(mdp.joint_pos_rel, joints=(ARM_JOINTS, GRIPPER)),
        "joint_vel": ObservationTermCfg(mdp.joint_vel, joints=(ARM_JOINTS, GRIPPER)),
        "cube_pos": ObservationTermCfg(mdp.position_in_frame, places="cube", **FROM_GRASP),
        "cube_ori": ObservationTermCfg(mdp.orientation_in_frame, places="cube", frame="grasp"),
        "cube_vel": ObservationTermCfg(mdp.joint_vel, joints="cube_joint"),
        "goal_pos": ObservationTermCfg(mdp.goal_in_frame, command="goal", **FROM_GRASP),
        "pads_touch": ObservationTermCfg(mdp.foot_contact, **grasp),
        "on_table": ObservationTermCfg(mdp.foot_contact, **on_table),
        "last_action": ObservationTermCfg(mdp.last_action),
    }
    return TaskCfg(
        model=lift_scene,
        keyframe="home",
        timestep=0.01,
        decimation=4,
        episode_length_s=4.0,
        actions={
            "arm": RelativeJointPositionActionCfg(ARM_JOINTS, scale=0.3),
            "gripper": JointPositionActionCfg(GRIPPER, scale=0.0488, offset=-0.0488),
        },
        commands={
            "goal": CommandTermCfg(
                mdp.UniformPositionCommand, (1e6, 1e6), x=(0.3, 0.5), y=(-0.2, 0.2), z=(0.2, 0.4)
            )
        },
        observations={"actor": actor, "critic": critic},
        rewards={
            "reach": RewardTermCfg(mdp.distance_tanh, 1.0, place="cube", to_place="grasp", std=0.1),
            "grasp": RewardTermCfg(mdp.is_grasped, 1.0, **grasp),
            "lift": RewardTermCfg(
                mdp.grasped_goal_tanh, 4.0, command="goal", place="cube", std=0.3, **grasp
            ),
            "goal": RewardTermCfg(
                mdp.grasped_goal_tanh, 4.0, command="goal", place="cube", std=0.05, **grasp
            ),
            "pressing": RewardTermCfg(mdp.illegal_contact, -1.0, threshold=5.0, **on_table),
            "action_rate": RewardTermCfg(mdp.action_rate_l2, -0.01),
            "joint_vel": RewardTermCfg(mdp.joint_vel_hinge, -0.01, joints=ARM_JOINTS, max_vel=1.0),
        },
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
        },
        metrics={
            "success": at_goal(0.05),
            "success_2.5cm": at_goal(0.025),
            "goal_distance": MetricTermCfg(
                mdp.goal_distance, reduce="last", command="goal", place="cube"
            ),
            "grasped": MetricTermCfg(mdp.is_grasped, **grasp),
            "pressing": MetricTermCfg(mdp.illegal_contact, threshold=5.0, **on_table),
        },
        events={
            "reset_arm": EventTermCfg(
                mdp.reset_joints_uniform, mode="reset", joints=ARM_JOINTS, position=(-0.1, 0.1)
            ),
            "reset_cube": EventTermCfg(
                mdp.reset_root_state_uniform,
                mode="reset",
                bodies="cube",
                # A cube turned by a quarter is the same cube.
                pose_range={
                    "x": (-0.1, 0.1),
                    "y": (-0.2, 0.2),
                    "z": (0.003, 0.003),  # for the largest cube
                    "yaw": (-0.785, 0.785),
                },
            ),
            "friction": drawn(
                field="geom_friction",
                operation="abs",
                geoms=".*_pad",
                ranges={"sliding": (0.3, 1.5)},
            ),
            "mass": drawn(field=("body_mass", "body_inertia"), bodies="cube", ranges=(0.5, 1.5)),
            "size": drawn(field="geom_size", geoms="cube", ranges=(0.85, 1.15)),
        },
        num_envs=256,
        num_envs_on_gpu=4096,
        max_iterations=800,
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=(256, 128), init_std=0.6, std_range=(0.25, 10.0)),
            critic=CriticCfg(hidden_dims=(256, 128)),
            num_mini_batches=1,
            desired_kl=0.03,
            desired_kl_end=0.005,
            gamma=0.97,
            lam=0.9,
            entropy_coef=0.001,
        ),
    )


@task("yam-lift-cube-depth")
def yam_lift_cube_depth() -> TaskCfg:
    """Lift the cube with a depth camera at the wrist: for a student of yam-lift-cube."""
    cfg = yam_lift_cube()
    unseen = ("cube_pos", "cube_ori")
    seen = {name: term for name, term in cfg.observations["actor"].items() if name not in unseen}
    camera = ObservationTermCfg(
        mdp.ray_pinhole,
        sites="wrist_camera",
        alignment="site",
        width=32,
        height=32,
        fovy=80.0,
        max_distance=FAR,
        noise=GaussianNoiseCfg(0.003),
        scale=1.0 / FAR,
    )
    cfg.observations["proprioception"] = copy.deepcopy(seen)
    cfg.observations["depth"] = {"camera": camera}
    cfg.ppo.actor = ActorCfg(
        hidden_dims=(128, 128),
        init_std=0.25,  # of the student's own actions, while it learns from its teacher's
        obs_groups=("proprioception", "depth"),
        model="cnn",
        cnn=CnnCfg((8, 16)),
    )
    cfg.max_iterations = 900
    return cfg
