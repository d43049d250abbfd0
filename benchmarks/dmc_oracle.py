"""Record what dm_control itself says about the tasks of the Control Suite, for the tests.

  uv run --isolated --no-project --with dm_control --with mujoco==3.17.0 \
    python benchmarks/dmc_oracle.py tests/tasks/dmc_oracle.npz

dm_control does not run with MuJoCo 4, so that it has an environment of its own. For each task: some
states of a random episode, an action, and the observation and reward after it; the return of 1,000
actions that are the same everywhere; and quantiles of 500 starts.
"""

import sys

import numpy as np
from dm_control import suite

TASKS = {
    "acrobot": ("swingup",),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "swingup", "swingup_sparse"),
    "cheetah": ("run",),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run"),
    "pendulum": ("swingup",),
    "point_mass": ("easy",),
    "quadruped": ("walk", "run"),
    "reacher": ("easy", "hard"),
    "swimmer": ("swimmer6",),
    "walker": ("stand", "walk", "run"),
}
SAMPLES, STARTS = 8, 500
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def target_of(physics):
    """Where the target is, if the task has one."""
    model, data = physics.model, physics.data
    for kind, count, places in (
        ("geom", model.ngeom, data.geom_xpos),
        ("site", model.nsite, data.site_xpos),
    ):
        for place in range(count):
            if model.id2name(place, kind) == "target":
                return np.array(places[place])
    return np.zeros(3)


def set_state(physics, qpos, qvel, act):
    """Put a state that float32 can hold."""
    data = physics.data
    data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = qpos, qvel, 0.0
    if len(act):
        data.act[:] = act
    physics.forward()


def flat(observation):
    """An observation as one vector, in the Suite's order."""
    return np.concatenate([np.ravel(value) for value in observation.values()])


def record(domain, task):
    """The arrays of one task."""
    name = f"{domain}-{task}"
    env = suite.load(domain, task, task_kwargs={"random": 0})
    physics, spec = env.physics, env.action_spec()
    random = np.random.default_rng(0)
    rows = {key: [] for key in ("qpos", "qvel", "act", "target", "action", "observation", "reward")}
    env.reset()
    for sample in range(SAMPLES):
        for _ in range(5 * sample):
            env.step(random.uniform(spec.minimum, spec.maximum))
        state = [
            np.float32(value) for value in (physics.data.qpos, physics.data.qvel, physics.data.act)
        ]
        action = np.float32(random.uniform(spec.minimum, spec.maximum))
        set_state(physics, *state)
        rows["target"].append(target_of(physics))
        step = env.step(action)
        values = (*state, action, flat(step.observation), step.reward)
        keys = ("qpos", "qvel", "act", "action", "observation", "reward")
        for key, value in zip(keys, values, strict=True):
            rows[key].append(np.float32(value))
    env.reset()
    set_state(physics, rows["qpos"][0], rows["qvel"][0], rows["act"][0])
    rows["return_target"] = target_of(physics)
    middle, half = (spec.maximum + spec.minimum) / 2.0, (spec.maximum - spec.minimum) / 2.0
    phases = np.arange(len(middle))
    total = sum(
        env.step(np.float32(middle + half * np.sin(0.1 * t + phases))).reward for t in range(999)
    )
    starts = []
    for _ in range(STARTS):
        env.reset()
        starts.append([*physics.data.qpos, *physics.data.qvel, *target_of(physics)])
    rows["return"], rows["final"] = total, physics.data.qpos.copy()
    rows["starts"] = np.quantile(starts, QUANTILES, axis=0)
    return {f"{name}/{key}": np.float32(value) for key, value in rows.items()}


if __name__ == "__main__":
    arrays = {}
    for of, names in TASKS.items():
        for each in names:
            arrays |= record(of, each)
            print(of, each, flush=True)
    np.savez_compressed(sys.argv[1], **arrays)
