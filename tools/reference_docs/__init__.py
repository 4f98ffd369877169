"""Reference pages of docs/ that are made of what the code declares: settings, metrics, errors."""
