"""What keeps replicas equal: views, the two-phase exchange, catching up."""
