"""The coordinator's side: its home folder, jobs, and checks of every answer."""
