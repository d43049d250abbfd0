"""From a person's recorded movement to a robot's: recognize, plan the feet, solve the joints."""
