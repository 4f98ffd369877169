"""The CPU yardstick: real shapes with random weights, W1 to W3, us and the peers in turns (`make bench-cpu`)."""
