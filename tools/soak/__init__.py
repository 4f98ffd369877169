"""The soak: a real server under mixed traffic with faults for half an hour, watched, and a verdict at its end."""
