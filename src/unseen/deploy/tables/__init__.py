"""Tables across sites: column sums, and one encoding for all rows."""
