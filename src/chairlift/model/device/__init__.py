"""What a device offers: dtypes, memory, streams, compute capability, and which of its errors is a request's."""
