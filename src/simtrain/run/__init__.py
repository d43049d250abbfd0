"""Output of rank 0: run directory, checkpoints, metrics, console. Knows no simulator."""
