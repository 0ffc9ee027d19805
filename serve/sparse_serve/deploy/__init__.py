"""`sparse-serve deploy`: an entry behind a gateway, as files for what runs containers."""
