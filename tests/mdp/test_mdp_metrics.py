import math

import torch
from walker import set_state, value, walker_env

from simtrain import mdp


def test_velocity_errors_are_distances_from_the_command_in_the_bases_frame():
    env = walker_env()
    env.command("velocity")[:] = torch.tensor([[1.0, 0.5, -0.25]])
    qpos, qvel = env.bind("qpos").clone(), torch.zeros_like(env.bind("qvel"))
    # Turned left by 90 degrees: the world's y is ahead, and minus the world's x to the left.
    half = math.sqrt(0.5)
    qpos[:, env.base.quaternion] = torch.tensor([half, 0.0, 0.0, half])
    qvel[:, env.base.linear] = torch.tensor([-0.1, 0.7, 9.0])
    qvel[:, env.base.angular] = torch.tensor([5.0, 5.0, 0.5])
    set_state(env, qpos, qvel)
    distance = math.hypot(0.7 - 1.0, 0.1 - 0.5)
    torch.testing.assert_close(
        value(env, mdp.lin_vel_error, command="velocity"), torch.tensor([distance])
    )
    torch.testing.assert_close(
        value(env, mdp.ang_vel_error, command="velocity"), torch.tensor([0.75])
    )
