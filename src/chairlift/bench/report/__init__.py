"""Reports: percentiles, plots and the environment that a benchmark ran in."""
