"""The configuration of a run: its fields, checks, overrides, YAML, and finding tasks by name."""
