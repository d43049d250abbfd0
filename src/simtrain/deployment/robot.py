"""A policy for a robot's program: one graph, from sensor values to actuator targets.

It is traced from the task's own commands, observations and actions, with the network between them.
They run in an environment of one row, whose fields are computed from a robot's sensors. The state
that they declare is an input and an output. A term that needs anything else is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from simtrain.algorithms.export import INPUT, OUTPUT, TOLERANCE, PolicyStep, to_onnx
from simtrain.config.tree import function_name
from simtrain.deployment.robot_env import MEMORY, RobotEnv, RobotTask
from simtrain.env.env import Env
from simtrain.errors import ConfigError, ExportError, flag

FILE, TARGETS = "robot.onnx", "targets"
NEXT = "next."
"""Prefix of outputs: ``next.x`` is the input ``memory.x`` of the next step."""
_UNKNOWN = (0.6, -1.3)  # two values of data that a robot does not read; nothing may depend on them
_CHANGE = 0.5  # of a sensor; without any effect it is not read
_STEPS = 6  # of the comparison with the file


@dataclass(frozen=True)
class RobotInputs:
    """Inputs of the graph, a row each, that a robot's program provides at every step.

    ``joint_pos`` and ``joint_vel`` are those of the `joints`. A floating base has ``base_pos`` and
    ``base_quat``, w first, in the world, and ``base_lin_vel`` and ``base_ang_vel`` in its own
    frame. ``contact`` is 1 or 0 for each of the sensors `contacts`. ``place_pos`` and
    ``place_quat`` are the poses of the `places` in the world. ``command.<name>`` are commands.
    ``<group>.<term>`` are the values of terms that are `given`, with information about each.
    """

    names: list[str]
    joints: list[str]
    contacts: list[str]
    places: list[str]
    given: dict[str, dict[str, Any]]


class RobotStep(nn.Module):
    """A control step of a robot: sensors and memory in; targets, actions and memory out."""

    def __init__(self, env: Env, network: PolicyStep) -> None:
        """Raises ConfigError for a term that uses data that a robot's program does not have."""
        super().__init__()
        self.network = network
        self.task = RobotTask(env, [*network.groups, *network.images])
        examples = self.task.examples()
        before = self._check(examples)
        self.sensors: dict[str, Tensor] = {}
        """Example inputs by name, ``(1, ...)``, of all sensors that values depend on."""
        self._constant: dict[str, Tensor] = {}
        for name, example in examples.items():
            changed = self._values(examples | {name: example + _CHANGE})
            unused = all(torch.equal(before[key], value) for key, value in changed.items())
            (self._constant if unused else self.sensors)[name] = example
        robot = RobotEnv(self.task, examples)
        states = zip(network.states, network.initial_states(1), strict=True)
        self.memory = {MEMORY + n: v.clone() for n, v in [*robot.rows.items(), *states]}
        """The memory at the start of an episode."""
        self.disturbances = self.task.disturbances()
        """Inputs that only a proof sets: noise, and gains and biases of servos."""
        self.inputs = self.sensors | self.memory | self.disturbances
        after = [name.replace(MEMORY, NEXT, 1) for name in self.memory]
        self.output_names = [TARGETS, OUTPUT, INPUT, *after]

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The outputs for the `inputs` in their order."""
        inputs = self._constant | dict(zip(self.inputs, values, strict=True))
        robot = RobotEnv(self.task, inputs)
        obs = robot.observe()
        states = [inputs[MEMORY + name] for name in self.network.states]
        outputs = self.network(*self.network.inputs(obs), *states)
        actions, *states = (outputs,) if isinstance(outputs, Tensor) else outputs
        targets = robot.act(actions)
        vector = torch.cat([obs[g] for g in self.network.groups] or [actions[:, :0]], dim=1)
        memory = [value.clone() for value in (*robot.rows.values(), *states)]
        return targets, actions.clone(), vector, *memory

    def _check(self, sensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The `_values`; ConfigError if one depends on data that sensors do not give."""
        one, other = (self._values(sensors, unknown) for unknown in _UNKNOWN)
        for name in [name for name, value in one.items() if not torch.equal(value, other[name])]:
            kind, *path = name.split(".")
            if kind != "observations":
                raise ConfigError(f"{name}: how a robot's program is to know it is not known")
            function = function_name(self.task.groups[path[0]][path[1]].func)
            way = 'write @read_as("given") above it if the robot\'s program gives it'
            text = f"{flag('env', *name.split('.'))}: how a robot reads {function} is not known"
            raise ConfigError(f"{text}; {way}")
        return one

    def _values(
        self, sensors: Mapping[str, Tensor], unknown: float = _UNKNOWN[0]
    ) -> dict[str, Tensor]:
        """All values at an episode's first step, from sensors: by term, targets, and state."""
        robot = RobotEnv(self.task, sensors, unknown)
        seen = robot.observe()
        values = {
            f"observations.{name}.{term}": seen[name].flatten(1)[:, place]
            for name, group in robot.groups.items()
            for term, place in group.slices.items()
        }
        return values | {"actions": robot.act(robot.actions.clone())} | robot.rows


def export_robot(step: RobotStep) -> tuple[bytes, RobotInputs]:
    """The graph as ONNX, and its inputs.

    Memory and disturbances are optional inputs: without them, an episode begins. ExportError if the
    file gives other targets than the task's own terms.
    """
    try:
        with torch.no_grad():
            program = torch.export.export(step, tuple(step.inputs.values()))
        model = to_onnx(program, list(step.inputs), step.output_names, {})
    except Exception as error:  # whatever comes of a term of a user's own
        why = str(error).strip().splitlines()[0]
        way = 'write @read_as("given") above a term that torch.export cannot trace'
        raise ConfigError(f"the task's terms cannot be part of {FILE}: {why}; {way}") from error
    live = _live(model.graph)
    outputs = {n for n in live if not n.startswith(NEXT) or n.replace(NEXT, MEMORY, 1) in live}
    graph, kept = model.graph, {"input": live, "initializer": live, "output": outputs}
    for values, names in ((getattr(graph, kind), names) for kind, names in kept.items()):
        for value in [value for value in values if value.name not in names]:
            values.remove(value)
    for node in [node for node in model.graph.node if live.isdisjoint(node.output)]:
        model.graph.node.remove(node)
    for name, value in (step.memory | step.disturbances).items():
        if name in live:
            model.graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), name))
    content = bytes(model.SerializeToString())
    _compare(step, content)
    task, used = step.task, [name for name in step.sensors if name in live]
    return content, RobotInputs(
        names=used,
        joints=[joint.name for joint in task.joints],
        contacts=task.contacts if "contact" in used else [],
        places=list(task.places) if {"place_pos", "place_quat"} & {*used} else [],
        given={name: facts for name, facts in task.given.items() if name in used},
    )


def _live(graph: onnx.GraphProto) -> set[str]:
    """Names of all values that targets and actions depend on, also through memory."""
    makers = {output: node for node in graph.node for output in node.output}
    live: set[str] = set()
    wanted = [TARGETS, OUTPUT, INPUT]
    while wanted:
        name = wanted.pop()
        if name not in live:
            live.add(name)
            wanted += makers[name].input if name in makers else []
            wanted += [name.replace(MEMORY, NEXT, 1)] if name.startswith(MEMORY) else []
    return live


def _compare(step: RobotStep, content: bytes) -> None:
    """Raise ExportError unless a file's targets are those of the task's terms."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of inputs with defaults
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    generator, own = torch.Generator().manual_seed(0), dict(step.memory)
    memory: dict[str, np.ndarray] = {}
    for _ in range(_STEPS):
        sensors = {
            name: value + 0.1 * torch.randn(value.shape, generator=generator)
            for name, value in step.sensors.items()
        }
        with torch.no_grad():
            expected = step(*(step.inputs | sensors | own).values())
        own = dict(zip(own, expected[3:], strict=True))
        feed = {name: sensors[name].numpy() for name in names} | memory
        results = dict(zip(outputs, session.run(None, feed), strict=True))
        memory = {n.replace(NEXT, MEMORY, 1): v for n, v in results.items() if n.startswith(NEXT)}
        targets = expected[0].numpy()
        error = np.abs(results[TARGETS] - targets) / np.maximum(1.0, np.abs(targets))
        if not float(error.max()) < 10.0 * TOLERANCE:
            text = f"{FILE} differs from the task's terms by {float(error.max()):.1e}"
            raise ExportError(f"{text}; nothing was written")
