"""Record what dm_control itself says about the tasks of the Control Suite, for the tests.

  uv run --isolated --no-project --with dm_control==1.0.50 --with mujoco==3.17.0 \
    python benchmarks/dmc_oracle.py tests/tasks/dmc_oracle.npz

dm_control does not run with MuJoCo 4, so that it has an environment of its own. For each task: some
states of a random episode, or random states where such an episode gets no reward; an action, and
the observation and reward after it; the return of 999 actions that are the same everywhere; and
quantiles of 500 starts.
"""

import sys
from contextlib import suppress

import numpy as np
from dm_control import suite
from dm_control.rl.control import PhysicsError

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


def scatter(physics, random):
    """Joints anywhere in their ranges; every other time, they are fast."""
    model, data = physics.model, physics.data
    for joint in range(model.njnt):
        if model.jnt_type[joint] >= 2:  # slides and hinges
            low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-np.pi, np.pi)
            data.qpos[model.jnt_qposadr[joint]] = random.uniform(low, high)
    data.qvel[:] = random.normal(scale=10.0 * random.integers(2), size=model.nv)


def record(domain, task):
    """The arrays of one task."""
    name = f"{domain}-{task}"
    env = suite.load(domain, task, task_kwargs={"random": 0})
    physics, spec = env.physics, env.action_spec()
    random = np.random.default_rng(0)
    rows = {key: [] for key in ("qpos", "qvel", "act", "target", "action", "observation", "reward")}

    def try_state(least=-1.0):
        """Record one step from the present state, if its reward is greater than `least`."""
        data = physics.data
        state = [np.float32(value) for value in (data.qpos, data.qvel, data.act)]
        action = np.float32(random.uniform(spec.minimum, spec.maximum))
        set_state(physics, *state)
        target = target_of(physics)
        step = env.step(action)
        if step.reward <= least:
            return
        values = (*state, target, action, flat(step.observation), step.reward)
        for key, value in zip(rows, values, strict=True):
            rows[key].append(np.float32(value))

    env.reset()
    for sample in range(SAMPLES):
        for _ in range(5 * sample):
            env.step(random.uniform(spec.minimum, spec.maximum))
        try_state()
    rare = max(rows["reward"]) < 0.01
    while rare and len(rows["reward"]) < 2 * SAMPLES:
        env.reset()
        scatter(physics, random)
        with suppress(PhysicsError):  # parts are inside each other
            try_state(least=0.5)
    start = int(np.argmax(rows["reward"])) if rare else 0
    env.reset()
    set_state(physics, *(rows[key][start] for key in ("qpos", "qvel", "act")))
    rows["start"], rows["return_target"] = start, target_of(physics)
    middle, half = (spec.maximum + spec.minimum) / 2.0, (spec.maximum - spec.minimum) / 2.0
    phases = np.arange(len(middle))
    total = sum(
        env.step(np.float32(middle + half * np.sin(0.1 * t + phases))).reward for t in range(999)
    )
    rows["return"], rows["final"] = total, physics.data.qpos.copy()
    starts = []
    for _ in range(STARTS):
        env.reset()
        target = target_of(physics)
        away = np.linalg.norm(target[:2])
        starts.append([*physics.data.qpos, *physics.data.qvel, *target, away])
    rows["starts"] = np.quantile(starts, QUANTILES, axis=0)
    return {f"{name}/{key}": np.float32(value) for key, value in rows.items()}


if __name__ == "__main__":
    arrays = {}
    for of, names in TASKS.items():
        for each in names:
            arrays |= record(of, each)
            print(of, each, flush=True)
    np.savez_compressed(sys.argv[1], **arrays)
