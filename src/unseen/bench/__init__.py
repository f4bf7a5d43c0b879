"""Many runs as one: methods x held-out domains x seeds, in parallel, resumable, with honest tables."""
