"""Loading: reads model folders, from config.json to the weights."""
