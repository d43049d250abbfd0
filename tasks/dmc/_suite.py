"""What the domains of the DeepMind Control Suite share: models, starts and the settings of PPO.

The Suite is described by Tassa et al. 2018, https://arxiv.org/abs/1801.00690. Its models come from
the package dm_control, which is found and never imported. An episode has 1,000 control steps and
only ends by time; the reward of each is between 0 and 1, so a return is at most 1,000.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain import (
    ActorCfg,
    ActuatorActionCfg,
    CriticCfg,
    EventTermCfg,
    ObservationTermCfg,
    PpoCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    mdp,
)
from simtrain.errors import ConfigError

if TYPE_CHECKING:
    import mujoco
    import numpy as np
    from torch import Tensor

    from simtrain.env.env import Env

PACKAGE = ("dm_control", "uv sync --extra dmc")
"""What the tasks need, and how to get it."""


def load(domain: str) -> mujoco.MjSpec:
    """The model of a domain, to edit; ConfigError if dm_control is not installed."""
    import importlib.util

    import mujoco

    package = importlib.util.find_spec(PACKAGE[0])
    if package is None or not package.submodule_search_locations:
        raise ConfigError(f"the package {PACKAGE[0]} is not installed; `{PACKAGE[1]}` gets it")
    folder = Path(package.submodule_search_locations[0], "suite")
    return mujoco.MjSpec.from_file(str(folder / f"{domain}.xml"))


def make_movable(spec: mujoco.MjSpec, kind: str) -> mujoco.MjSpec:
    """Put the world's ``target``, a "geom" or a "site", on a mocap body of this name."""
    target = getattr(spec, kind)("target")
    body = spec.worldbody.add_body(name="target", mocap=True, pos=target.pos)
    add = getattr(body, f"add_{kind}")
    settings = {name: getattr(target, name) for name in ("type", "size", "material", "group")}
    spec.delete(target)
    add(name="target", **settings)
    return spec


def suite_task(
    model: Callable[[], Any],
    *,
    timestep: float,
    decimation: int,
    observations: dict[str, ObservationTermCfg],
    reward: Callable[..., Tensor],
    starts: type[Starts],
    scale: float | dict[str, float] = 1.0,
    offset: float | dict[str, float] = 0.0,
    **params: Any,
) -> TaskCfg:
    """A task of the Suite. An action of -1 or 1 is an end of its actuator's range."""
    step = timestep * decimation
    return TaskCfg(
        model=model,
        timestep=timestep,
        decimation=decimation,
        episode_length_s=1000 * step,
        actions={"controls": ActuatorActionCfg(".*", scale=scale, offset=offset)},
        observations={"actor": observations},
        rewards={"reward": RewardTermCfg(reward, weight=1.0 / step, **params)},
        terminations={"time_out": TerminationTermCfg(mdp.time_out, time_out=True)},
        events={"reset": EventTermCfg(starts, mode="reset")},
        num_envs=256,
        num_envs_on_gpu=2048,
        num_steps_per_env=32,
        max_iterations=976,  # 8 million env steps
        ppo=PpoCfg(
            actor=ActorCfg(hidden_dims=(128, 128)),
            critic=CriticCfg(hidden_dims=(128, 128)),
            desired_kl=0.03,
            desired_kl_end=0.003,
            entropy_coef_end=0.0,
            # Values are up to 100: steps of `clip_param` would be too small, and the gradient of
            # their loss would leave too little of `max_grad_norm` to the policy.
            use_clipped_value_loss=False,
            value_loss_coef=0.01,
        ),
    )


class Starts:
    """Episodes start from states that `draw` makes on the host, once, for all environments.

    So that a domain may reject states and simulate, as those of the Suite do. They differ between
    seeds, so an evaluation with another seed starts elsewhere than the training.
    """

    count = 512

    def __init__(self, env: Env) -> None:
        import mujoco
        import numpy as np
        import torch

        model, data = env.model, mujoco.MjData(env.model)
        rng = np.random.default_rng(torch.initial_seed() % 2**63)
        states = []
        for _ in range(self.count):
            mujoco.mj_resetData(model, data)
            self.draw(model, data, rng)
            states.append([*data.qpos, *data.qvel, *data.mocap_pos.flat])
        self._states = torch.tensor(states, dtype=torch.float32, device=env.device)
        self._sizes = [model.nq, model.nv, 3 * model.nmocap]

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Set ``qpos`` and, where they matter, ``qvel`` and ``mocap_pos``."""
        randomize_joints(model, data, rng)

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        import torch

        chosen = torch.randint(len(self._states), (env.num_envs,), device=env.device)
        qpos, qvel, target = self._states[chosen].split(self._sizes, dim=1)
        env.sim.write("qpos", qpos, mask)
        env.sim.write("qvel", qvel, mask)
        if env.model.nmocap > 0:
            env.sim.write("mocap_pos", target.unflatten(1, (-1, 3)), mask)


class StartsWithoutContacts(Starts):
    """Starts in which no two geoms touch."""

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
        """Draw states until one has no contact."""
        import mujoco

        while True:
            super().draw(model, data, rng)
            mujoco.mj_fwdPosition(model, data)
            if data.ncon == 0:
                return


def randomize_joints(model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
    """Draw limited joints within their range, other hinges and free rotations from all."""
    import mujoco
    import numpy as np

    for joint, kind in enumerate(model.jnt_type):
        start = model.jnt_qposadr[joint]
        if model.jnt_limited[joint]:
            data.qpos[start] = rng.uniform(*model.jnt_range[joint])
        elif kind == mujoco.mjtJoint.mjJNT_HINGE:
            data.qpos[start] = rng.uniform(-np.pi, np.pi)
        elif kind == mujoco.mjtJoint.mjJNT_FREE:
            # The Suite's own choice; rotations are not uniform.
            quaternion = rng.uniform(size=4)
            data.qpos[start + 3 : start + 7] = quaternion / np.linalg.norm(quaternion)


def random_quaternion(rng: np.random.Generator) -> np.ndarray:
    """A rotation, uniformly from all."""
    import numpy as np

    quaternion = rng.normal(size=4)
    return quaternion / np.linalg.norm(quaternion)


def small_control(env: Env) -> Tensor:
    """1 for no control at all, 0.8 for the largest. Shape: ``(num_envs,)``."""
    size = mdp.tolerance(env.bind("ctrl"), margin=1.0, value_at_margin=0.0, sigmoid="quadratic")
    return (size.mean(dim=1) + 4.0) / 5.0


def reaches(value: Tensor, least: float, margin: float, value_at_margin: float) -> Tensor:
    """1 from `least` on, and `value_at_margin` at `margin` below it. Shape of `value`."""
    return mdp.tolerance(
        value,
        margin=margin,
        value_at_margin=value_at_margin,
        bounds=(least, float("inf")),
        sigmoid="linear",
    )


def upright(env: Env) -> Tensor:
    """Cosine of the torso's tilt. Shape: ``(num_envs, 1)``."""
    return rotation(env, "torso")[:, 8:]


def touch(env: Env, sensors: mdp.Sensors) -> Tensor:
    """Logarithms of the forces that `sensors` feel, plus one. Shape: ``(num_envs, sensors)``."""
    return mdp.builtin_sensor(env, sensors).log1p()


def rotation(env: Env, body: str) -> Tensor:
    """The rotation matrix of a body, row by row. Shape: ``(num_envs, 9)``."""
    return env.bind("xmat").view(env.num_envs, -1, 9)[:, env.model.body(body).id]


def position(env: Env, body: str) -> Tensor:
    """The position of a body, m. Shape: ``(num_envs, 3)``."""
    return env.bind("xpos")[:, env.model.body(body).id]


def in_frame(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Vectors ``(num_envs, n, 3)`` in the frame of matrices ``(num_envs, 9)``; the same shape."""
    return vectors @ matrix.view(-1, 3, 3)


def sensor(env: Env, name: str) -> Tensor:
    """What a sensor reads. Shape: ``(num_envs, size)``."""
    found = env.model.sensor(name)
    return env.bind("sensordata")[:, found.adr[0] : found.adr[0] + found.dim[0]]
