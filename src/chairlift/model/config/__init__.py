"""Options of the runner and facts of a model folder: config.json, generation_config.json, rope, layer groups."""
