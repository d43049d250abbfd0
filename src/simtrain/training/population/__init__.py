"""A population of trainings: what evolves, selection, mutation, and records."""
