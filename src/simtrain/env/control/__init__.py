"""From actions to forces: delays, actuators and action terms."""
