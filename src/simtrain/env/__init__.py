"""Tasks as data, and the environment that runs one on an engine. Knows no PPO."""
