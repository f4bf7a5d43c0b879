"""A local page that follows a run, a bench or a federation while its records are written.

The page is served by a process of its own, which only reads: what it follows is the same with and without it.
"""
