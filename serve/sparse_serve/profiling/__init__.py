"""What `profile` does: the requests, the measurements, and the report they end in."""
