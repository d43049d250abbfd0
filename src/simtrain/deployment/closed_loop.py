"""Plays an exported policy in MuJoCo, in a process that imports nothing from simtrain.

    python closed_loop.py FOLDER JOB.npz RESULT.npz

FOLDER contains policy.json, robot.onnx and model.xml. No code from there is run: run_policy.py and
mujoco_robot.py are those next to this file. The process ends with its parent, whose pipe is its
standard input. A job contains episodes: ``start``, MuJoCo's integration states, one row each;
``model/<field>``, the model's values in each; ``memory/<name>``, the policy's memory at the start;
``command/<name>``, ``(steps, episodes, size)``; and ``settings``, JSON. The result describes the
end of every step, ``(steps, episodes, ...)``: the `fields` of MjData in the settings, `actions`,
`failed`, `time`. If a job has ``follow/<field>``, states at the beginning of every step, nothing is
simulated: the result is the policy's observations in them, and its `targets`. A condition may name
the binary file of another model of the robot, `other`, its `base`, and the `columns` of its
``qpos`` and ``qvel`` that belong to those of the job.
"""

import copy
import json
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

sys.path.append(str(Path(__file__).parent))
from mujoco_robot import MujocoRobot
from run_policy import Policy

Job = dict[str, np.ndarray]


class DisturbedPolicy(Policy):  # type: ignore[misc]
    """A policy with the encoder bias of an episode, and maybe with the noise of training."""

    def __init__(self, folder: Path, noise: bool) -> None:
        super().__init__(folder)
        self.random = np.random.default_rng(0) if noise else None
        self.biasprm: np.ndarray | None = None
        self.optional = {value.name for value in self.graph.get_overridable_initializers()}
        self.names = self.optional | {*self.about["robot"]["names"]}

    def inputs(self, state: dict[str, Any]) -> Job:
        """See `Policy.inputs`."""
        values = super().inputs(state) | {"actuator_biasprm": self.biasprm}
        seen = self.about["observations"] if self.random is not None else []
        for group in dict.fromkeys(part["group"] for part in seen):
            noise = np.concatenate([self.noise(part) for part in seen if part["group"] == group])
            values[f"noise.{group}"] = noise.astype(np.float32)[None]
        return {name: value for name, value in values.items() if name in self.names}

    def noise(self, part: dict[str, Any]) -> np.ndarray:
        """Noise of a term."""
        noise = np.zeros(part["size"] // max(part["history_length"], 1))
        for kind, numbers in part["noise"].items():
            noise += getattr(self.random, kind)(*numbers, noise.shape)
        return noise


class MeasuringRobot(MujocoRobot):  # type: ignore[misc]
    """A simulation that measures the distance to the ground at the points of a term."""

    def read_state(self) -> dict[str, Any]:
        """See `MujocoRobot.read_state`."""
        state: dict[str, Any] = super().read_state()
        for name, facts in self.about["robot"]["given"].items():
            state[name.partition(".")[2]] = self._heights(state, np.array(facts["points"]))
        return state

    def _heights(self, state: dict[str, Any], points: np.ndarray) -> np.ndarray:
        """Distance of the ground below the base at `points`, which turn with its heading."""
        w, x, y, z = state["base_quat"]
        yaw = np.arctan2(w * z + x * y, 0.5 - (y * y + z * z))
        turn = np.array([[np.cos(yaw), np.sin(yaw)], [-np.sin(yaw), np.cos(yaw)]])
        above = np.column_stack((points @ turn, np.full(len(points), 100.0))) + state["base_pos"]
        return np.array([self._down(point) for point in above]) - 100.0

    def _down(self, point: np.ndarray) -> float:
        """The distance to the ground below: planes and height fields that are fixed."""
        distances, down = [np.inf], np.array([0.0, 0.0, -1.0])
        for geom in np.flatnonzero(self.model.geom_bodyid == 0):
            if self.model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE:
                distances.append(point[2] - self.data.geom_xpos[geom, 2])
            elif self.model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_HFIELD:
                far = mujoco.mj_rayHfield(self.model, self.data, geom, point, down, None)
                distances += [far] if far >= 0.0 else []
        return float(min(distances))


class Loop:
    """Episodes of a policy under a condition."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.job, self.settings = job, json.loads(str(job["settings"]))
        self.condition = self.settings["condition"]
        with suppress(ValueError):  # ours is lower already
            resource.setrlimit(resource.RLIMIT_DATA, (self.settings["memory"],) * 2)
        self._begin_step()
        self.policy = DisturbedPolicy(folder, self.condition.get("noise", False))
        self.columns: dict[str, Any] = self.condition.get("columns", {})  # of another model
        if not self.columns:
            spec = mujoco.MjSpec.from_file(str(folder / "model.xml"))
            spec.compiler.discardvisual = self.settings["discardvisual"]
            self.model = spec.compile()
        else:
            self.model = mujoco.MjModel.from_binary_path(self.condition["other"])
            period = self.policy.period
            self.model.opt.timestep = period / round(period / self.model.opt.timestep)
            self.policy.about |= {"base": self.condition["base"], "keyframe": None}
        for option, value in self.condition.get("options", {}).items():
            setattr(self.model.opt, option, value)
        self.model.opt.timestep *= self.condition.get("timestep", 1.0)
        self.result: Job = {}

    def play(self) -> Job:
        """Simulate every episode, or evaluate the policy in given states."""
        states, commands = self.entries("follow"), self.entries("command")
        for episode in range(len(self.job["start"])):
            robot = self._start(episode)
            # Late targets come after the targets that held the robot at the start.
            driven = robot.about["actuators"]
            late = [robot.data.ctrl[driven]] * self.condition.get("delay", 0)
            for step in range(self.settings["steps"]):
                self._begin_step()
                for field, values in states.items():
                    getattr(robot.data, field)[:] = values[step, episode]
                if states:
                    mujoco.mj_kinematics(robot.model, robot.data)
                robot.commands = {name: rows[step, episode] for name, rows in commands.items()}
                late.append(self.policy.step(robot.read_state()))
                if states:
                    now = {name: self.policy.seen[name][0] for name in ("obs", "targets")}
                else:
                    now = self._simulate(robot, late.pop(0))
                for name, value in now.items():
                    if name not in self.result:
                        shape = self.settings["steps"], len(self.job["start"]), *np.shape(value)
                        self.result[name] = np.zeros(shape, np.float32)
                    self.result[name][step, episode] = value
        return self.result

    def _begin_step(self) -> None:
        """Restart the timer that ends this process if a step takes too much processor time."""
        signal.setitimer(signal.ITIMER_PROF, self.settings["seconds_of_step"])

    def _simulate(self, robot: MeasuringRobot, targets: np.ndarray) -> dict[str, Any]:
        robot.write_command(targets)
        # MuJoCo leaves positions, velocities and their sensors of the last substep's start.
        mujoco.mj_step1(robot.model, robot.data)
        fields = self.columns or dict.fromkeys(self.settings["fields"], slice(None))
        now = {name: getattr(robot.data, name)[columns] for name, columns in fields.items()}
        failed, actions = robot.data.warning.number.any(), self.policy.seen["actions"][0]
        return now | {"actions": actions, "failed": failed, "time": robot.data.time}

    def _start(self, episode: int) -> MeasuringRobot:
        model, mass = copy.copy(self.model), self.condition.get("mass", 1.0)
        own = {} if self.columns else self.entries("model")
        for field, values in own.items():
            owner, _, name = field.rpartition(".")
            getattr(model.opt if owner else model, name)[:] = values[episode]
        model.body_mass[:] *= mass
        model.body_inertia[:] *= mass
        robot = MeasuringRobot(self.policy, model)
        mujoco.mj_setConst(model, robot.data)
        mujoco.mj_resetData(model, robot.data)
        if not self.columns:
            start = self.job["start"][episode]
            mujoco.mj_setState(model, robot.data, start, mujoco.mjtState.mjSTATE_INTEGRATION)
        for field, columns in self.columns.items():
            getattr(robot.data, field)[columns] = self.job[f"at_start/{field}"][episode]
        mujoco.mj_kinematics(model, robot.data)
        self.policy.biasprm = model.actuator_biasprm.astype(np.float32)[None]
        memory = {name: rows[episode][None] for name, rows in self.entries("memory").items()}
        known = self.policy.optional
        self.policy.reset({name: row for name, row in memory.items() if f"memory.{name}" in known})
        return robot

    def entries(self, kind: str) -> Job:
        """The arrays of the job that are named ``<kind>/<name>``, by name."""
        parts = ((name.split("/", 1), value) for name, value in self.job.items() if "/" in name)
        return {name: value for (prefix, name), value in parts if prefix == kind}


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    mujoco.set_mju_user_warning(lambda message: None)  # told as `failed`, and in no file
    _, folder, job_file, result_file = sys.argv
    with np.load(job_file) as job:
        np.savez(result_file, allow_pickle=False, **Loop(Path(folder), dict(job)).play())
