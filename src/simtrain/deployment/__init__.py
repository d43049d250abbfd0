"""Exported policies without simtrain: what runs them, and the proof that they act alike."""
