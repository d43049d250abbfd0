"""Exported policies without simtrain: what runs them, and the proof that they act alike."""

from pathlib import Path

PROGRAMS = [Path(__file__).with_name(name) for name in ("run_policy.py", "mujoco_robot.py")]
"""What is exported beside ``policy.onnx``; neither imports simtrain."""
