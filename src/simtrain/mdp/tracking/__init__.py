"""Terms of tasks in which a robot follows recorded motions."""
