"""From a configuration to a finished run folder: prepare, run, finalize."""
