"""Policies as files for robots, the program that runs them, and their verification."""
