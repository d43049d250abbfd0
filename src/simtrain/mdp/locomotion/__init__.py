"""Terms and recipes of tasks in which a robot walks."""
