"""Routes of other APIs, served by the routes of the OpenAI API."""
