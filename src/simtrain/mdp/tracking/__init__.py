"""Terms of motion tracking tasks."""
