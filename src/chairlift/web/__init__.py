"""Web: the HTTP skeleton that both doors stand on; pure ASGI, and it knows neither engine nor models."""
