"""Videos and the web viewer. Depends on environments, but not on PPO."""
