"""From a command line to running ranks: devices, launcher, rank. Knows no task and no PPO."""
