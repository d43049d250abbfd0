"""Run an exported ball-balance policy without simtrain, on a MuJoCo model in place of the plate.

python _run_policy.py <folder of policy.onnx and policy.json>
"""

import json
import sys
from pathlib import Path

import mujoco
import numpy as np
import onnxruntime

# --8<-- [start:program]
folder = Path(sys.argv[1])
policy = json.loads((folder / "policy.json").read_text())
network = onnxruntime.InferenceSession(folder / policy["files"]["onnx"])
period = policy["control_period"]
scale, offset = np.array(policy["action_scale"]), np.array(policy["action_offset"])
low, high = np.array(policy["action_clip"]).T

model = mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("ball_balance.xml")))
model.opt.timestep = 0.005
data = mujoco.MjData(model)
ball = data.joint("ball")
plate = [data.joint(name) for name in policy["joint_names"]]

target = np.array([0.1, -0.05])
before = ball.qpos[:2].copy()
actions = np.zeros(policy["action_size"])
for _ in range(round(5.0 / period)):
    place = ball.qpos[:2].copy()
    terms = {
        "ball": place,
        "ball_vel": (place - before) / period,
        "tilt": [joint.qpos[0] for joint in plate],
        "target": target,
        "last_action": actions,
    }
    seen = np.concatenate([terms[name] for name in policy["observation_names"]])
    inputs = {policy["input"]: seen[None].astype(np.float32)}
    actions = network.run([policy["output"]], inputs)[0][0]
    targets = np.clip(offset + scale * actions, low, high)
    for name, angle in zip(policy["joint_names"], targets, strict=True):
        data.actuator(name).ctrl = angle  # here actuators are called as their joints are
    mujoco.mj_step(model, data, nstep=round(period / model.opt.timestep))
    before = place
# --8<-- [end:program]
print(f"{np.linalg.norm(ball.qpos[:2] - target):.3f} m from the target")
