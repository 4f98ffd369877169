"""Skills: functions that draw a task from a random generator."""
