"""What the provider of this machine says of its end: read here, judged by the core, acted on by the server."""
