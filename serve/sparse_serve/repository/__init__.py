"""The model repository on disk: what an entry is, how it is written whole, and how it is checked."""
