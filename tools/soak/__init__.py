"""The soak test: runs a real server under mixed traffic with faults for half an hour and judges its measurements."""
