"""PPO, the trainer loop, and the worker that each rank runs."""
