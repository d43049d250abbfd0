"""A population of trainings: hyper-parameters, selection, mutation, and records."""
