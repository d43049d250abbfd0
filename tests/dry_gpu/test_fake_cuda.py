"""Every shipped task is trained on ``cuda:1``, and some are evaluated, without waiting for it.

And how many kernels a GPU launches for a step of each, besides those of physics. A step of a few
thousand environments takes as long as its launches. A task or a term that needs more of them shows
here by part and term: raise its bound if that is worth it.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import mujoco
import numpy as np
import pytest
import tiny_task
import torch
from fake_cuda import (
    DEVICE,
    LaunchCounter,
    NoHostTraffic,
    fake_cuda,
    fake_env,
    fake_ppo,
    tensors_elsewhere,
)
from machine import everything

from simtrain import (
    EventTermCfg,
    GaussianNoiseCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
)
from simtrain.algorithms.rollout import StagingBuffer
from simtrain.config.tasks import default_config, discover
from simtrain.env.cfg import TaskCfg
from simtrain.env.model import check_task
from simtrain.sim import EngineCfg
from simtrain.training.context import Member, RunContext, SharedContext
from simtrain.training.evaluator import Evaluator
from simtrain.training.features import population as population_module
from simtrain.training.features.population import Population
from simtrain.training.graphs import collect_transition
from simtrain.training.loop import Trainer

TASKS = sorted(discover().tasks)
PARTS = (
    *("actions", "failures", "terminations", "rewards", "metrics", "episodes", "curricula"),
    *("reset events", "resets", "commands", "interval events", "observations", "step"),
)
BOUNDS = {
    "cartpole-balance": (2, 8, 6, 26, 5, 7, 0, 13, 6, 0, 0, 7, 5),
    "cartpole-swingup": (2, 8, 6, 26, 5, 7, 0, 6, 6, 0, 0, 7, 5),
    "g1-tracking": (5, 8, 39, 74, 16, 7, 4, 60, 8, 75, 10, 33, 14),
    "g1-tracking-no-state-estimation": (5, 8, 39, 74, 16, 7, 4, 60, 10, 75, 10, 57, 60),
    "g1-velocity-flat": (6, 8, 8, 74, 5, 7, 15, 94, 12, 62, 17, 58, 51),
    "g1-velocity-rough": (6, 8, 30, 104, 5, 7, 38, 102, 14, 62, 17, 108, 58),
    "go1-velocity-flat": (5, 8, 7, 60, 5, 7, 11, 94, 12, 62, 10, 54, 51),
    "go1-velocity-rough": (5, 8, 14, 75, 5, 7, 38, 102, 14, 62, 10, 104, 58),
    "go1-velocity-rough-blind": (5, 8, 14, 75, 5, 7, 38, 102, 15, 62, 10, 131, 58),
    "yam-lift-cube": (7, 8, 6, 55, 16, 7, 0, 46, 9, 8, 0, 22, 5),
    "yam-lift-cube-depth": (7, 8, 6, 55, 16, 7, 0, 46, 9, 8, 0, 48, 5),
}
"""By task, the most kernels of each of `PARTS`; those of the Control Suite have none."""


def _cfg(task: str) -> TaskCfg:
    cfg = discover().find(task).configuration()
    # PyTorch cannot move the weights of a GRU or a CNN to a device of fake tensors.
    if cfg.ppo.actor.model == "cnn":  # the picture is still taken
        cfg.ppo.actor.obs_groups = ("actor",)
    cfg.ppo.actor.model = cfg.ppo.critic.model = "mlp"
    return cfg


@pytest.mark.parametrize(("task", "plain"), [*((task, False) for task in TASKS), (TASKS[0], True)])
def test_training_stays_on_the_gpu_and_a_step_launches_no_more_kernels(task, plain):
    cfg = _cfg(task)
    if plain:
        cfg.ppo.actor.obs_normalization = cfg.ppo.critic.obs_normalization = False
        cfg.ppo.actor.std_type = "log"
    with fake_cuda():
        env = fake_env(cfg, metrics=True)
        ppo = fake_ppo(cfg.ppo, env)
        staging = StagingBuffer(ppo.storage)
        with torch.inference_mode(), NoHostTraffic():
            ppo.begin_rollout()
            for _ in range(2):
                collect_transition(env, ppo, staging.transition)
                staging.store()
            ppo.compute_returns(env.get_observations())
        with NoHostTraffic():
            ppo.learn_mini_batch(0)
        assert tensors_elsewhere(env, "env") + tensors_elsewhere(ppo, "ppo") == []
        actions = torch.zeros(env.num_envs, env.num_actions, device=DEVICE)
        with torch.inference_mode(), LaunchCounter() as counter:
            env.step_in_place(actions)
    if not task.startswith("dmc-"):
        bounds = dict(zip(PARTS, BOUNDS[task], strict=True))
        grown = [
            f"{part}: {count} kernels, at most {bounds.get(part, 0)} before; "
            + ", ".join(f"{term} {n}" for (of, term), n in counter.launches.items() if of == part)
            for part, count in counter.by_part().items()
            if count > bounds.get(part, 0)
        ]
        assert not grown, "\n".join(grown)


def test_kernels_are_counted_and_views_are_not():
    with fake_cuda():
        x = torch.zeros(4, 3, device=DEVICE)
        with LaunchCounter() as counter:
            x[:, :2].T.unsqueeze(0)
            torch.empty_like(x)
            assert counter.launches.total() == 0
            x.add_(1.0)
            torch.stack((x, x)).square().sum(dim=1)
        assert counter.by_part() == {"other": 4}


@pytest.mark.parametrize("task", ["cartpole-balance", "g1-tracking", "go1-velocity-rough"])
def test_evaluation_stays_on_the_gpu(task):
    cfg = _cfg(task)
    cfg.episode_length_s = 2 * cfg.timestep * cfg.decimation
    with fake_cuda():
        evaluator = Evaluator(cfg, 4, engine=EngineCfg("warp", DEVICE))
        policy = fake_ppo(cfg.ppo, evaluator.env).actor.state_dict()
        # It reads the episodes when all have ended, but not of an evaluation that was stopped.
        evaluator(cfg.ppo.actor, policy, stop=lambda: True)
        with NoHostTraffic():
            assert evaluator(cfg.ppo.actor, policy, stop=lambda: True) is None
        assert tensors_elsewhere(evaluator, "evaluator") == []


def test_all_of_a_robots_hardware_stays_on_the_gpu(tmp_path, monkeypatch):
    cfg = everything(tmp_path)
    # TorchScript cannot be read into fake tensors: a layer like the one in the file replaces it.
    monkeypatch.setattr(
        torch.jit, "load", lambda path, map_location: torch.nn.Linear(4, 1, device=map_location)
    )
    with fake_cuda():
        env = fake_env(cfg)
        actions = torch.zeros(env.num_envs, env.num_actions, device=DEVICE)
        with torch.inference_mode(), NoHostTraffic():
            for _ in range(2):
                env.step(actions)
        assert tensors_elsewhere(env, "env") == []


@pytest.mark.parametrize("mutation", ["parameters", "architecture"])
def test_a_member_of_a_population_changes_on_the_gpu(mutation, monkeypatch):
    # There is no random generator of a GPU to put aside.
    monkeypatch.setattr(population_module, "forked_randomness", lambda seed, device: nullcontext())
    task = "cartpole-swingup"
    config = replace(default_config(task), population=2)
    with fake_cuda():
        env = fake_env(config.env)
        ppo = fake_ppo(config.ppo, env)
        trainer = Trainer(env, ppo, ppo.rank, config=config)
        shared, member = SharedContext(Path(), ("cuda:0",)), Member(1, None)
        context = RunContext(config, ppo.rank, None, lambda: False, shared, member)
        population = Population(context, trainer, None, None, lambda c: fake_ppo(c.ppo, env))
        values = {**population.state()["values"], "ppo.gamma": 0.9}
        population.set_state({**population.state(), "values": values})
        population._mutate(mutation, np.random.default_rng(0))
        changed = trainer.ppo
        assert (changed is not ppo) == (mutation == "architecture")
        with torch.inference_mode(), NoHostTraffic():
            changed.begin_rollout()
            collect_transition(env, changed, changed.storage.transitions[0])
            changed.compute_returns(env.get_observations())
        with NoHostTraffic():
            changed.learn_mini_batch(0)
        assert changed.gamma == 0.9
        assert tensors_elsewhere(changed, "ppo") == []


TOUCH = '<sensor><contact name="touch" geom2="box" data="found force" reduce="netforce"/>'
MODEL = tiny_task.MODEL.replace("<sensor>", TOUCH).replace(
    "<body name", '<body simple="false" name'
)
FIELDS = {
    "mass": {"field": ("body_mass", "body_inertia"), "bodies": ".*_cart|box", "ranges": (0.9, 1.1)},
    "pose": {"field": "body_quat", "bodies": "box", "ranges": {"yaw": (0, 1)}, "operation": "add"},
    "friction": {
        "field": "geom_friction",
        "geoms": ".*",
        "ranges": {"sliding": (0.1, 1), "rolling": (0, 1)},
        "operation": "abs",
        "shared": True,
    },
    "armature": {
        "field": "dof_armature",
        "joints": ".*_hinge",
        "ranges": (0.1, 0.2),
        "operation": "abs",
        "distribution": "log_uniform",
    },
    "gravity": {
        "field": "opt.gravity",
        "ranges": {"x": (-1, 1), "z": (0, 1)},
        "operation": "add",
        "distribution": "gaussian",
    },
}


def _force(env, mask):
    env.sim.write("xfrc_applied", 1.0, mask)


@pytest.mark.parametrize("mode", ["reset", "interval", "step"])
def test_what_is_drawn_and_sensed_stays_on_the_gpu(mode):
    draw = partial(EventTermCfg, mode=mode)
    events = {name: draw(mdp.randomize_field, params=params) for name, params in FIELDS.items()}
    inertia = {"bodies": "box|.*_cart", "alpha": (-0.1, 0.1), "s": (-0.1, 0.1), "t": (0.0, 0.1)}
    force = {"bodies": "box", "force_range": {"x": (-1, 1)}, "duration_s": (0.0, 0.1)}
    events["inertia"] = draw(mdp.randomize_pseudo_inertia, params=inertia)
    events["force"] = draw(mdp.apply_body_force, params=force)
    events["wind"] = EventTermCfg(_force, "step", after_steps=2)
    noise = {"noise": UniformNoiseCfg(), "bias": GaussianNoiseCfg()}
    observations = {
        "biased": ObservationTermCfg(mdp.joint_pos, joints=".*_slide", history_length=2, **noise),
        "history": ObservationTermCfg(mdp.foot_contact_history, sensors="touch"),
        "air": ObservationTermCfg(mdp.foot_air_time, sensors="touch", substeps=True),
        "grid": ObservationTermCfg(mdp.ray_grid, sites="left_tip", geom_groups=(0, 2)),
        "ring": ObservationTermCfg(mdp.ray_ring, sites="left_tip", alignment="site"),
    }
    image = {"image": ObservationTermCfg(mdp.ray_pinhole, sites="left_tip")}
    blow = TerminationTermCfg(mdp.illegal_contact, sensors="touch", threshold=1.0, substeps=True)
    cfg = tiny_task.tiny_task(
        model=lambda: mujoco.MjSpec.from_string(MODEL),
        events=events,
        rewards={"alive": RewardTermCfg(mdp.is_alive, weight=1.0)},
        observations={"actor": observations, "image": image},
        terminations={"blow": blow},
    )
    check_task(cfg)
    with fake_cuda():
        env = fake_env(cfg)
        with torch.inference_mode(), NoHostTraffic():
            for _ in range(2):
                obs = env.step(torch.zeros(env.num_envs, env.num_actions, device=DEVICE))[0]
        assert obs["image"].shape == (16, 1, 24, 32)
        assert tensors_elsewhere(env, "env") == []
