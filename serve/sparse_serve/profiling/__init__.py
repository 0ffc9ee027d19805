"""What `profile` does: the requests that it sends and what it measures, for `sparse_serve.report`."""
