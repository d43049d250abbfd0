"""G1 follows recorded motions: a squat, a wave, a walk, or anyone's own."""

from __future__ import annotations

from pathlib import Path

from simtrain import (
    ActorCfg,
    CommandTermCfg,
    CriticCfg,
    CurriculumTermCfg,
    EventTermCfg,
    JointPositionActionCfg,
    MetricTermCfg,
    Mirror,
    ObservationTermCfg,
    PpoCfg,
    RewardTermCfg,
    SimCfg,
    SymmetryCfg,
    TaskCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
    task,
)
from simtrain.mdp.locomotion.velocity import velocity_randomization

JOINTS = "(left|right|waist)_.*_joint"
ENDS = ("(left|right)_ankle_roll_link", "(left|right)_wrist_yaw_link")
BODIES = (
    "pelvis",
    "(left|right)_hip_roll_link",
    "(left|right)_knee_link",
    "torso_link",
    "(left|right)_shoulder_roll_link",
    "(left|right)_elbow_link",
    *ENDS,
)
MOTIONS = ("squat", "bow", "wave", "one_leg", "turn", "walk", "cmu_walk")
TRACKED = ("anchor_pos", "anchor_ori", "body_pos", "body_ori", "body_lin_vel", "body_ang_vel")
CALM_STEPS = 4800  # without pushes and randomization, at first

# An eighth of what each motor's largest torque bends its servo by, as in the velocity task.
ACTION_SCALE = {
    "(.*_hip_(pitch|yaw)|waist_yaw)_joint": 0.28,
    ".*_(hip_roll|knee)_joint": 0.18,
    "(.*_ankle_.*|waist_(roll|pitch))_joint": 0.22,
    ".*_(shoulder_.*|elbow|wrist_roll)_joint": 0.22,
    ".*_wrist_(pitch|yaw)_joint": 0.04,
}


@task("g1-tracking")
def g1_tracking() -> TaskCfg:
    """Follow recorded motions, --env.commands.motion.files."""

    def noisy(func, bound: float, **params) -> ObservationTermCfg:
        return ObservationTermCfg(func, noise=UniformNoiseCfg(-bound, bound), **params)

    def reward(func, weight: float, std: float) -> RewardTermCfg:
        return RewardTermCfg(func, weight, command="motion", std=std)

    actor = {
        "command": ObservationTermCfg(mdp.generated_commands, command="motion"),
        "motion_anchor_pos_b": noisy(
            mdp.motion_anchor_pos_b, 0.1, command="motion", history_length=5
        ),
        "motion_anchor_ori_b": noisy(mdp.motion_anchor_ori_b, 0.05, command="motion"),
        "base_lin_vel": noisy(mdp.base_lin_vel, 0.5, history_length=5),
        "base_ang_vel": noisy(mdp.base_ang_vel, 0.2),
        "joint_pos": noisy(mdp.joint_pos_rel, 0.01, joints=JOINTS, biased=True),
        "joint_vel": noisy(mdp.joint_vel, 0.5, joints=JOINTS),
        "last_action": ObservationTermCfg(mdp.last_action),
    }
    critic = {
        "command": ObservationTermCfg(mdp.generated_commands, command="motion"),
        "motion_anchor_pos_b": ObservationTermCfg(mdp.motion_anchor_pos_b, command="motion"),
        "motion_anchor_ori_b": ObservationTermCfg(mdp.motion_anchor_ori_b, command="motion"),
        "body_pos": ObservationTermCfg(mdp.robot_body_pos_b, command="motion"),
        "body_ori": ObservationTermCfg(mdp.robot_body_ori_b, command="motion"),
        "base_lin_vel": ObservationTermCfg(mdp.base_lin_vel),
        "base_ang_vel": ObservationTermCfg(mdp.base_ang_vel),
        "joint_pos": ObservationTermCfg(mdp.joint_pos_rel, joints=JOINTS),
        "joint_vel": ObservationTermCfg(mdp.joint_vel, joints=JOINTS),
        "last_action": ObservationTermCfg(mdp.last_action),
    }
    randomization = velocity_randomization(
        JOINTS,
        foot_geoms="(left|right)_foot[12]_collision",
        trunk="torso_link",
        mass_scale=(0.9, 1.1),
        center_of_mass=((-0.022, 0.022),) * 3,  # as in the walking tasks
        encoder_bias=0.01,
        after_steps=CALM_STEPS,
    )
    # Motions need exact servos more than commands do.
    del randomization["softness"], randomization["motors"]
    randomization["gains"].params["damping"] = (0.9, 1.1)
    return TaskCfg(
        model=Path(__file__).with_name("scene.xml"),
        keyframe="knees_bent",
        timestep=0.01,
        decimation=2,
        episode_length_s=20.0,
        actions={
            "joint_pos": JointPositionActionCfg(JOINTS, scale=ACTION_SCALE, reference="motion")
        },
        commands={
            "motion": CommandTermCfg(
                mdp.MotionCommand,
                (1e6, 1e6),
                files=tuple(f"g1/motions/{name}.npz" for name in MOTIONS),
                held_out=(),  # followed in evaluations only
                bodies=BODIES,
                anchor="torso_link",
                sampling="adaptive",
                pose_range={
                    **dict.fromkeys("xy", (-0.05, 0.05)),
                    "z": (-0.01, 0.01),
                    **dict.fromkeys(("roll", "pitch"), (-0.05, 0.05)),
                    "yaw": (-0.2, 0.2),
                },
                velocity_range={
                    **dict.fromkeys("xy", (-0.2, 0.2)),
                    "z": (-0.1, 0.1),
                    **dict.fromkeys(("roll", "pitch"), (-0.2, 0.2)),
                    "yaw": (-0.3, 0.3),
                },
                joint_position_range=(-0.05, 0.05),
                feedforward=True,
            )
        },
        observations={"actor": actor, "critic": critic},
        rewards={
            "anchor_pos": reward(mdp.motion_global_anchor_position_error_exp, 1.0, 0.3),
            "anchor_ori": reward(mdp.motion_global_anchor_orientation_error_exp, 0.5, 0.4),
            "body_pos": reward(mdp.motion_relative_body_position_error_exp, 1.0, 0.3),
            "body_ori": reward(mdp.motion_relative_body_orientation_error_exp, 1.0, 0.4),
            "body_lin_vel": reward(mdp.motion_global_body_linear_velocity_error_exp, 1.0, 1.0),
            "body_ang_vel": reward(mdp.motion_global_body_angular_velocity_error_exp, 1.0, 3.14),
            "action_rate": RewardTermCfg(mdp.action_rate_l2, weight=-0.02),
            "joint_pos_limits": RewardTermCfg(mdp.joint_pos_limits, weight=-10.0, joints=JOINTS),
            "self_collision": RewardTermCfg(
                mdp.self_collision_cost, weight=-0.1, sensors="self_collision"
            ),
        },
        terminations={
            "motion_ended": TerminationTermCfg(mdp.motion_ended, time_out=True, command="motion"),
            "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
            "anchor_pos": TerminationTermCfg(
                mdp.bad_anchor_pos_z_only, command="motion", threshold=0.25
            ),
            "anchor_ori": TerminationTermCfg(mdp.bad_anchor_ori, command="motion", threshold=0.8),
            "ends": TerminationTermCfg(
                mdp.bad_motion_body_pos_z_only, command="motion", bodies=ENDS, threshold=0.25
            ),
        },
        metrics={
            "clip": MetricTermCfg(mdp.motion_clip, reduce="last", command="motion"),
            "r_mpkpe": MetricTermCfg(mdp.r_mpkpe, command="motion"),
            "mpkpe": MetricTermCfg(mdp.mpkpe, command="motion"),
            "joint_vel_error": MetricTermCfg(mdp.joint_vel_error, command="motion"),
            "ee_pos_error": MetricTermCfg(mdp.ee_pos_error, command="motion", bodies=ENDS),
            "ee_ori_error": MetricTermCfg(mdp.ee_ori_error, command="motion", bodies=ENDS),
        },
        curricula={
            "narrow": CurriculumTermCfg(mdp.narrow_rewards, rate=2e-4, share=0.8, terms=TRACKED)
        },
        events={
            **randomization,
            "push": EventTermCfg(
                mdp.push_by_setting_velocity,
                mode="interval",
                interval_range_s=(1.0, 3.0),
                after_steps=CALM_STEPS,
                velocity_range={
                    **dict.fromkeys("xy", (-0.5, 0.5)),
                    "z": (-0.2, 0.2),
                    **dict.fromkeys(("roll", "pitch"), (-0.52, 0.52)),
                    "yaw": (-0.78, 0.78),
                },
            ),
        },
        symmetry=Mirror(),
        sim=SimCfg(iterations=6, ls_iterations=8),
        num_envs=256,
        num_envs_on_gpu=4096,
        max_iterations=1500,
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=(256, 128), init_std=0.5),
            critic=CriticCfg(hidden_dims=(256, 128)),
            num_mini_batches=1,
            desired_kl=0.1,
            desired_kl_end=0.015,
            gamma=0.98,
            lam=0.9,
            entropy_coef=0.001,
            symmetry=SymmetryCfg(augment=True),
        ),
    )


@task("g1-tracking-no-state-estimation")
def g1_tracking_no_state_estimation() -> TaskCfg:
    """Follow recorded motions with what a robot measures, as late as a robot has it."""
    cfg = g1_tracking()
    actor, action = cfg.observation_terms()["actor"], cfg.actions["joint_pos"]
    for name in ("motion_anchor_pos_b", "base_lin_vel"):
        del actor[name]
    # Up to a control step late, the same for a whole episode, and with a memory of five steps.
    for name in ("motion_anchor_ori_b", "base_ang_vel", "joint_pos", "joint_vel"):
        actor[name].delay_max_lag, actor[name].delay_hold_prob = 1, 1.0
    action.delay_max_lag, action.delay_hold_prob = cfg.decimation, 1.0
    for name in ("base_ang_vel", "joint_pos", "joint_vel", "last_action"):
        actor[name].history_length = 5
    return cfg
