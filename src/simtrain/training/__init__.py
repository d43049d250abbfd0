"""The training job, the training loop, and the work of each rank."""
