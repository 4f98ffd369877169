"""Translation of other APIs' requests and responses to and from those of the OpenAI API."""
