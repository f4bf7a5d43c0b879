"""Which addresses are other machines, and that none is reached offline."""

from __future__ import annotations

import pytest

from unseen.callbacks.destinations import is_remote, require_reachable, without_secrets
from unseen.errors import UsageError

HERE = (
    *("", "runs", "/data/mlruns", "C:\\data", "sqlite:////data/mlflow.db", "file:///data/mlruns", "offline"),
    *(
        "http://localhost:5000",
        "http://127.0.0.1:5000",
        "https://[::1]/",
        "http://a.localhost",
        "http://127.8.9.1",
    ),
)
ELSEWHERE = (
    *("https://api.wandb.ai", "http://10.0.0.1:5000", "http://user:secret@mlflow.example.org/path?token=x"),
    *(
        "databricks",
        "databricks://profile",
        "postgresql://user:secret@db.example.org/x",
        "http://localhost.example.org",
    ),
)


@pytest.mark.parametrize("address", HERE)
def test_this_machine_is_always_allowed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")
    assert not is_remote(address)
    require_reachable("x", address, instead="stay")


@pytest.mark.parametrize("address", ELSEWHERE)
def test_another_machine_is_refused_offline_in_one_line_without_secrets(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_remote(address)
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")
    with pytest.raises(UsageError, match="UNSEEN_OFFLINE is set") as refused:
        require_reachable("x", address, instead="stay")
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)
    monkeypatch.setenv("UNSEEN_OFFLINE", "0")
    require_reachable("x", address, instead="stay")


def test_addresses_are_written_down_without_user_password_and_query() -> None:
    assert without_secrets("http://me:pw@host:5/a?write_token=b") == "http://host:5/a"
    assert without_secrets("sqlite:////data/mlflow.db") == "sqlite:////data/mlflow.db"
    assert without_secrets("/data/a?b") == "/data/a?b"
