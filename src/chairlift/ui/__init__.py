"""The web page: static files without a build step, and the table of them."""
