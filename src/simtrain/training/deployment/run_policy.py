"""Runs an exported policy on a robot: give `run` two functions. Needs numpy and onnxruntime.

`read_state()` returns a dict. ``joint_pos`` and ``joint_vel``, rad and rad/s, or m and m/s, are
arrays in the order of `Policy.joints`; ``commands`` are by name, such as {"velocity": [0.5, 0, 0]}.
A floating base has ``base_quat``, in the order that ``base_quat`` in policy.json says, and in its
own frame ``base_ang_vel``, a gyroscope's, rad/s, and ``base_lin_vel``, m/s. What policy.json reads
as "given" is there under the name of the term. What no term reads may be missing.

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


class Policy:
    """The policy in a folder, and what it remembers: last actions, histories, clocks, memory."""

    def __init__(self, folder: Path) -> None:
        self.about: dict[str, Any] = json.loads((folder / "policy.json").read_text())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        network = folder / self.about["files"]["onnx"]
        self.network = onnxruntime.InferenceSession(network, options)
        self.period: float = self.about["control_period"]
        self.joints: list[str] = list(self.about["initial_joint_pos"])
        self.places = {name: place for place, name in enumerate(self.joints)}
        unknown = [
            part["term"] for part in self.about["actions"] if part["does"] != "joint_targets"
        ]
        if unknown:
            raise ValueError(f"this program does not know what to do with the actions {unknown}")
        self.scale, self.offset = (np.array(self.about[f"action_{n}"]) for n in ("scale", "offset"))
        self.low, self.high = np.array([bounds(pair) for pair in self.about["action_clip"]]).T
        self.reset()

    def reset(self, phases: dict[str, float] | None = None) -> None:
        """Begin anew, with the `phases` of clocks, 0 to 1; 0 if they are not given."""
        self.actions = np.zeros(self.about["action_size"], np.float32)
        shapes = self.about["state_inputs"].items()
        self.memory = {name: np.zeros((n, 1, units), np.float32) for name, (n, units) in shapes}
        self.histories: dict[str, list[np.ndarray]] = {}
        self.before: dict[str, np.ndarray] = {}
        self.phases, self.is_first = dict(phases or {}), True
        self.clocks: dict[str, dict[str, Any]] = {}

    def step(self, state: dict[str, Any]) -> np.ndarray:
        """The targets of joints in this state; to be called every `period` seconds."""
        inputs = {name: value[None] for name, value in self.observe(state).items()}
        actions, *memory = self.network.run(None, inputs | self.memory)
        self.actions, self.memory = actions[0], dict(zip(self.memory, memory, strict=True))
        targets = self.offset + self.scale * self.actions + self.bend()
        return np.asarray(np.clip(targets, self.low, self.high))

    def observe(self, state: dict[str, Any]) -> dict[str, np.ndarray]:
        """The inputs of the network in this state, by name."""
        state = state | {
            "commands": self.run_clocks(state["commands"]),
            "last_action": self.actions,
        }
        vector = np.zeros(self.about["observation_size"], np.float32)
        inputs = {self.about["input"]: vector} if len(vector) else {}
        for part in self.about["observations"]:
            value = self.value(part, state)
            if part["history_length"] > 1:  # stacked, oldest first
                stack = self.histories.get(part["term"], [value] * part["history_length"])
                self.histories[part["term"]] = stack = [*stack[1:], value]
                value = np.concatenate([each.ravel() for each in stack])
            if part["shape"] is None:
                vector[part["start"] : part["start"] + part["size"]] = value
            else:
                inputs[part["group"]] = value.reshape(part["shape"]).astype(np.float32)
        self.is_first = False
        return inputs

    def run_clocks(self, given: dict[str, Any]) -> dict[str, Any]:
        """All commands: those that are given, and clocks, which this advances by a step."""
        commands = dict(given)
        for command in self.about["commands"]:
            if clock := command["runs"]:
                is_to_run = np.linalg.norm(given[clock["runs_with"]]) > clock["threshold"]
                left = self.clocks.get(command["name"], {"steps_left": 0})["steps_left"] - 1
                left = round(clock["stopping_time"] / self.period) if is_to_run else left
                runs = float(left >= 0)
                advance = 0.0 if self.is_first else clock["frequency"] * self.period * runs
                phase = self.phases.get(command["name"], 0.0) + advance
                self.phases[command["name"]] = phase
                self.clocks[command["name"]] = clock | {"on": runs, "steps_left": left}
                angle = 2.0 * np.pi * phase
                commands[command["name"]] = [runs * np.sin(angle), runs * np.cos(angle)]
        return commands

    def bend(self) -> np.ndarray:
        """How far clocks move the targets of joints now."""
        moved = np.zeros(len(self.offset))
        for part in (part for part in self.about["actions"] if part["reference"]):
            clock, phase = self.clocks[part["reference"]], self.phases[part["reference"]]
            for place in range(part["start"], part["start"] + part["size"]):
                name = self.about["joint_names"][place]
                angle, ahead = clock["bend"].get(name, (0.0, 0.0))
                swing = ((phase + ahead) % 1.0 - clock["stance"]) / (1.0 - clock["stance"])
                moved[place] = angle * np.sin(np.pi * max(0.0, swing)) ** 2 * clock["on"]
        return moved

    def value(self, part: dict[str, Any], state: dict[str, Any]) -> np.ndarray:
        """An observation term's value now, as policy.json says: read, clipped and scaled."""
        reads, source = part["reads"], part["reads"]["source"]
        value: Any
        if source in ("joint_pos", "joint_vel"):
            value = state[source][[self.places[name] for name in reads["joints"]]]
        elif source == "projected_gravity":
            quat = dict(zip(self.about["base_quat"], state["base_quat"], strict=True))
            w, x, y, z = (quat[axis] for axis in "wxyz")
            value = [2.0 * (w * y - x * z), -2.0 * (w * x + y * z), 2.0 * (x * x + y * y) - 1.0]
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
            rate = (value - self.before.get(part["term"], value)) / self.period
            self.before[part["term"]] = value
            functions = {"cos": np.cos(value), "sin": np.sin(value), "rate": rate}
            value = np.concatenate([functions[name] for name in reads["functions"]])
        return np.asarray(np.clip(value, *bounds(part["clip"] or [None, None])) * part["scale"])


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
