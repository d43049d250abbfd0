"""Terms and recipes of manipulation tasks."""
