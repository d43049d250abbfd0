"""From a robot's model to a task: read, inspect, prepare, check, write the files."""
