"""From a robot's model to a task: read, inspect, prepare, check, write the files."""

from simtrain.robots.inspect import Robot, Servo, inspect
from simtrain.robots.read import read
from simtrain.robots.tree import Foot, Limb

__all__ = ["Foot", "Limb", "Robot", "Servo", "inspect", "read"]
