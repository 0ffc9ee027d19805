"""What a classifier attends to in a text: maps per layer and head, as numbers, a picture and a page."""
