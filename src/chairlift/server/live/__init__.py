"""The live data of one replica, for the web page."""
