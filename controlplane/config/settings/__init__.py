"""base is shared; embedded, production and test differ in backends, never in code paths."""
