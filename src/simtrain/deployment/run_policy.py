"""Runs an exported policy on a robot: `run` needs your two functions read_state and write_command.

Needs numpy and onnxruntime. robot.onnx contains observations, network, clocks, motions and targets.
Its inputs are listed in policy.json, under "robot". `read_state()` returns a dict with them:

- ``joint_pos`` and ``joint_vel``, rad and rad/s, or m and m/s, in the order of `Policy.joints`;
- for a floating base: ``base_quat``, in the order of "base_quat" in policy.json, ``base_pos``, m,
  and in the frame of the base ``base_lin_vel``, m/s, and ``base_ang_vel``, a gyroscope's, rad/s;
- ``contact``, by the names of sensors: whether they touch anything;
- ``places``, by the names of objects and so on: position, m, and quaternion, in the world;
- ``commands`` by name, such as {"velocity": [0.5, 0, 0]};
- values that are "given", such as images, under the name of the term.

Values that are not inputs can be left out. `write_command(targets)` sends a target to each of the
"actuators" in policy.json; the targets of joints have the order of "joint_names". See
mujoco_robot.py.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


class Policy:
    """The policy in a folder, and its memory."""

    def __init__(self, folder: Path) -> None:
        self.about: dict[str, Any] = json.loads((folder / "policy.json").read_text())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        graph = folder / self.about["robot"]["file"]
        self.graph = onnxruntime.InferenceSession(graph, options)
        self.outputs: list[str] = [output.name for output in self.graph.get_outputs()]
        self.period: float = self.about["control_period"]
        self.joints: list[str] = self.about["robot"]["joints"]
        self.reset()

    def reset(self, memory: dict[str, np.ndarray] | None = None) -> None:
        """Begin a new episode; `memory` gives values, by name, that replace the usual ones."""
        self.memory = {f"memory.{name}": value for name, value in (memory or {}).items()}

    def start(self, command: str, name: str) -> None:
        """Begin a new episode with one of the "starts" of a command, such as a motion."""
        runs = next(c["runs"] for c in self.about["commands"] if c["name"] == command)
        memory = runs["starts"][name]["memory"].items()
        self.reset({f"commands.{command}.{key}": np.array(value) for key, value in memory})

    def step(self, state: dict[str, Any]) -> np.ndarray:
        """The targets for this state; call it every `period` seconds."""
        values = self.graph.run(None, self.inputs(state) | self.memory)
        self.seen = dict(zip(self.outputs, values, strict=True))
        after = ((n, value) for n, value in self.seen.items() if n.startswith("next."))
        self.memory = {name.replace("next.", "memory.", 1): value for name, value in after}
        return np.asarray(self.seen["targets"][0])

    def inputs(self, state: dict[str, Any]) -> dict[str, np.ndarray]:
        """The inputs of the graph for this state, by name; ValueError for a NaN."""
        names = self.about["robot"]["names"]
        values = {name: np.asarray(self.read(name, state), np.float32)[None] for name in names}
        if lacking := [name for name, value in values.items() if np.isnan(value).any()]:
            raise ValueError(f"the robot's {lacking[0]} is not a number")  # else it counts as 0
        return values

    def read(self, name: str, state: dict[str, Any]) -> Any:
        """The value of an input in this state."""
        kind, _, rest = name.partition(".")
        if name == "base_quat":
            return self.wxyz(state["base_quat"])
        if name == "contact":
            return [state["contact"][sensor] for sensor in self.about["robot"]["contacts"]]
        if name in ("place_pos", "place_quat"):
            poses = [state["places"][place] for place in self.about["robot"]["places"]]
            return [p if name == "place_pos" else self.wxyz(quat) for p, quat in poses]
        return state["commands"][rest] if kind == "command" else state[rest or name]

    def wxyz(self, quat: np.ndarray) -> list[float]:
        """A quaternion of a robot's state with w first."""
        named = dict(zip(self.about["base_quat"], quat, strict=True))
        return [named[axis] for axis in "wxyz"]


def run(
    policy: Policy,
    read_state: Callable[[], dict[str, Any]],
    write_command: Callable[[np.ndarray], None],
    seconds: float,
    blend_seconds: float = 0.0,
) -> None:
    """Run a policy on a robot for some seconds, with its control period.

    Before, for `blend_seconds`, the policy stays at its start, such as the first frame of a motion,
    and the targets move from those of the home pose, "action_offset", to those of the policy.
    """
    start, blends, about = policy.memory, round(blend_seconds / policy.period), policy.about
    servos = [stiffness for stiffness in about["joint_stiffness"] if stiffness > 0.0]
    if blends and len(servos) < len(about["actuators"]):
        raise ValueError("only targets of position servos can be blended")
    home = np.array(about["action_offset"])
    due = time.monotonic()
    for step in range(-blends, round(seconds / policy.period)):
        targets = policy.step(read_state())
        if step < 0:
            policy.memory = start
            targets = home + (1.0 + step / blends) * (targets - home)
        write_command(targets)
        due += policy.period
        time.sleep(max(0.0, due - time.monotonic()))
