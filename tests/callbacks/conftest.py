"""A real MLflow server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import pytest
from loopback_servers import answers, free_port, running, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server; needs the whole of MLflow, of which the extra has a part."""
    try:
        version("mlflow")
    except PackageNotFoundError:
        pytest.skip("mlflow-skinny has no server: pip install mlflow")
    folder, port = tmp_path_factory.mktemp("server"), str(free_port())
    words = ["mlflow", "server", "--host", "127.0.0.1", "--port", port, "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
    words += ["--artifacts-destination", f"{folder}/files"]
    with running(folder, *words, MLFLOW_DISABLE_TELEMETRY="true") as process:
        until(lambda: answers(f"http://127.0.0.1:{port}/health"), process)
        yield f"http://127.0.0.1:{port}"
