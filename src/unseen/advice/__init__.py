"""Advice on a user's own data: a race of a few strong candidates, judged on left-out sources only."""
