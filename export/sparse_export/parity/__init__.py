"""The gate in front of the repository: the exported graph against the torch model."""
