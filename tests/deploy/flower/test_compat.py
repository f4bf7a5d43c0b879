"""Each assumption about Flower's internals, checked against the installed version.

An update of Flower that renames one of these names fails here, not at a site.
"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from unseen.deploy.flower import compat
from unseen.errors import UnseenError

flwr = pytest.importorskip("flwr")

DEAF = """
import signal, sys, time
from unseen.deploy.flower import compat
compat.PARENT_POLL_SECONDS, compat.PARENT_GRACE_SECONDS = 0.05, 0.1
signal.signal(signal.SIGINT, signal.SIG_IGN)
compat.exit_with_parent()
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
    servant = start(1, "--parent-pid", str(master.pid))
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


def test_the_supernode_pauses_by_its_module_time(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("flwr.supernode.start_client_internal")
    source = flower_source("flwr.supernode.start_client_internal")
    assert sorted(set(re.findall(r"\btime\.\w+\(.*\)", source))) == ["time.sleep(0.5)", "time.sleep(3)"]
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(compat, "flower_entry_point", lambda program: lambda: None)
    pauses = object()
    compat.run_supernode(pauses)
    assert module.time is pauses


def test_app_processes_are_started_by_these_names_from_path() -> None:
    """D1: a program that is missing here would be Flower's own at a site, and run code of the job."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    installed = {point.name for point in entry_points(group="console_scripts")}
    assert set(TASK_TYPE_TO_COMMAND.values()) == set(compat.TASK_PROGRAMS)
    assert {*compat.TASK_PROGRAMS, compat.LAUNCHER_PROGRAM} <= installed
    assert f'"{compat.LAUNCHER_PROGRAM}"' in flower_source("flwr.supernode.start_client_internal")


def test_a_client_process_handles_a_bundle_in_these_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: all that `flwr-clientapp` does with the code of a job is replaced."""
    from flwr.supernode import cli
    from flwr.supernode.runtime import run_clientapp as module

    source = inspect.getsource(module.run_clientapp)
    uses = [line.strip() for line in source.splitlines() if "fab" in line or "app_path" in line]
    handled = ("pull_task_input", "get_project_dir", '"fab_', '"project_dir"', *compat.CLIENT_STEPS)
    rest = [line for line in uses if not any(step in line for step in handled)]
    assert rest == ["app_path,", "app_path=None,", "run.fab_id, run.fab_version, fab.hash_str"]

    chosen: list[tuple[str, bytes]] = []
    for name in compat.CLIENT_STEPS:
        monkeypatch.setattr(module, name, getattr(module, name))

    def flwr_clientapp() -> None:
        module.install_from_fab(b"bundle", skip_prompt=True)
        module.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)("m/app", "1", "x")
        with pytest.raises(UnseenError, match="cannot install anything"):
            module.install_app_dependencies("somewhere", launch_id="1")

    monkeypatch.setattr(cli, "flwr_clientapp", flwr_clientapp)
    compat.run_clientapp_with(lambda name, bundle: chosen.append((name, bundle)))
    assert chosen == [("m/app", b"bundle")]
    monkeypatch.delattr(module, "install_from_fab")
    with pytest.raises(UnseenError, match="loads apps in another way"):
        compat.run_clientapp_with(lambda name, bundle: None)


def test_programs_on_the_coordinators_machine_send_the_token_there_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flwr.supercore.control.control_http_client import ControlHttpClient
    from flwr.supercore.protobuf.client import ProtobufClient

    monkeypatch.setattr(ProtobufClient, "__init__", ProtobufClient.__init__)
    monkeypatch.setenv(compat.TOKEN_VARIABLE, "secret")
    compat.send_token()
    for address, sent in (("127.0.0.1:9600", "secret"), ("elsewhere.example:9600", None)):
        client = ControlHttpClient.from_server_address(
            address, insecure=True, root_certificates=None, interceptors=()
        )
        assert client._client.headers.get(compat.TOKEN_HEADER) == sent
    assert callable(compat.flower_entry_point("flwr"))


def test_flowers_own_programs_are_not_found_in_a_sites_path(tmp_path: Path) -> None:
    """D1: without a launcher a program of Flower is missing, not run."""
    for place in ("bare", "flower"):
        (tmp_path / place).mkdir()
    (tmp_path / "flower" / compat.CLIENT_PROGRAM).touch()
    path = compat.path_without_flower(f"{tmp_path / 'flower'}:{tmp_path / 'bare'}::/usr/bin")
    assert path == f"{tmp_path / 'bare'}:/usr/bin"


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
    assert ErrorCode.CLIENT_APP_RAISED_EXCEPTION == compat.APP_ERROR
