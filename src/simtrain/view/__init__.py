"""What a person sees of a task: videos and a web viewer. Knows environments, but no PPO."""
