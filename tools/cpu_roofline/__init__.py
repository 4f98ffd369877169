"""CPU roofline: the speed of the native kernels as a share of the machine's measured peaks, and the time per part."""
