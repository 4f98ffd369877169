"""Skills: functions that make a random training task from a random number generator."""
