"""Cart-pole: balance a pole on a cart, or swing it up first.

Dynamics and reward follow the cart-pole of the DeepMind Control Suite (Tassa et al. 2018,
https://arxiv.org/abs/1801.00690), whose smooth reward is the product of four numbers between 0 and
1, with control steps of 0.05 s. As there, Runge-Kutta integrates; away from the rail's ends, states
after a control step are within 4e-6 of those after the Suite's five steps of 10 ms.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simtrain import (
    ActorCfg,
    CriticCfg,
    EventTermCfg,
    JointEffortActionCfg,
    MetricTermCfg,
    Mirror,
    ObservationTermCfg,
    PpoCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    mdp,
    task,
)

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Joints


@task("cartpole-balance")
def cartpole_balance() -> TaskCfg:
    """Keep the pole upright while the cart stays near the middle."""
    cfg = _cartpole()
    cfg.keyframe = "up"
    cfg.events = {
        "reset_cart": EventTermCfg(
            mdp.reset_joints_uniform, mode="reset", joints="slider", position=(-0.1, 0.1)
        ),
        "reset_pole": EventTermCfg(
            mdp.reset_joints_uniform, mode="reset", joints="hinge", position=(-0.034, 0.034)
        ),
        "reset_velocities": EventTermCfg(
            reset_velocities, mode="reset", joints=("slider", "hinge"), std=0.01
        ),
    }
    return cfg


@task("cartpole-swingup")
def cartpole_swingup() -> TaskCfg:
    """Swing the hanging pole up and keep it upright in the middle."""
    cfg = _cartpole()
    cfg.keyframe = "down"
    cfg.ppo.lam = 0.98
    # Few of the poles swing up at a time; with larger steps the policy forgets how.
    cfg.ppo.desired_kl = 0.005
    cfg.ppo.desired_kl_end = 0.0005
    cfg.events = {
        "reset": EventTermCfg(
            mdp.reset_joints_gaussian,
            mode="reset",
            joints=("slider", "hinge"),
            position_std=0.01,
            velocity_std=0.01,
        ),
    }
    return cfg


def _cartpole() -> TaskCfg:
    observations = {
        "cart_position": ObservationTermCfg(mdp.joint_pos, joints="slider"),
        "pole_angle": ObservationTermCfg(pole_angle_cos_sin, joints="hinge", mirror=(1.0, -1.0)),
        "velocities": ObservationTermCfg(mdp.joint_vel, joints=("slider", "hinge")),
    }
    return TaskCfg(
        model=Path(__file__).with_name("cartpole.xml"),
        timestep=0.025,
        decimation=2,
        episode_length_s=50.0,
        actions={"force": JointEffortActionCfg("slider")},
        observations={"actor": observations},
        rewards={
            "upright": RewardTermCfg(upright, weight=1.0, cart_joints="slider", pole_joints="hinge")
        },
        terminations={"time_out": TerminationTermCfg(mdp.time_out, time_out=True)},
        metrics={
            "time_upright": MetricTermCfg(is_upright, joints="hinge"),
            "cart_distance": MetricTermCfg(distance_from_middle, joints="slider"),
        },
        symmetry=Mirror(normal="x"),
        num_envs=256,
        num_envs_on_gpu=4096,
        num_steps_per_env=32,
        max_iterations=150,
        ppo=PpoCfg(
            # Less noise would leave nothing to learn from once all poles stand. It also sets how
            # far an update may go: with 0.1, carts far from the middle hardly come back.
            actor=ActorCfg(hidden_dims=(64, 64), activation="tanh", std_range=(0.2, 10.0)),
            critic=CriticCfg(hidden_dims=(64, 64), activation="tanh"),
            entropy_coef=0.005,
            num_learning_epochs=4,
            gamma=0.98,
            # Values reach 2.5 here: a change of at most clip_param an update would be too slow.
            use_clipped_value_loss=False,
        ),
    )


def reset_velocities(env: Env, mask: Tensor, joints: Joints, std: float) -> None:
    """Give joints normally distributed velocities of this deviation, m/s and rad/s."""
    import torch

    velocity = std * torch.randn(env.num_envs, len(joints), device=env.device)
    env.sim.write("qvel", velocity, mask, joints.qvel)


def pole_angle_cos_sin(env: Env, joints: Joints) -> Tensor:
    """Cosine and sine of the pole's angle, (1, 0) when upright. Shape: ``(num_envs, 2)``."""
    import torch

    angle = mdp.joint_pos(env, joints)
    return torch.cat((angle.cos(), angle.sin()), dim=1)


def upright(env: Env, cart_joints: Joints, pole_joints: Joints) -> Tensor:
    """Upright x centered x small control x small velocity, the Suite's smooth reward.

    With the pole's angle a, the cart's position x, the control u and the pole's velocity w:
    (1 + cos a) / 2 x (1 + t(x, 2)) / 2 x (4 + q(u, 1)) / 5 x (1 + t(w, 5)) / 2, where t is a
    Gaussian and q a parabola (`mdp.tolerance`). Between 0 and 1. Shape: ``(num_envs,)``.
    """
    position = mdp.joint_pos(env, cart_joints)[:, 0]
    angle = mdp.joint_pos(env, pole_joints)[:, 0]
    velocity = mdp.joint_vel(env, pole_joints)[:, 0]
    control = env.bind("ctrl")[:, 0]
    standing = angle.cos().add_(1.0)
    centered = mdp.tolerance(position, margin=2.0).add_(1.0)
    small_control = mdp.tolerance(control, 1.0, 0.0, sigmoid="quadratic").add_(4.0)
    small_velocity = mdp.tolerance(velocity, margin=5.0).add_(1.0)
    product = standing.mul_(centered).mul_(small_control).mul_(small_velocity)
    return product.div_(2.0 * 2.0 * 5.0 * 2.0)


def is_upright(env: Env, joints: Joints) -> Tensor:
    """1 where the pole is within 5.7 degrees of upright (cosine above 0.995, as in the Suite).

    Its mean over an episode is the share of time. Shape: ``(num_envs,)``.
    """
    return (mdp.joint_pos(env, joints)[:, 0].cos() > 0.995).float()


def distance_from_middle(env: Env, joints: Joints) -> Tensor:
    """Distance of the cart from the middle, m. Shape: ``(num_envs,)``."""
    return mdp.joint_pos(env, joints)[:, 0].abs()
