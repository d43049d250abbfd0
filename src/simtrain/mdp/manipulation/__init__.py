"""Terms and recipes of tasks in which a robot reaches for things and handles them."""
