"""An exported policy in MuJoCo: an example of the two functions that run_policy.py needs.

    python mujoco_robot.py --seconds 10 --velocity 0.5 0 0    # a command, by its name
    python mujoco_robot.py --seconds 5 --motion squat         # a motion, by its name
    python mujoco_robot.py --motion squat --blend 1           # from the home pose

Needs mujoco, numpy and onnxruntime, and these files in the same folder: run_policy.py, policy.json,
robot.onnx and model.xml.
"""

import argparse
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from run_policy import Policy, run


class MujocoRobot:
    """A simulation in place of a robot. It has no images and no other values that are "given"."""

    def __init__(self, policy: Policy, model: mujoco.MjModel) -> None:
        self.about, self.model, self.data = policy.about, model, mujoco.MjData(model)
        self.nstep = round(policy.period / model.opt.timestep)
        self.commands = {c["name"]: np.zeros(c["size"]) for c in policy.about["commands"]}
        joints = [model.joint(name) for name in policy.joints]
        self.qpos = [int(joint.qposadr[0]) for joint in joints]
        self.qvel = [int(joint.dofadr[0]) for joint in joints]
        # The first id of a transmission to a joint, type 0 or 1, is the joint's.
        driving = np.where(model.actuator_trntype <= 1, model.actuator_trnid[:, 0], -1).tolist()
        positions = self.about["held_joint_pos"]
        self.held = [driving.index(model.joint(name).id) for name in positions]
        self.hold = model.actuator_gear[self.held, 0] * list(positions.values())
        base = self.about["base"]
        self.base = None if base is None else int(model.body(base).jntadr[0])
        if self.about["keyframe"] is not None:
            key = model.key(self.about["keyframe"]).id
            mujoco.mj_resetDataKeyframe(model, self.data, key)
        mujoco.mj_kinematics(model, self.data)

    def place(self, qpos: np.ndarray, at_home: bool) -> None:
        """Put the robot into a pose, or into its home pose with that place and heading."""
        home = self.data.qpos.copy()
        self.data.qpos[:] = qpos
        if at_home:
            self.data.qpos[self.qpos] = home[self.qpos]
        if at_home and self.base is not None:
            q = self.model.jnt_qposadr[self.base]
            heading = qpos[q + 3 : q + 7] * [1.0, 0.0, 0.0, 1.0]
            mujoco.mju_normalize4(heading)
            mujoco.mju_mulQuat(self.data.qpos[q + 3 : q + 7], heading, home[q + 3 : q + 7])
            self.data.qpos[q + 2] = home[q + 2]
        mujoco.mj_kinematics(self.model, self.data)

    def read_state(self) -> dict[str, Any]:
        """The measurements of a robot with perfect sensors."""
        qpos, qvel, robot = self.data.qpos, self.data.qvel, self.about["robot"]
        state = {"joint_pos": qpos[self.qpos], "joint_vel": qvel[self.qvel]}
        if self.base is not None:
            q, v = self.model.jnt_qposadr[self.base], self.model.jnt_dofadr[self.base]
            state |= {"base_pos": qpos[q : q + 3], "base_quat": qpos[q + 3 : q + 7]}
            state |= {"base_lin_vel": np.zeros(3), "base_ang_vel": qvel[v + 3 : v + 6]}
            back = state["base_quat"] * [1.0, -1.0, -1.0, -1.0]
            mujoco.mju_rotVecQuat(state["base_lin_vel"], qvel[v : v + 3], back)
        touches = {name: self.data.sensor(name).data[0] > 0.0 for name in robot["contacts"]}
        places = {name: self.pose(name) for name in robot["places"]}
        return {**state, "contact": touches, "places": places, "commands": self.commands}

    def pose(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Position and rotation of a body or site, in the world."""
        body = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, name)
        place, quat = self.data.site(name) if body < 0 else self.data.body(name), np.zeros(4)
        mujoco.mju_mat2Quat(quat, place.xmat)
        return place.xpos.copy(), quat

    def write_command(self, targets: np.ndarray) -> None:
        """Simulate until the next command."""
        self.data.ctrl[self.about["actuators"]] = targets
        self.data.ctrl[self.held] = self.hold
        mujoco.mj_step(self.model, self.data, nstep=self.nstep)


def main() -> None:
    """Run the policy in MuJoCo, in real time, and print the final positions."""
    folder = Path(__file__).resolve().parent
    policy = Policy(folder)
    robot = MujocoRobot(policy, mujoco.MjModel.from_xml_path(str(folder / "model.xml")))
    parser = argparse.ArgumentParser(description="Run the policy in MuJoCo, in real time.")
    parser.add_argument("--seconds", type=float, default=10.0, help="simulated time, s")
    parser.add_argument("--blend", type=float, default=0.0, help="time from the home pose, s")
    commands = policy.about["commands"]
    starts = {c["name"]: c["runs"]["starts"] for c in commands if c["runs"] and c["runs"]["starts"]}
    for name, size in ((c["name"], c["size"]) for c in commands if not c["runs"]):
        about = {"dest": name, "help": "command, in m, rad and s"}
        parser.add_argument(f"--{name}", type=float, nargs=size, default=[0.0] * size, **about)
    for name, choices in starts.items():
        first = next(iter(choices))
        parser.add_argument(
            f"--{name}", choices=[*choices], default=first, dest=name, help="start of the episode"
        )
    arguments = vars(parser.parse_args())
    for name, choices in starts.items():
        policy.start(name, arguments[name])
        robot.place(np.array(choices[arguments[name]]["qpos"]), arguments["blend"] > 0.0)
    robot.commands = {name: np.array(value) for name, value in arguments.items()}
    run(policy, robot.read_state, robot.write_command, arguments["seconds"], arguments["blend"])
    print("qpos", np.array2string(robot.data.qpos, precision=3, suppress_small=True))


if __name__ == "__main__":
    main()
