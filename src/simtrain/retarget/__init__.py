"""Retargeting of a recorded person to a robot: recognize, plan the feet, solve the joints."""
