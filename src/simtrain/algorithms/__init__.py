"""What learns: PPO and its networks. Knows no files and no simulator."""
