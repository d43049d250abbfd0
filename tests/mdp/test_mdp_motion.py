"""Following motions, against an independent computation with SciPy's rotations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from motions import write_clip
from scipy.spatial.transform import Rotation
from walker import HINGES, walker_model, walker_task

from simtrain import (
    CommandTermCfg,
    CurriculumTermCfg,
    JointPositionActionCfg,
    MetricTermCfg,
    ObservationTermCfg,
    RewardTermCfg,
    mdp,
)
from simtrain import TerminationTermCfg as Termination
from simtrain.env.env import Env
from simtrain.env.model import check_task, evaluation_task
from simtrain.errors import ConfigError
from simtrain.motion.clip import MotionClip
from simtrain.sim import EngineCfg
from simtrain.training.evaluator import Evaluator

MODEL = walker_model().compile()
BODIES = ("base", "left_leg", "right_leg")
REWARDS = {
    "anchor_pos": mdp.motion_global_anchor_position_error_exp,
    "anchor_ori": mdp.motion_global_anchor_orientation_error_exp,
    "body_pos": mdp.motion_relative_body_position_error_exp,
    "body_ori": mdp.motion_relative_body_orientation_error_exp,
    "body_lin_vel": mdp.motion_global_body_linear_velocity_error_exp,
    "body_ang_vel": mdp.motion_global_body_angular_velocity_error_exp,
}
METRICS = {"mpkpe": mdp.mpkpe, "r_mpkpe": mdp.r_mpkpe, "joint_vel_error": mdp.joint_vel_error}
SEEN = (
    mdp.motion_anchor_pos_b,
    mdp.motion_anchor_ori_b,
    mdp.robot_body_pos_b,
    mdp.robot_body_ori_b,
)
OF_ENDS = {"ee_pos_error": mdp.ee_pos_error, "ee_ori_error": mdp.ee_ori_error}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("motions")
    return tuple(str(write_clip(folder / f"{i}.npz", MODEL, 60 + 50 * i, i)) for i in range(2))


def _task(files, **params):
    motion, ends = {"command": "motion"}, {"command": "motion", "bodies": ".*_leg"}
    params = {"files": files, "bodies": BODIES, "anchor": "base", **params}
    return walker_task(
        actions={"joint_pos": JointPositionActionCfg(HINGES, reference="motion")},
        commands={"motion": CommandTermCfg(mdp.MotionCommand, (1e6, 1e6), **params)},
        observations={"actor": {f.__name__: ObservationTermCfg(f, **motion) for f in SEEN}},
        rewards={n: RewardTermCfg(func, 1.0, std=0.8, **motion) for n, func in REWARDS.items()},
        terminations={
            "ended": Termination(mdp.motion_ended, time_out=True, **motion),
            "height": Termination(mdp.bad_anchor_pos_z_only, threshold=0.25, **motion),
            "lean": Termination(mdp.bad_anchor_ori, threshold=0.3, **motion),
            "ends": Termination(mdp.bad_motion_body_pos_z_only, threshold=0.2, **ends),
        },
        metrics={n: MetricTermCfg(func, **motion) for n, func in METRICS.items()}
        | {n: MetricTermCfg(func, **ends) for n, func in OF_ENDS.items()},
    )


def _env(files, num_envs=6, engine="mujoco", **params):
    return Env(_task(files, **params), num_envs, EngineCfg(engine), metrics=True)


def _frame(env):
    return env.commands.terms["motion"]._frame


@pytest.mark.parametrize("engine", ["mujoco", "warp"])
def test_all_terms_are_those_of_an_independent_computation(files, engine, fast_compilation):
    env = _env(files, 16, engine)
    model, motion = env.model, env.commands.terms["motion"]
    rng, frames = np.random.default_rng(3), torch.arange(16) * 9 + 3
    clips = [MotionClip.load(Path(file), model) for file in files]
    _frame(env).copy_(frames)
    qpos = np.tile(model.key("stand").qpos, (16, 1)) + rng.normal(0, 0.3, (16, model.nq))
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    qvel = rng.normal(0, 1, (16, model.nv))
    env.sim.write("qpos", torch.tensor(qpos))
    env.sim.write("qvel", torch.tensor(qvel))
    env.sim.forward()
    _, dones = env.rewards_and_dones(None)
    seen = env.observations.compute()["actor"].numpy()
    data = mujoco.MjData(model)
    for i, frame in enumerate(frames.tolist()):
        clip, k = (clips[0], frame) if frame < 60 else (clips[1], frame - 60)
        data.qpos[:], data.qvel[:] = qpos[i], qvel[i]
        mujoco.mj_forward(model, data)
        place, turn = data.xpos[1:], Rotation.from_quat(data.xquat[1:], scalar_first=True)
        goal_turn = Rotation.from_quat(clip.body_quat_w[k], scalar_first=True)
        goal = clip.body_pos_w[k]
        twist = np.zeros((3, 6))
        for body in range(3):
            kind = mujoco.mjtObj.mjOBJ_XBODY
            mujoco.mj_objectVelocity(model, data, kind, body + 1, twist[body], 0)
        heading = (turn[0] * goal_turn[0].inv()).as_matrix()
        heading = Rotation.from_euler("z", np.arctan2(heading[1, 0], heading[0, 0]))
        anchor = np.array([*place[0, :2], goal[0, 2]])
        target, target_turn = anchor + heading.apply(goal - goal[0]), heading * goal_turn

        def kernel(squares):
            return np.exp(-np.mean(squares) / 0.8**2)

        offset = target - place
        expected = {
            "anchor_pos": kernel(np.sum((goal[0] - place[0]) ** 2)),
            "anchor_ori": kernel((goal_turn[0] * turn[0].inv()).magnitude() ** 2),
            "body_pos": kernel(np.sum(offset**2, axis=1)),
            "body_ori": kernel((target_turn * turn.inv()).magnitude() ** 2),
            "body_lin_vel": kernel(np.sum((clip.body_lin_vel_w[k] - twist[:, 3:]) ** 2, axis=1)),
            "body_ang_vel": kernel(np.sum((clip.body_ang_vel_w[k] - twist[:, :3]) ** 2, axis=1)),
        }
        value = dict(zip(env.rewards.names, env.rewards.values[i].tolist(), strict=True))
        assert value == pytest.approx(expected, abs=1e-5)
        distance = np.linalg.norm(offset, axis=1)
        expected = {
            "mpkpe": np.linalg.norm(goal - place, axis=1).mean(),
            "r_mpkpe": distance.mean(),
            "joint_vel_error": np.sqrt(np.mean((clip.joint_vel[k] - qvel[i, 6:]) ** 2)),
            "ee_pos_error": distance[1:].mean(),
            "ee_ori_error": (target_turn * turn.inv()).magnitude()[1:].mean(),
        }
        value = dict(zip(env.metrics.names, env.metrics.values[i].tolist(), strict=True))
        assert value == pytest.approx(expected, abs=1e-5)
        leans = [t.as_matrix()[0, 2, 2] for t in (goal_turn, turn)]
        expected = [
            frame in (59, 169),
            abs(goal[0, 2] - place[0, 2]) > 0.25,
            abs(leans[0] - leans[1]) > 0.3,
            (np.abs(offset[1:, 2]) > 0.2).any(),
        ]
        assert env.terminations.flags[i].tolist() == expected
        assert dones[i] == any(expected)
        back = turn[0].inv()
        columns = [
            back.apply(goal[0] - place[0]),
            (back * goal_turn[0]).as_matrix()[:, :2],
            back.apply(place - place[0]),
            (back * turn).as_matrix()[:, :, :2],
        ]
        np.testing.assert_allclose(seen[i], np.hstack([c.ravel() for c in columns]), atol=1e-5)
    assert motion.is_over().tolist() == [frame in (59, 169) for frame in frames.tolist()]


def test_pictures_show_the_targets_of_the_bodies_as_frames(files):
    env = _env(files, 3)
    places, matrices = (part[1].numpy() for part in env.commands.terms["motion"].targets())
    frames = env.commands.terms["motion"].markers(1)
    np.testing.assert_allclose([frame.origin for frame in frames], places, atol=1e-6)
    turns = Rotation.from_quat([frame.quaternion for frame in frames], scalar_first=True)
    np.testing.assert_allclose(turns.as_matrix(), matrices, atol=1e-5)


def test_evaluation_plays_each_motion_in_turn_from_its_start_to_its_end(files):
    task = evaluation_task(_task(files, pose_range={"x": (-0.5, 0.5)}))
    env = Env(task, 5, EngineCfg(), metrics=True)
    motion: Any = env.commands.terms["motion"]
    assert motion.clip().tolist() == [0, 1, 0, 1, 0]
    clips = [MotionClip.load(Path(file), env.model) for file in files]
    for i in range(5):
        start = clips[i % 2]
        assert env.bind("qpos")[i, 7:].tolist() == pytest.approx(start.joint_pos[0], abs=1e-6)
        assert env.bind("xpos")[i, 1].tolist() == pytest.approx(start.body_pos_w[0, 0], abs=1e-6)
        # What is asked for is what is to be reached by the next step.
        wanted = [*start.joint_pos[1], *start.joint_vel[1]]
        assert env.command("motion")[i].tolist() == pytest.approx(wanted, abs=1e-6)
    everywhere = torch.ones(5, dtype=torch.bool)
    for step in range(1, 110):
        motion.put(everywhere)  # as if the policy were perfect
        env.sim.forward()
        _, dones = env.rewards_and_dones(None)
        ended = [step == (59, 109)[i % 2] for i in range(5)]
        assert dones.tolist() == ended, step
        assert env.metrics.values.abs().max() < 1e-3  # files are rounded
        assert torch.allclose(env.rewards.values, torch.ones(()), atol=1e-6)
        assert env.terminations.time_outs.tolist() == ended
        motion.resample(dones)
        motion.update()


def test_rewards_become_as_strict_as_errors_are_small_and_never_less_strict(files):
    task = _task(files)
    terms = ("body_pos", "body_lin_vel")
    task.curricula = {
        "narrow": CurriculumTermCfg(mdp.narrow_rewards, terms=terms, rate=0.25, share=0.5)
    }
    env = Env(task, 6, EngineCfg())
    names = env.rewards.names

    def step(*errors: float) -> list[float]:
        """With these squared errors of the environments in both rewards, the widths after it."""
        for name in terms:
            i = names.index(name)
            width = env.rewards.terms[i].params["std"]
            env.rewards.values[:, i] = torch.exp(torch.tensor(errors) / -(width**2))
        env.curricula.observe()
        env.curricula.compute(torch.zeros(6, dtype=torch.bool))
        return [float(env.rewards.terms[names.index(n)].params["std"]) for n in terms]

    # Five of six errors are below 0.8, or three, or none.
    assert step(0.0, 0.1, 0.2, 0.3, 0.4, 100.0) == pytest.approx([0.8 * (1 - 0.5 / 3)] * 2)
    assert step(0.1, 0.2, 0.3, 100.0, 100.0, 100.0) == pytest.approx([0.8 * (1 - 0.5 / 3)] * 2)
    stds = step(*[2.0] * 6)
    assert stds == pytest.approx([0.8 * (1 - 0.5 / 3)] * 2)  # not wider again
    for _ in range(300):
        stds = step(0.01, 0.02, 0.09, 0.0901, 50.0, 50.0)
    assert stds == pytest.approx([0.3] * 2, rel=0.1)  # the root of the median
    mean = sum(std / 0.8 for std in stds) / 2
    assert float(env.curricula.log["Curriculum/narrow"]) == pytest.approx(mean)

    other = Env(task, 6, EngineCfg())
    other.set_variables(env.variables())
    for name in names:
        i = names.index(name)
        known = [float(e.rewards.terms[i].params["std"]) for e in (env, other)]
        assert known[0] == known[1]
    assert evaluation_task(task).curricula == {}

    for wrong, message in ((("nothing",), "no reward 'nothing'"), (("mine",), "'mine' is no func")):
        task.rewards["mine"] = RewardTermCfg(mdp.is_alive, 1.0)
        task.curricula["narrow"].params["terms"] = wrong
        with pytest.raises(ConfigError, match=message):
            Env(task, 2, EngineCfg())


def test_motions_held_out_are_followed_in_evaluations_only(files):
    kinds = {"clip": MetricTermCfg(mdp.motion_clip, reduce="last", command="motion")}
    task = _task(files[:1], held_out=files[1:])
    task.metrics = kinds
    for sampling in ("adaptive", "uniform", "start"):
        task.commands["motion"].params["sampling"] = sampling
        env = Env(task, 200, EngineCfg())
        motion: Any = env.commands.terms["motion"]
        assert not motion.clip().any()
    evaluated = Evaluator(evaluation_task(task), 5, engine=EngineCfg())
    motion = evaluated.env.commands.terms["motion"]
    assert motion.clip().tolist() == [0, 1, 0, 1, 0]
    kind: Any = evaluated.env.metrics.terms[0].function
    assert kind.labels == ("0", "1 (held out)")


def test_adaptive_sampling_begins_where_episodes_failed_and_evenly_beside(files):
    env = _env(files, 4000, kernel=2, kernel_decay=0.5, failure_rate=1.0)
    motion, everywhere = env.commands.terms["motion"], torch.ones(4000, dtype=torch.bool)
    _frame(env).fill_(60 + 80)  # in the second of the second motion's bins: 109 frames, 2 bins
    env.terminations.terminated.fill_(True)
    motion.resample(everywhere)
    frames = _frame(env)
    first, second, third = (
        ((frames >= low) & (frames < high)).float().mean()
        for low, high in ((0, 59), (60, 114), (114, 169))
    )
    # A tenth evenly; of the rest two parts for the bin that failed, one for the bin before.
    assert first == pytest.approx(0.1 / 3, abs=0.02)
    assert second == pytest.approx(0.1 / 3 + 0.3, abs=0.03)
    assert third == pytest.approx(0.1 / 3 + 0.6, abs=0.03)
    assert frames.max() < 169  # never in a last frame
    env.terminations.terminated.fill_(False)
    motion.resample(everywhere)  # nothing failed: evenly over bins
    assert ((_frame(env) < 59).float().mean()) == pytest.approx(1 / 3, abs=0.03)


def test_adaptive_sampling_prefers_the_bin_that_fails_more_often_not_the_one_visited_more(files):
    env = _env(files, 4000, failure_rate=1.0, uniform_share=0.0)
    env.terminations.terminated.fill_(False)
    frame, failed = _frame(env), env.terminations.terminated
    frame[:1000], failed[:500] = 10, True  # the first bin: half of 1000 environments fail
    frame[1000:], failed[1000:1750] = 140, True  # the third: a quarter of 3000
    env.commands.terms["motion"].resample(torch.ones(4000, dtype=torch.bool))
    assert (_frame(env) < 59).float().mean() == pytest.approx(2 / 3, abs=0.03)
    assert (_frame(env) >= 114).float().mean() == pytest.approx(1 / 3, abs=0.03)


def test_what_is_drawn_stays_within_its_ranges_and_concerns_the_mask_alone(files):
    ranges = {"x": (0.1, 0.3), "yaw": (-0.5, -0.2)}
    env = _env(files, 500, sampling="uniform", pose_range=ranges, velocity_range={"z": (1.0, 2.0)})
    motion = env.commands.terms["motion"]
    before = env.bind("qpos").clone()
    mask = torch.arange(500) % 2 == 0
    motion.resample(mask)
    env.sim.forward()
    assert torch.equal(env.bind("qpos")[~mask], before[~mask])
    position, turn = motion.poses()
    offset = (env.bind("qpos")[:, :3] - position[:, 0])[mask]
    assert 0.1 - 1e-5 <= offset[:, 0].min() < 0.11
    assert 0.29 < offset[:, 0].max() <= 0.3 + 1e-5
    assert offset[:, 1:].abs().max() < 1e-5
    turned = Rotation.from_quat(env.bind("qpos")[mask, 3:7], scalar_first=True)
    drawn = turned * Rotation.from_matrix(turn[mask, 0]).inv()
    angles = drawn.as_rotvec()
    assert np.abs(angles[:, :2]).max() < 1e-3
    assert -0.5 - 1e-3 < angles[:, 2].min() < angles[:, 2].max() < -0.2 + 1e-3
    lift = (env.bind("qvel")[:, :3] - motion.velocities()[0][:, 0])[mask]
    assert lift[:, 2].min() > 1.0 - 1e-4
    assert lift[:, :2].abs().max() < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"anchor": "head"}, "'head' is not one of the bodies: base, left_leg"),
        ({"files": ()}, "needs one or more motions"),
        ({"files": ("none.npz",)}, "no file none.npz, here or in a folder of tasks"),
        ({"bin_s": 0.0}, "bin-s is 0.0; it must be 0.001 or more"),
        ({"pose_range": {"zaw": (0.0, 1.0)}}, "no axis 'zaw'"),
        ({"bodies": "head"}, "no body matches 'head'"),
        ({"files": ("0.npz", "0.npz")}, "two of the motions are called '0'; rename a file"),
        ({"files": ("slow.npz",)}, "slow.npz has 30 frames a second, and the task 50"),
    ],
)
def test_what_cannot_be_is_told_before_anything_starts(files, change, message, monkeypatch):
    folder = Path(files[0]).parent
    monkeypatch.chdir(folder)
    write_clip(folder / "slow.npz", MODEL, 20, fps=30.0)
    with pytest.raises(ConfigError, match=message) as error:
        check_task(_task(**{"files": files, **change}))
    assert "\n" not in str(error.value)
