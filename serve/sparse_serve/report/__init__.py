"""The report of `profile`: what stands in it, what follows from it, and how it is drawn, written and said."""
