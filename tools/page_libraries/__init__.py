"""Files of libraries that the web page has in another form than their packages."""
