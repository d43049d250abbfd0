"""simtrain: PPO for robots on massively parallel MuJoCo simulation."""

__version__ = "0.1.0"
