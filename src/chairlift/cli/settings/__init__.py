"""Settings: each option declared once, read from flags, environment variables and a file."""
