"""Each assumption about Flower's internals, checked against the installed version.

An update of Flower that renames one of these names fails here, not at a site.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from unseen.deploy.flower import compat

flwr = pytest.importorskip("flwr")

DEAF = """
import signal, sys, time
from unseen.deploy.flower.compat import exit_with_parent
signal.signal(signal.SIGINT, signal.SIG_IGN)
exit_with_parent()
print("started", flush=True)
time.sleep(float(sys.argv[1]))
"""


def start(seconds: float, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DEAF, str(seconds), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def test_a_deaf_process_ends_with_the_one_it_works_for() -> None:
    master = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    servant = start(600, "--parent-pid", str(master.pid))
    assert servant.poll() is None
    master.kill()
    master.wait()
    assert servant.wait(60) == 1


@pytest.mark.parametrize("options", [(), ("--parent-pid",)])
def test_without_a_named_master_nothing_happens(options: tuple[str, ...]) -> None:
    assert start(0.1, *options).wait(60) == 0


def test_it_lives_as_long_as_its_master() -> None:
    master = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    servant = start(5, "--parent-pid", str(master.pid))
    assert servant.wait(60) == 0
    master.kill()
    master.wait()


def flower_source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


def test_the_superlink_makes_its_web_application_with_create_app(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.superlink import cli, main

    added: list[Any] = []

    class App:
        def add_middleware(self, middleware: Any) -> None:
            added.append(middleware)

    monkeypatch.setattr(main, "create_app", lambda *_, **__: App())

    def flower_superlink() -> None:
        main.create_app()

    monkeypatch.setattr(cli, "flower_superlink", flower_superlink)
    compat.run_superlink(compat.require_flower)
    assert added == [compat.require_flower]
    assert "create_app(" in flower_source("flwr.superlink.main")


@pytest.mark.parametrize("program", compat.APP_PROGRAMS)
def test_app_processes_are_started_by_these_names_from_path(program: str) -> None:
    installed = {point.name: point for point in entry_points(group="console_scripts")}
    assert program in installed
    assert installed[program].load() is compat.app_entry_points()[program]
    assert f'"{program}"' in flower_source("flwr.supercore.constant")


@pytest.mark.parametrize(
    "module",
    ["flwr.common.args", "flwr.supernode.start_client_internal", "flwr.superlink.cli.flower_superlink"],
)
def test_app_processes_are_given_their_parents_number(module: str) -> None:
    module = getattr(importlib.import_module(module), "__module__", module)
    assert f'"{compat.PARENT_OPTION}"' in Path(source_file(module)).read_text(encoding="utf-8")


def source_file(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


@pytest.mark.parametrize("variable", [*compat.QUIET, *compat.POLLING, "FLWR_HOME"])
def test_flower_reads_these_environment_variables(variable: str) -> None:
    package = Path(source_file("flwr")).parent
    assert any(f'"{variable}"' in path.read_text(encoding="utf-8") for path in package.rglob("*.py"))


def test_the_supernode_logs_its_number_once_it_is_connected() -> None:
    source = flower_source("flwr.supernode.start_client_internal")
    assert '"SuperNode ID: %s"' in source
    assert compat.CONNECTED_LOG.search("INFO: SuperNode ID: 123")


def test_a_refused_supernode_has_this_code() -> None:
    from flwr.supercore.error.base import ApiErrorCode

    assert f"[code: {int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)}]" == compat.REFUSED_LOG


def test_a_reply_of_a_node_that_left_has_this_code() -> None:
    from flwr.common.constant import ErrorCode

    assert ErrorCode.NODE_UNAVAILABLE == compat.NODE_UNAVAILABLE
