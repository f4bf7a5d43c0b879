"""timm's hub on this machine: a server with its layout, which also breaks off, damages and lacks files."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from file_server import FileServer, serving
from unseen.errors import UnseenError
from unseen.models import InputSpec, build_model
from unseen.models.weight_hub import HubEntry, get_hub_weights
from unseen.models.weight_sources import find_initial_weights

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")

MODEL = "test_resnet"
LABEL = "test_resnet.r160_in1k"
FOLDER = f"timm/{LABEL}/resolve/main"
SAFE, TORCH, BLOB = f"{FOLDER}/model.safetensors", f"{FOLDER}/pytorch_model.bin", "blobs/1"


def published() -> dict[str, torch.Tensor]:
    network = build_model(MODEL, InputSpec((3, 32, 32), 1000), seed=7)
    return {
        name.removeprefix("body.").replace("head.", "fc."): tensor.contiguous()
        for name, tensor in network.state_dict().items()
    }


@pytest.fixture(scope="module")
def content() -> bytes:
    return save(published())


def serve(server: FileServer, content: bytes, *, stated: str | None = None) -> None:
    """Put the file where the hub has it: an address with its checksum that points to the storage."""
    checksum = hashlib.sha256(content).hexdigest() if stated is None else stated
    server.files[BLOB] = content
    server.moved[SAFE] = server.url(BLOB)
    server.headers[SAFE] = {"X-Linked-ETag": f'"{checksum}"', "ETag": '"0123"'}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UNSEEN_OFFLINE")
    with serving() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url())
        serve(running, content)
        yield running


def get(progress: object = None) -> Path:
    entry = HubEntry.of(MODEL)
    assert entry is not None
    return get_hub_weights(entry, **({"progress": progress} if progress else {}))  # type: ignore[arg-type]


def refused() -> str:
    with pytest.raises(UnseenError) as caught:
        get()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def kept(tmp_path: Path) -> list[str]:
    """Names in the cache that could be used."""
    folder = tmp_path / "cache" / "weights"
    return sorted(path.name for path in folder.iterdir() if path.suffix not in (".lock", ".part", ""))


def test_the_file_arrives_with_progress_under_its_checksum(hub, content, tmp_path):
    told: list[tuple[str, int, int]] = []
    path = get(lambda *news: told.append(news))
    assert path.name == f"{LABEL}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    assert path.read_bytes() == content
    assert kept(tmp_path) == [path.name]
    assert told[-1] == ("downloading model.safetensors", len(content), len(content))


def test_the_second_time_needs_no_net(hub, monkeypatch):
    path = get()
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")
    asked = len(hub.asked) + len(hub.heads)
    assert get() == path
    assert len(hub.asked) + len(hub.heads) == asked


def test_a_break_is_mended_by_resuming(hub, content):
    hub.breaks_after = 100_000
    assert get().read_bytes() == content
    assert [part for _, part in hub.asked] == [None, "bytes=100000-"]


def test_a_server_that_keeps_breaking_off_leaves_nothing_that_is_used(hub, content, tmp_path, monkeypatch):
    monkeypatch.setattr("unseen.models.weight_hub._TRIES", 1)
    hub.breaks_after = 100_000
    assert "broke off after 100000 of" in refused()
    assert kept(tmp_path) == []
    hub.breaks_after = 50_000
    refused()
    assert get().read_bytes() == content
    assert [part for _, part in hub.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_an_interrupt_leaves_nothing_that_is_used(hub, content, tmp_path):
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(stop)
    assert kept(tmp_path) == []
    assert get().read_bytes() == content


def test_a_damaged_download_is_refused(hub, content, tmp_path):
    checksum = hashlib.sha256(content).hexdigest()
    hub.files[BLOB] = content[:-1] + b"!"
    assert f"expected {checksum}" in refused()
    assert kept(tmp_path) == []
    assert len(hub.asked) == 2
    hub.files[BLOB] = content
    assert get().read_bytes() == content


def test_a_copy_that_was_damaged_later_is_fetched_again(hub, content, monkeypatch):
    path = get()
    path.write_bytes(content[:-1] + b"!")
    assert get().read_bytes() == content
    path.write_bytes(content[:1000])
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")
    assert "UNSEEN_OFFLINE is set" in refused()
    assert not path.exists()


def test_without_a_checksum_the_file_must_be_whole_and_readable(hub, content, tmp_path):
    serve(hub, content, stated="")
    hub.files[BLOB] = content[: len(content) // 2]
    assert "not a readable safetensors file" in refused()
    assert kept(tmp_path) == []
    hub.files[BLOB] = content
    assert get().read_bytes() == content


def test_an_older_repository_has_a_torch_file_only(hub, content, tmp_path):
    del hub.moved[SAFE]
    torch.save(published(), tmp_path / "w.bin")
    hub.files[TORCH] = (tmp_path / "w.bin").read_bytes()
    assert get().suffix == ".bin"


def test_a_renamed_repository_is_followed(hub, content):
    hub.moved[SAFE.replace("timm/", "new/")], hub.moved[SAFE] = (
        hub.moved[SAFE],
        f"/{SAFE.replace('timm/', 'new/')}",
    )
    hub.headers[SAFE.replace("timm/", "new/")] = hub.headers.pop(SAFE)
    assert hashlib.sha256(content).hexdigest()[:16] in get().name


def test_no_such_file(hub):
    del hub.moved[SAFE]
    assert refused() == f"{hub.url(SAFE)} does not exist"


def test_a_closed_port_is_one_short_reason(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert refused() == "127.0.0.1:9 cannot be reached (Connection refused)"


def test_a_server_that_never_answers_is_given_up(hub, monkeypatch):
    monkeypatch.setattr("unseen.models.weight_hub._PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{mute.getsockname()[1]}")
        said = refused()
    assert "cannot be reached" in said


def test_offline_the_hub_is_not_asked(hub, monkeypatch):
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")
    assert "UNSEEN_OFFLINE is set" in refused()
    assert not hub.asked
    assert not hub.heads


def test_a_cache_that_cannot_be_written_is_one_line(hub, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "file"))
    assert "UNSEEN_CACHE" in refused()


def test_runs_that_start_together_download_once(hub, content):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: get(), range(2))
    assert first == second
    assert first.read_bytes() == content
    assert len(hub.asked) == 1


def test_a_network_without_published_weights():
    assert HubEntry.of("resnet18") is not None
    assert HubEntry.of("no_such_network") is None


def test_auto_loads_what_the_hub_publishes(hub):
    chosen = find_initial_weights("auto", MODEL, None)
    assert chosen.note == f"pretrained weights: {LABEL} of timm's hub"
    network = build_model(MODEL, InputSpec((3, 32, 32), 5), seed=0, weights=chosen.path)
    random = build_model(MODEL, InputSpec((3, 32, 32), 5), seed=0)
    name = next(iter(published()))
    assert torch.equal(network.state_dict()[f"body.{name}"], published()[name])
    assert not torch.equal(random.state_dict()[f"body.{name}"], published()[name])
