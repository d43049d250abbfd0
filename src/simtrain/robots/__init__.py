"""From a robot's model to a task: read, inspect, prepare, check, write the files."""

from simtrain.robots.inspect import Foot, Limb, Robot, Servo, inspect
from simtrain.robots.read import read

__all__ = ["Foot", "Limb", "Robot", "Servo", "inspect", "read"]
