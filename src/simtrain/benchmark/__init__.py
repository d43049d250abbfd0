"""Measures how fast training is on a machine, layer by layer, and compares it with before."""
