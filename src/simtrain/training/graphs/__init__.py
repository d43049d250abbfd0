"""CUDA graphs of rollout steps and mini-batches, and their check against eager execution."""
