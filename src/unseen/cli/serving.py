"""`unseen predict` and `unseen export`."""


def predict_command() -> None:
    """Predict."""


def export_command() -> None:
    """Export."""
