"""What the machine could do at best, measured beside what the native kernels do with it: where the time goes."""
