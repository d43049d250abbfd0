"""A population of trainings: what evolves, who is selected, how it is mutated and recorded."""
