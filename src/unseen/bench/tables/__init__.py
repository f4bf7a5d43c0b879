"""Tables of a bench: as numbers, as cells of text, and in four formats."""
