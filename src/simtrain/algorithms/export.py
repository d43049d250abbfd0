"""A policy as ONNX or for PyTorch, with its normalization; each compared with the policy itself.

Inputs are, in this order: ``obs``, float32 ``(batch, size)``, the flat observations side by side;
each group of images, under its name; and the hidden states of a recurrent network, ``(layers,
batch, units)``, zero at the start of an episode. Outputs are actions and the next hidden states.
"""

import io
import logging
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from rsl_rl.models import CNNModel
from tensordict import TensorDict
from torch import Tensor, nn

from simtrain.algorithms.networks import Policy
from simtrain.errors import ExportError

TOLERANCE = 1e-5
"""Largest difference of an action, relative to the action where that is larger than 1."""
STEPS, ROWS = 200, 4
"""Size of the comparison: number of steps, and of policies side by side."""
METADATA = "policy.json"  # the property that has all metadata as JSON
INPUT, OUTPUT = "obs", "actions"
Run = Callable[[list[np.ndarray]], list[np.ndarray]]  # inputs to outputs


class PolicyStep(nn.Module):
    """A step of a policy, by rsl_rl's module for ONNX: tensors in, tensors out."""

    def __init__(self, policy: Policy, obs: TensorDict) -> None:
        """`obs` are any observations."""
        super().__init__()
        actor = policy.actor
        self._module: nn.Module = actor.as_onnx(verbose=False).eval()
        self.groups: list[str] = list(actor.obs_groups)
        self.images: list[str] = actor.obs_groups_2d if isinstance(actor, CNNModel) else []
        names = [*self._module.input_names]
        self.input_names = names if self.groups else names[1:]
        self.output_names = [*self._module.output_names]
        given = len(self.images) + bool(self.groups)
        dummies = dict(zip(names, self._module.get_dummy_inputs(), strict=True))
        self.states = {name: list(dummies[name].shape) for name in self.input_names[given:]}
        """The shapes of hidden states, ``(layers, batch, units)``, by the inputs' names."""
        self.example = [*self.inputs(obs[:1].expand(2)), *self.initial_states(2)]
        """Inputs of two rows: torch.export takes the sizes 0 and 1 for constants."""
        self.eval()

    def inputs(self, obs: TensorDict) -> list[Tensor]:
        """The inputs for some observations, but for hidden states."""
        vector = [torch.cat([obs[group] for group in self.groups], dim=1)] if self.groups else []
        return vector + [obs[group] for group in self.images]

    def initial_states(self, rows: int) -> list[Tensor]:
        """The hidden states at the start of `rows` episodes."""
        return [torch.zeros(layers, rows, units) for layers, _, units in self.states.values()]

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The step as a graph of PyTorch's operators, for any number of rows."""
        batch = torch.export.Dim("batch")
        shapes = tuple({1 if name in self.states else 0: batch} for name in self.input_names)
        program = torch.export.export(self, tuple(self.example), dynamic_shapes=(shapes,))
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # with paths of this machine
        return program

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Actions, and the hidden states of the next step."""
        if not self.groups:  # rsl_rl's module wants an empty vector
            inputs = (inputs[0].flatten(1)[:, :0], *inputs)
        outputs = self._module(*inputs)
        if isinstance(outputs, Tensor):
            return outputs
        return tuple(part for part in outputs if part is not None)


def export(
    policy: Policy, step: PolicyStep, kind: str, properties: dict[str, str], obs: TensorDict
) -> tuple[bytes, float]:
    """A file's content in one of `FORMATS`, and the largest difference to the policy's actions.

    The file contains `properties`; for PyTorch, only `METADATA`. The comparison is on `obs`,
    ``(steps, rows)``, with episodes that begin at random steps: ExportError if actions differ.
    """
    content = FORMATS[kind].convert(policy, step, properties)
    difference = _difference(policy, step, FORMATS[kind].load(content), obs)
    if not difference < TOLERANCE:
        raise ExportError(
            f"the {kind} export differs from the policy by {difference:.1e} "
            f"(allowed: {TOLERANCE:.0e}); nothing was written"
        )
    return content, difference


def random_observations(policy: Policy, obs: TensorDict) -> TensorDict:
    """Always the same ``{group: (STEPS, ROWS, *shape)}``, spread as in training, else normal."""
    generator = torch.Generator().manual_seed(0)
    values = {
        group: torch.randn(STEPS, ROWS, *value.shape[1:], generator=generator)
        for group, value in obs.items()
    }
    actor = policy.actor
    if actor.obs_normalization:
        sizes = [values[group].shape[-1] for group in actor.obs_groups]
        moments = (actor.obs_normalizer.mean, actor.obs_normalizer.std)
        means, stds = (moment.split(sizes) for moment in moments)
        for group, mean, std in zip(actor.obs_groups, means, stds, strict=True):
            values[group].mul_(std).add_(mean)
    return TensorDict(values, batch_size=[STEPS, ROWS])


def _difference(policy: Policy, step: PolicyStep, run: Run, obs: TensorDict) -> float:
    """The largest difference of actions along `obs`."""
    generator = torch.Generator().manual_seed(1)
    worst, states = 0.0, step.initial_states(obs.shape[1])
    for number, now in enumerate(obs):
        fresh = torch.rand(len(now), generator=generator) < (0.05 if number else 1.0)
        for state in states:
            state[:, fresh] = 0.0
        outputs = run([tensor.numpy() for tensor in (*step.inputs(now), *states)])
        actions, expected = outputs[0], policy(now, fresh).numpy()
        states = [torch.from_numpy(state.copy()) for state in outputs[1:]]
        scale = np.maximum(1.0, np.abs(expected))
        worst = float(np.fmax(worst, (np.abs(actions - expected) / scale).max()))
        if not np.isfinite(actions).all():
            return np.inf
    return worst


def to_onnx(
    program: torch.export.ExportedProgram,
    inputs: list[str],
    outputs: list[str],
    properties: dict[str, str],
) -> onnx.ModelProto:
    """A program as a model of ONNX that carries `properties`, its inputs and outputs named."""
    # It warns of packages that a policy has no use for, and of its own ways.
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        converted = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=inputs, output_names=outputs
        )
    assert converted is not None
    model: onnx.ModelProto = converted.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # stack traces of the exporter, with paths of this machine
    onnx.helper.set_model_props(model, properties)
    return model


def _to_onnx(policy: Policy, step: PolicyStep, properties: dict[str, str]) -> bytes:
    model = to_onnx(step.program, step.input_names, step.output_names, properties)
    return bytes(model.SerializeToString())


def _load_onnx(content: bytes) -> Run:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def _to_pt2(policy: Policy, step: PolicyStep, properties: dict[str, str]) -> bytes:
    file = io.BytesIO()
    torch.export.save(step.program, file, extra_files={METADATA: properties[METADATA]})
    return file.getvalue()


def _load_pt2(content: bytes) -> Run:
    return _run(torch.export.load(io.BytesIO(content)).module())


def _to_torchscript(policy: Policy, step: PolicyStep, properties: dict[str, str]) -> bytes:
    file = io.BytesIO()
    # It warns that it is deprecated, and of sizes that a trace takes for constants: the network's.
    with warnings.catch_warnings(action="ignore"), torch.inference_mode():
        if step.input_names == [INPUT]:
            module = torch.jit.script(policy.actor.as_jit().eval())
        else:
            module = torch.jit.trace(step, tuple(step.example))
        torch.jit.save(module, file, _extra_files={METADATA: properties[METADATA]})
    return file.getvalue()


def _load_torchscript(content: bytes) -> Run:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return _run(torch.jit.load(io.BytesIO(content)))


def _run(module: nn.Module) -> Run:
    @torch.inference_mode()
    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        outputs = module(*map(torch.from_numpy, inputs))
        return [o.numpy() for o in ([outputs] if isinstance(outputs, Tensor) else outputs)]

    return run


class Format(NamedTuple):
    """A format of exported policies: its file, how to make and how to load the content."""

    file: str
    convert: Callable[[Policy, PolicyStep, dict[str, str]], bytes]
    load: Callable[[bytes], Run]


FORMATS = {
    "onnx": Format("policy.onnx", _to_onnx, _load_onnx),
    "pt2": Format("policy.pt2", _to_pt2, _load_pt2),
    "torchscript": Format("policy.pt", _to_torchscript, _load_torchscript),
}
