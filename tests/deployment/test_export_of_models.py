"""Recurrent and convolutional policies, and other distributions, act the same once exported."""

from __future__ import annotations

import json
import runpy
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from random_policy import random_policy
from tiny_task import at_step, steps_lived, tiny_model, tiny_task
from torch import Tensor

import simtrain.deployment
from simtrain import ActorCfg, CnnCfg, ObservationTermCfg, TaskCfg, TerminationTermCfg, mdp
from simtrain.algorithms.cfg import PpoCfg
from simtrain.deployment.export import export_policy
from simtrain.env.env import Env
from simtrain.env.reading import read_as
from simtrain.sim import EngineCfg

POSITION = ObservationTermCfg(mdp.joint_pos, joints="left_slide")
IMAGES = ("picture", "other")
MODELS = {
    # Few, for the export takes seconds: each distribution goes with one of the networks.
    "gru": {"model": "gru", "rnn_hidden_dim": 6, "rnn_num_layers": 2, "distribution": "beta"},
    "lstm": {"model": "lstm", "rnn_hidden_dim": 6, "distribution": "heteroscedastic"},
    "cnn": {"model": "cnn", "obs_groups": ("actor", *IMAGES), "cnn": CnnCfg((2, 3))},
    "only images": {"model": "cnn", "obs_groups": IMAGES, "cnn": CnnCfg((2,))},
}

SLOW = "only images"  # an interface without positions; `cnn` has both
SOME_SLOW = [pytest.param(n, marks=pytest.mark.slow) if n == SLOW else n for n in MODELS]


@read_as("given")
def picture(env: Env, rows: int = 5) -> Tensor:
    """Numbers that change with steps and positions. Shape: ``(num_envs, 2, rows, 6)``."""
    number = steps_lived(env) + 10.0 * env.bind("qpos")[:, 7:8]
    places = torch.arange(2.0 * rows * 6).view(1, 2, rows, 6)
    return (number.view(-1, 1, 1, 1) * places).sin()


def _task(**actor) -> TaskCfg:
    return tiny_task(
        observations={
            "actor": {"position": POSITION, "lived": ObservationTermCfg(steps_lived)},
            "picture": {"all": ObservationTermCfg(picture, history_length=2)},
            "other": {"all": ObservationTermCfg(picture, rows=4)},
        },
        terminations={
            "some": TerminationTermCfg(at_step([5, 9, 40])),
            "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
        },
        episode_length_s=2.0,
        ppo=PpoCfg(ActorCfg(hidden_dims=(8,), **actor)),
    )


@pytest.mark.parametrize("model", SOME_SLOW)
def test_files_act_as_the_policy_for_200_steps_with_resets(model, tmp_path) -> None:
    saved = random_policy(_task(**MODELS[model]))
    # One for all: terminations are of three environments.
    saved.config.env.terminations.pop("some")
    formats = ("onnx", "pt2", "torchscript")
    assert export_policy(saved, tmp_path, formats).difference < 1e-5
    told = json.loads((tmp_path / "policy.json").read_text())
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        scripted = torch.jit.load(tmp_path / "policy.pt")
    modules = (scripted, torch.export.load(tmp_path / "policy.pt2").module())

    env = Env(_task(**MODELS[model]), 3, EngineCfg(threads=1))
    policy = saved.policy(env.get_observations(), env.num_actions)
    states = {n: np.zeros((k, 3, m), np.float32) for n, (k, m) in told["state_inputs"].items()}
    fresh, episodes, largest = torch.ones(3, dtype=torch.bool), 0, 0.0
    for _ in range(200):
        obs = env.get_observations()
        actions = policy(obs, fresh).numpy()
        for state in states.values():
            state[:, fresh] = 0.0
        inputs = {group: obs[group].numpy() for group in told["image_inputs"]} | states
        if told["observation_size"]:
            inputs = {told["input"]: obs["actor"].numpy(), **inputs}
        assert [value.name for value in session.get_inputs()] == list(inputs)
        exported, *after = session.run(None, inputs)
        for module in modules:
            with torch.inference_mode():
                outputs = module(*map(torch.from_numpy, inputs.values()))
            outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
            for value, other in zip((exported, *after), outputs, strict=True):
                np.testing.assert_allclose(other.numpy(), value, atol=1e-5)
        np.testing.assert_allclose(exported, actions, atol=1e-5)
        states = dict(zip(states, after, strict=True))
        largest = max(largest, float(np.abs(np.diff(actions, axis=0)).max()))
        _, _, fresh, _ = env.step(torch.from_numpy(actions))
        episodes += int(fresh.sum())
    assert episodes > 50
    assert largest > 1e-3  # it depends on what is seen

    if model == "lstm":
        assert told["state_inputs"] == {"h_in": [1, 6], "c_in": [1, 6]}
        assert told["state_outputs"] == ["h_out", "c_out"]
    if model == "cnn":
        assert told["image_inputs"] == {"picture": [4, 5, 6], "other": [2, 4, 6]}
        assert (told["observation_size"], told["state_inputs"]) == (2, {})
        parts = [(part["group"], part["start"], part["shape"]) for part in told["observations"]]
        vectors = [("actor", 0, None), ("actor", 1, None)]
        assert parts == [*vectors, ("picture", 0, [4, 5, 6]), ("other", 0, [2, 4, 6])]


def test_a_joint_that_is_held_behind_a_gear_stays_where_it_is(monkeypatch):
    spec = tiny_model()
    spec.actuator("turn").gear[0] = -3.0
    model, folder = spec.compile(), Path(simtrain.deployment.__path__[0])
    monkeypatch.syspath_prepend(str(folder))
    program = runpy.run_path(str(folder / "mujoco_robot.py"))
    held = {"left_hinge": 0.2}
    about = {"commands": [], "held_joint_pos": held, "base": None, "keyframe": "bent"}
    about["actuators"] = [0]
    policy = SimpleNamespace(about=about, period=model.opt.timestep, joints=["left_slide"])
    robot = program["MujocoRobot"](policy, model)
    robot.write_command(np.array([0.5]))
    assert robot.data.ctrl == pytest.approx([0.5, -0.6, 0.0, 0.0])
