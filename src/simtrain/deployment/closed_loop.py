"""Plays an exported policy in MuJoCo, in a process that knows nothing of simtrain.

    python closed_loop.py FOLDER JOB.npz RESULT.npz

FOLDER has the very files that are taken to a robot. A job has episodes: ``start``, MuJoCo's
integration states, a row each; ``model/<field>``, the model's values in each; ``phase/<clock>``;
``motion/<command>``, numbers of motions in the order of policy.json;
``command/<name>``, ``(steps, episodes, size)``; and ``settings``, JSON. The result is of the end of
every step, ``(steps, episodes, ...)``: the `fields` of MjData that the settings name, `actions`,
`failed`, `time`. With ``follow/<field>``, states at the beginning of every step, nothing is
simulated: the result is what the policy sees there, by input, and its `targets`.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

sys.path.insert(0, sys.argv[1])
from mujoco_robot import MujocoRobot
from run_policy import Policy

Job = dict[str, np.ndarray]


class WatchedPolicy(Policy):  # type: ignore[misc]
    """A policy that keeps what it saw last, maybe with the noise of training."""

    def __init__(self, folder: Path, noise: bool) -> None:
        super().__init__(folder)
        self.random = np.random.default_rng(0) if noise else None

    def observe(self, state: dict[str, Any]) -> dict[str, np.ndarray]:
        """See `Policy.observe`."""
        inputs: dict[str, np.ndarray] = super().observe(state)
        self.inputs = inputs
        return inputs

    def value(self, part: dict[str, Any], state: dict[str, Any]) -> np.ndarray:
        """See `Policy.value`."""
        if part["params"].get("biased"):  # `joint_pos_rel`, as servos and encoders are wrong alike
            state = state | {"joint_pos": state["joint_pos"] + state["bias"]}
        value: np.ndarray = super().value(part, state)
        for kind, numbers in part["noise"].items() if self.random is not None else ():
            value = value + getattr(self.random, kind)(*numbers, value.shape) * part["scale"]
        return value


class WatchedRobot(MujocoRobot):  # type: ignore[misc]
    """A simulation that tells how wrong its servos' encoders are, and how far the ground is."""

    def __init__(self, policy: Policy, model: mujoco.MjModel) -> None:
        super().__init__(policy, model)
        parts = self.about["observations"]
        servos = model.actuator_biasprm[self.actuators]
        self.gains = -servos[:, 1:3] * model.actuator_gear[self.actuators, :1] ** 2
        self.bias = np.zeros(len(policy.joints))
        places = [policy.places[name] for name in self.about["joint_names"]]
        stiff = servos[:, 1] != 0.0
        self.bias[places] = np.divide(
            servos[:, 0], servos[:, 1], np.zeros(len(places)), where=stiff
        )
        self.points = {p["term"]: p["reads"]["points"] for p in parts if "points" in p["reads"]}

    def read_state(self) -> dict[str, Any]:
        """See `MujocoRobot.read_state`."""
        state: dict[str, Any] = {**super().read_state(), "bias": self.bias}
        for term, points in self.points.items():
            state[term] = self._heights(state, np.array(points))
        return state

    def _heights(self, state: dict[str, Any], points: np.ndarray) -> np.ndarray:
        """How far the ground is below the base at `points`, which turn with its heading."""
        w, x, y, z = state["base_quat"]
        yaw = np.arctan2(w * z + x * y, 0.5 - (y * y + z * z))
        turn = np.array([[np.cos(yaw), np.sin(yaw)], [-np.sin(yaw), np.cos(yaw)]])
        above = np.column_stack((points @ turn, np.full(len(points), 100.0))) + state["base_pos"]
        return np.array([self._down(point) for point in above]) - 100.0

    def _down(self, point: np.ndarray) -> float:
        """The distance to the ground below: planes and height fields that are fixed."""
        found, down = [np.inf], np.array([0.0, 0.0, -1.0])
        for geom in np.flatnonzero(self.model.geom_bodyid == 0):
            if self.model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE:
                found.append(point[2] - self.data.geom_xpos[geom, 2])
            elif self.model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_HFIELD:
                far = mujoco.mj_rayHfield(self.model, self.data, geom, point, down, None)
                found += [far] if far >= 0.0 else []
        return float(min(found))


class Loop:
    """Episodes of a policy under a condition."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.job, self.settings = job, json.loads(str(job["settings"]))
        self.condition = self.settings["condition"]
        self.policy = WatchedPolicy(folder, self.condition.get("noise", False))
        spec = mujoco.MjSpec.from_file(str(folder / "model.xml"))
        spec.compiler.discardvisual = self.settings["discardvisual"]
        self.model = spec.compile()
        for option, value in self.condition.get("options", {}).items():
            setattr(self.model.opt, option, value)
        self.model.opt.timestep *= self.condition.get("timestep", 1.0)
        self.commands = self.entries("command")
        self.result: Job = {}

    def play(self) -> Job:
        """Simulate every episode."""
        for episode in range(len(self.job["start"])):
            robot = self._start(episode)
            # What comes late comes after what held the robot at the start.
            late = [robot.data.ctrl[robot.actuators]] * self.condition.get("delay", 0)
            for step in range(self.settings["steps"]):
                robot.commands = self._commands(step, episode)
                late.append(self.policy.step(robot.read_state()))
                robot.write_command(late.pop(0))
                # MuJoCo leaves positions, velocities and their sensors of the last substep's start.
                mujoco.mj_step1(robot.model, robot.data)
                now = {name: getattr(robot.data, name) for name in self.settings["fields"]}
                failed = robot.data.warning.number.any()
                now |= {"actions": self.policy.actions, "failed": failed, "time": robot.data.time}
                self._record(step, episode, now)
        return self.result

    def follow(self, states: Job) -> Job:
        """Look at states, ``(steps, episodes, ...)``, without simulating."""
        for episode in range(len(self.job["start"])):
            robot = self._start(episode)
            for step in range(self.settings["steps"]):
                for field, values in states.items():
                    getattr(robot.data, field)[:] = values[step, episode]
                mujoco.mj_kinematics(robot.model, robot.data)
                robot.commands = self._commands(step, episode)
                targets = self.policy.step(robot.read_state())
                self._record(step, episode, self.policy.inputs | {"targets": targets})
        robot = WatchedRobot(self.policy, self.model)
        return self.result | {"gains": robot.gains}

    def _start(self, episode: int) -> WatchedRobot:
        model, mass = copy.copy(self.model), self.condition.get("mass", 1.0)
        for field, values in self.entries("model").items():
            owner, _, name = field.rpartition(".")
            getattr(model.opt if owner else model, name)[:] = values[episode]
        model.body_mass[:] *= mass
        model.body_inertia[:] *= mass
        robot = WatchedRobot(self.policy, model)
        mujoco.mj_setConst(model, robot.data)
        mujoco.mj_resetData(model, robot.data)
        start = self.job["start"][episode]
        mujoco.mj_setState(model, robot.data, start, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_kinematics(model, robot.data)
        phases = {name: float(values[episode]) for name, values in self.entries("phase").items()}
        runs = {c["name"]: c["runs"] for c in self.policy.about["commands"]}
        motions = {
            name: list(runs[name]["motions"])[int(numbers[episode])]
            for name, numbers in self.entries("motion").items()
        }
        self.policy.reset(phases, motions)
        return robot

    def _commands(self, step: int, episode: int) -> Job:
        return {name: given[step, episode] for name, given in self.commands.items()}

    def entries(self, kind: str) -> Job:
        """The arrays of the job that are called ``<kind>/<name>``, by name."""
        parts = ((name.split("/", 1), value) for name, value in self.job.items() if "/" in name)
        return {name: value for (prefix, name), value in parts if prefix == kind}

    def _record(self, step: int, episode: int, now: dict[str, Any]) -> None:
        for name, value in now.items():
            if name not in self.result:
                shape = self.settings["steps"], len(self.job["start"]), *np.shape(value)
                self.result[name] = np.zeros(shape, np.float32)
            self.result[name][step, episode] = value


def main(folder: str, job_file: str, result_file: str) -> None:
    """Do a job and write its result."""
    mujoco.set_mju_user_warning(lambda message: None)  # told as `failed`, and in no file
    job = dict(np.load(job_file))
    loop = Loop(Path(folder), job)
    states = loop.entries("follow")
    np.savez(result_file, allow_pickle=False, **(loop.follow(states) if states else loop.play()))


if __name__ == "__main__":
    main(*sys.argv[1:])
