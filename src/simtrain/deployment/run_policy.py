"""Runs an exported policy on a robot: give `run` two functions. Needs numpy and onnxruntime.

`read_state()` returns a dict. ``joint_pos`` and ``joint_vel``, rad and rad/s, or m and m/s, are
arrays in the order of `Policy.joints`; ``commands`` are by name, such as {"velocity": [0.5, 0, 0]}.
A floating base has ``base_quat``, in the order that ``base_quat`` in policy.json says, and in its
own frame ``base_ang_vel``, a gyroscope's, rad/s, and ``base_lin_vel``, m/s. A robot that follows
motions has ``anchor_pos``, m, and ``anchor_quat`` of the body that policy.json calls their anchor,
in the world. Places that policy.json names, such as objects, are in ``places`` by name: a position,
m, and a quaternion, in the world. What policy.json reads as "given" is there under the name of the
term. What no term reads may be missing.

`write_command(targets)` gives each joint of ``joint_names`` in policy.json its target. See
mujoco_robot.py for both.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


class Clock:
    """A command that runs by itself: [sin, cos] of a phase, 0 to 1."""

    def __init__(self, about: dict[str, Any], period: float, phase: float) -> None:
        self.about, self.period, self.phase = about, period, phase
        self.steps_left, self.on, self.is_first = 0, 0.0, True

    def step(self, given: dict[str, Any]) -> np.ndarray:
        """The command now, which also says how it goes on; to be called in every period."""
        is_to_run = np.linalg.norm(given[self.about["runs_with"]]) > self.about["threshold"]
        lasting = round(self.about["stopping_time"] / self.period)
        self.steps_left = lasting if is_to_run else self.steps_left - 1
        self.on = float(self.steps_left >= 0)
        if not self.is_first:
            self.phase += self.about["frequency"] * self.period * self.on
        self.is_first = False
        angle = 2.0 * np.pi * self.phase
        return self.on * np.array([np.sin(angle), np.cos(angle)])

    def moved(self, joint: str) -> float:
        """How far it moves the target of a joint now."""
        angle, ahead = self.about["bend"].get(joint, (0.0, 0.0))
        swing = (self.phase + ahead) % 1.0 - self.about["stance"]
        done = max(0.0, swing / (1.0 - self.about["stance"]))
        return float(angle * np.sin(np.pi * done) ** 2 * self.on)


class Motion:
    """A motion to follow: [positions, velocities] of joints, frame by frame; it ends and stays."""

    def __init__(self, about: dict[str, Any], folder: Path, start: dict[str, float]) -> None:
        with np.load(folder / about["file"]) as file:
            self.frames = {name: file[name] for name in file.files}
        self.joints: list[str] = self.frames["joint_names"].tolist()
        self.anchor = self.frames["body_names"].tolist().index(about["anchor"])
        self.frame, self.start = 0, start

    def step(self, given: dict[str, Any]) -> np.ndarray:
        """The command now: the frame that the next period is to reach."""
        self.frame = min(self.frame + 1, len(self.frames["joint_pos"]) - 1)
        return np.concatenate([self.frames[f][self.frame] for f in ("joint_pos", "joint_vel")])

    def moved(self, joint: str) -> float:
        """How far it moves the target of a joint now."""
        position = self.frames["joint_pos"][self.frame, self.joints.index(joint)]
        return float(position - self.start[joint])

    def anchor_pose(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the anchor is to be: position, m, and rotation matrix."""
        place = self.frame, self.anchor
        return self.frames["body_pos_w"][place], matrix(self.frames["body_quat_w"][place])


class Policy:
    """The policy in a folder, and what it remembers: last actions, histories, clocks, memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / "policy.json").read_text())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        network = folder / self.about["files"]["onnx"]
        self.network = onnxruntime.InferenceSession(network, options)
        self.period: float = self.about["control_period"]
        self.joints: list[str] = list(self.about["initial_joint_pos"])
        self.places = {name: place for place, name in enumerate(self.joints)}
        known = ("joint_targets", "relative_joint_targets")
        unknown = [part["term"] for part in self.about["actions"] if part["does"] not in known]
        if unknown:
            raise ValueError(f"this program does not know what to do with the actions {unknown}")
        self.scale, self.offset = (np.array(self.about[f"action_{n}"]) for n in ("scale", "offset"))
        self.low, self.high = np.array([bounds(pair) for pair in self.about["action_clip"]]).T
        self.reset()

    def reset(
        self, phases: dict[str, float] | None = None, motions: dict[str, str] | None = None
    ) -> None:
        """Begin anew, with the `phases` of clocks, 0 to 1, and the `motions` that are to be
        followed, by their names; 0 and the first of policy.json if they are not given."""
        self.actions = np.zeros(self.about["action_size"], np.float32)
        shapes = self.about["state_inputs"].items()
        self.memory = {name: np.zeros((n, 1, units), np.float32) for name, (n, units) in shapes}
        self.histories: dict[tuple[str, str], list[np.ndarray]] = {}
        self.before: dict[tuple[str, str], np.ndarray] = {}
        self.running: dict[str, Clock | Motion] = {}
        for name, about in ((c["name"], c["runs"]) for c in self.about["commands"] if c["runs"]):
            if "motions" in about:
                motion = (motions or {}).get(name, next(iter(about["motions"])))
                told = about | {"file": about["motions"][motion]}
                self.running[name] = Motion(told, self.folder, self.about["initial_joint_pos"])
            else:
                self.running[name] = Clock(about, self.period, (phases or {}).get(name, 0.0))

    def step(self, state: dict[str, Any]) -> np.ndarray:
        """The targets of joints in this state; to be called every `period` seconds."""
        inputs = {name: value[None] for name, value in self.observe(state).items()}
        actions, *memory = self.network.run(None, inputs | self.memory)
        self.actions, self.memory = actions[0], dict(zip(self.memory, memory, strict=True))
        targets = self.offset + self.scale * self.actions + self.moved(state)
        return np.asarray(np.clip(targets, self.low, self.high))

    def observe(self, state: dict[str, Any]) -> dict[str, np.ndarray]:
        """The inputs of the network in this state, by name."""
        given = state["commands"]
        commands = given | {name: runs.step(given) for name, runs in self.running.items()}
        state = state | {"commands": commands, "last_action": self.actions}
        vector = np.zeros(self.about["observation_size"], np.float32)
        inputs = {self.about["input"]: vector} if len(vector) else {}
        for part in self.about["observations"]:
            value = self.value(part, state)
            if part["history_length"] > 1:  # stacked, oldest first
                term = part["group"], part["term"]
                stack = self.histories.get(term, [value] * part["history_length"])
                self.histories[term] = stack = [*stack[1:], value]
                value = np.concatenate([each.ravel() for each in stack])
            if part["shape"] is None:
                vector[part["start"] : part["start"] + part["size"]] = value
            else:
                inputs[part["group"]] = value.reshape(part["shape"]).astype(np.float32)
        return inputs

    def moved(self, state: dict[str, Any]) -> np.ndarray:
        """How far the state, or what runs by itself, moves the targets of joints now."""
        moved = np.zeros(len(self.offset))
        for part in self.about["actions"]:
            for place in range(part["start"], part["start"] + part["size"]):
                name = self.about["joint_names"][place]
                if part["does"] == "relative_joint_targets":
                    moved[place] = state["joint_pos"][self.places[name]]
                elif part["reference"]:
                    moved[place] = self.running[part["reference"]].moved(name)
        return moved

    def wxyz(self, quat: np.ndarray) -> np.ndarray:
        """A quaternion of a robot's state with w first."""
        named = dict(zip(self.about["base_quat"], quat, strict=True))
        return np.array([named[axis] for axis in "wxyz"])

    def value(self, part: dict[str, Any], state: dict[str, Any]) -> np.ndarray:
        """An observation term's value now, as policy.json says: read, clipped and scaled."""
        reads, source = part["reads"], part["reads"]["source"]
        value: Any
        if source in ("joint_pos", "joint_vel"):
            value = state[source][[self.places[name] for name in reads["joints"]]]
        elif source == "projected_gravity":
            value = -matrix(self.wxyz(state["base_quat"]))[2]
        elif source in ("motion_anchor_pos", "motion_anchor_ori"):
            motion = self.running[reads["command"]]
            assert isinstance(motion, Motion)
            position, turn = motion.anchor_pose()
            back = matrix(self.wxyz(state["anchor_quat"])).T
            at = source == "motion_anchor_pos"
            value = back @ (position - state["anchor_pos"]) if at else (back @ turn)[:, :2].ravel()
        elif source in ("place_pos", "place_ori", "goal_pos"):
            value = self.seen(reads, state)
        elif source == "contact":
            value = [state[source][name] for name in reads["sensors"]]
        elif source == "command":
            value = state["commands"][reads["command"]]
        else:
            value = state[part["term"] if source == "given" else source]
        value = np.asarray(value, dtype=float)
        value = value[reads["entries"]] if "entries" in reads else value
        value = value - reads.get("minus", 0.0)
        if "functions" in reads:
            term = part["group"], part["term"]
            rate = (value - self.before.get(term, value)) / self.period
            self.before[term] = value
            functions = {"cos": np.cos(value), "sin": np.sin(value), "rate": rate}
            value = np.concatenate([functions[name] for name in reads["functions"]])
        return np.asarray(np.clip(value, *bounds(part["clip"] or [None, None])) * part["scale"])

    def seen(self, reads: dict[str, Any], state: dict[str, Any]) -> np.ndarray:
        """Places or a goal from an origin, along the axes of a frame."""
        poses = {
            name: (np.asarray(position), matrix(self.wxyz(quat)))
            for name, (position, quat) in state["places"].items()
        }
        frame, origin = reads["frame"], reads.get("origin") or reads["frame"]
        axes = np.eye(3) if frame is None else poses[frame][1]
        if reads["source"] == "place_ori":
            turned = [axes.T @ poses[name][1] for name in reads["places"]]
            return np.concatenate([each[:, :2].ravel() for each in turned])
        of_goal = reads["source"] == "goal_pos"
        points = (
            [state["commands"][reads["command"]]]
            if of_goal
            else [poses[name][0] for name in reads["places"]]
        )
        start = np.zeros(3) if origin is None else poses[origin][0]
        return np.concatenate([axes.T @ (point - start) for point in points])


def matrix(quat: np.ndarray) -> np.ndarray:
    """The rotation matrix of a quaternion, w first."""
    w, x, y, z = quat
    upper = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.asarray(np.eye(3) + 2.0 * (w * upper + upper @ upper))


def bounds(pair: list[float | None]) -> tuple[float, float]:
    """Lower and upper bound, infinite where there is None."""
    low, high = pair
    return -np.inf if low is None else low, np.inf if high is None else high


def run(
    policy: Policy,
    read_state: Callable[[], dict[str, Any]],
    write_command: Callable[[np.ndarray], None],
    seconds: float,
) -> None:
    """Let a policy control a robot for so long, in its period."""
    due = time.monotonic()
    for _ in range(round(seconds / policy.period)):
        write_command(policy.step(read_state()))
        due += policy.period
        time.sleep(max(0.0, due - time.monotonic()))
