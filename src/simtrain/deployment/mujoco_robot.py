"""An exported policy in MuJoCo: an example of the two functions that run_policy.py asks for.

    python mujoco_robot.py --seconds 10 --velocity 0.5 0 0    # commands go by their names
    python mujoco_robot.py --seconds 5 --motion squat         # and so do motions

Needs mujoco, numpy and onnxruntime, and what lies beside it: run_policy.py, policy.json,
policy.onnx and model.xml.
"""

import argparse
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from run_policy import Motion, Policy, run


class MujocoRobot:
    """A simulation in the place of a robot. Not described: images and what else is "given"."""

    def __init__(self, policy: Policy, model: mujoco.MjModel) -> None:
        self.about, self.model, self.data = policy.about, model, mujoco.MjData(model)
        self.nstep = round(policy.period / model.opt.timestep)
        self.commands = {c["name"]: np.zeros(c["size"]) for c in policy.about["commands"]}
        joints = [model.joint(name) for name in policy.joints]
        self.qpos = [int(joint.qposadr[0]) for joint in joints]
        self.qvel = [int(joint.dofadr[0]) for joint in joints]
        # The first id of a transmission to a joint, type 0 or 1, is the joint's.
        driving = np.where(model.actuator_trntype <= 1, model.actuator_trnid[:, 0], -1).tolist()
        held = self.about["held_joint_pos"]
        ids = {name: model.joint(name).id for name in (*self.about["joint_names"], *held)}
        self.actuators = [driving.index(ids[name]) for name in self.about["joint_names"]]
        self.held = [driving.index(ids[name]) for name in held]
        self.base = self.find_base()
        reads = [part["reads"] for part in self.about["observations"]]
        runs = [command["runs"] for command in self.about["commands"]]
        self.anchor = next((each["anchor"] for each in runs if "anchor" in each), None)
        where = [name for r in reads for k in ("frame", "origin") for name in [r.get(k)] if name]
        self.places = {*where, *(name for each in reads for name in each.get("places", ()))}
        self.contacts = [name for each in reads for name in each.get("sensors", ())]
        if self.about["keyframe"] is not None:
            key = model.key(self.about["keyframe"]).id
            mujoco.mj_resetDataKeyframe(model, self.data, key)

    def find_base(self) -> int | None:
        """The free joint of the base; the only one where policy.json, an old one, names none."""
        name = self.about.get("base", "")
        if name != "":
            return None if name is None else int(self.model.body(name).jntadr[0])
        free = np.flatnonzero(self.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE).tolist()
        if len(free) > 1:
            names = [self.model.body(self.model.jnt_bodyid[joint]).name for joint in free]
            raise ValueError(f'policy.json names no "base", and {", ".join(names)} move freely')
        return free[0] if free else None

    def read_state(self) -> dict[str, Any]:
        """What a robot with perfect sensors would read."""
        qpos, qvel = self.data.qpos, self.data.qvel
        state = {"joint_pos": qpos[self.qpos], "joint_vel": qvel[self.qvel]}
        if self.base is not None:
            q, v = self.model.jnt_qposadr[self.base], self.model.jnt_dofadr[self.base]
            state |= {"base_pos": qpos[q : q + 3], "base_quat": qpos[q + 3 : q + 7]}
            state |= {"base_lin_vel": np.zeros(3), "base_ang_vel": qvel[v + 3 : v + 6]}
            back = state["base_quat"] * [1.0, -1.0, -1.0, -1.0]
            mujoco.mju_rotVecQuat(state["base_lin_vel"], qvel[v : v + 3], back)
        if self.anchor is not None:
            body = self.data.body(self.anchor)
            state |= {"anchor_pos": body.xpos.copy(), "anchor_quat": body.xquat.copy()}
        touches = {name: self.data.sensor(name).data[0] > 0.0 for name in self.contacts}
        state["places"] = {name: self.pose(name) for name in self.places}
        return {**state, "contact": touches, "commands": self.commands}

    def pose(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Where a body or site is and how it is turned, in the world."""
        quat, kinds = np.zeros(4), mujoco.mjtObj
        body = mujoco.mj_name2id(self.model, kinds.mjOBJ_BODY, name)
        place = self.data.site(name) if body < 0 else self.data.body(name)
        mujoco.mju_mat2Quat(quat, place.xmat)
        return place.xpos.copy(), quat

    def begin(self, motion: Motion) -> None:
        """Be where a motion begins."""
        root = int(self.model.jnt_bodyid[self.base])
        place = 0, motion.frames["body_names"].tolist().index(self.model.body(root).name)
        q, pose = self.model.jnt_qposadr[self.base], ("body_pos_w", "body_quat_w")
        self.data.qpos[q : q + 7] = np.concatenate([motion.frames[f][place] for f in pose])
        for name, position in zip(motion.joints, motion.frames["joint_pos"][0], strict=True):
            self.data.joint(name).qpos[0] = position
        mujoco.mj_kinematics(self.model, self.data)

    def write_command(self, targets: np.ndarray) -> None:
        """Simulate until the next command."""
        self.data.ctrl[self.actuators] = targets
        self.data.ctrl[self.held] = list(self.about["held_joint_pos"].values())
        mujoco.mj_step(self.model, self.data, nstep=self.nstep)


def main() -> None:
    """Run the policy in MuJoCo, in real time, and print the positions that it got to."""
    folder = Path(__file__).resolve().parent
    policy = Policy(folder)
    robot = MujocoRobot(policy, mujoco.MjModel.from_xml_path(str(folder / "model.xml")))
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    given = {c["name"]: c["size"] for c in policy.about["commands"] if not c["runs"]}
    for name, size in given.items():
        parser.add_argument(f"--{name}", type=float, nargs=size, default=[0.0] * size, dest=name)
    for name, about in ((c["name"], c["runs"]) for c in policy.about["commands"]):
        if "motions" in about:
            parser.add_argument(f"--{name}", choices=list(about["motions"]), dest=name)
    arguments = vars(parser.parse_args())
    policy.reset(motions={n: v for n, v in arguments.items() if isinstance(v, str)})
    for motion in (each for each in policy.running.values() if isinstance(each, Motion)):
        robot.begin(motion)
    robot.commands = {name: np.array(arguments[name]) for name in given}
    run(policy, robot.read_state, robot.write_command, arguments["seconds"])
    print("qpos", np.array2string(robot.data.qpos, precision=3, suppress_small=True))


if __name__ == "__main__":
    main()
