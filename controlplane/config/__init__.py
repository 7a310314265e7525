"""Settings, environment, ASGI, Celery and URL roots. Nothing below imports this package."""
