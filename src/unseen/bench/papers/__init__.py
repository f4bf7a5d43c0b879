"""The papers: their published numbers and a recipe for every table and figure."""
