"""What rank 0 writes: run directory, checkpoints, metrics, console. Knows no simulator."""
