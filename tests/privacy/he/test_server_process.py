"""Where the secret key is: with clients, and never in the process that computes on ciphertexts."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from he_probes import break_down, contexts_here, leave_a_key
from safetensors.torch import load_file

import unseen
from unseen.errors import UnseenError
from unseen.privacy import make_protection
from unseen.privacy.he.ckks import KeyHolder
from unseen.privacy.he.server_process import EncryptedServer, ServerProcess


@pytest.mark.parametrize("method", ["ppdg", "fedavg"])
def test_the_server_never_holds_the_secret_key(method, make_experiment, go, monkeypatch):
    """After every call of a whole run, the server's process is searched; so is all that was sent to it."""
    sent, searched = [], []
    run = ServerProcess.run

    def watched(self, function, *args, **named):
        sent.append(pickle.dumps((args, named)))
        result = run(self, function, *args, **named)
        searched.append(run(self, contexts_here))
        return result

    monkeypatch.setattr(ServerProcess, "run", watched)
    secrets = []
    make = KeyHolder.make.__func__

    def made(cls, *, products):
        holder = make(cls, products=products)
        secrets.append(holder.secret)
        return holder

    monkeypatch.setattr(KeyHolder, "make", classmethod(made))
    experiment = replace(make_experiment(method, model="lenet-1"), protection=make_protection("encrypted"))
    checkpoint, _ = go(experiment, rounds=2)
    assert len(searched) > 8 and {number for number, _ in searched} == {searched[0][0]}
    assert searched[0][0] != os.getpid(), "another process"
    assert all(private == [False] for _, private in searched), "one context, and it cannot decrypt"
    (secret,) = secrets
    pieces = [secret[place : place + 64] for place in range(1000, len(secret) - 64, 5000)]
    whole = b"".join(sent) + b"".join(value.numpy().tobytes() for value in checkpoint.protection.values())
    assert len(pieces) > 20 and not any(piece in whole for piece in pieces)


def test_the_search_would_find_a_key():
    process = ServerProcess()
    process.run(leave_a_key)
    assert process.run(contexts_here)[1] == [True]
    process.close()


def test_the_process_refuses_a_secret_key_and_goes_on():
    process, holder = ServerProcess(), KeyHolder.make(products=False)
    with pytest.raises(UnseenError, match="received the secret encryption key"):
        process.run(EncryptedServer.open, holder.secret)
    process.run(EncryptedServer.open, holder.public(products=False))
    with pytest.raises(UnseenError, match=r"ended unexpectedly \(exit code 7\)"):
        process.run(break_down)
    process.close()


def test_the_process_ends_with_its_owner():
    process = ServerProcess()
    number = process.run(contexts_here)[0]
    assert number == process.pid
    del process
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_worker_processes_hold_the_key_and_the_run_s_own_does_not(tmp_path, monkeypatch):
    """With workers, clients live there: the run's process opens no context that can decrypt."""
    opened = []
    open_key = KeyHolder.open.__func__
    monkeypatch.setattr(
        KeyHolder, "open", classmethod(lambda cls, secret: opened.append(1) or open_key(cls, secret))
    )
    folder = unseen.train(
        "rotated-digits",
        hold_out="75",
        model="lenet-1",
        rounds=1,
        batches_per_epoch=2,
        workers=2,
        protect="encrypted",
        out=tmp_path / "run",
    ).folder
    assert opened == []
    kept = [load_file(path) for path in (folder / "checkpoints" / "clients").iterdir()]
    keys = {bytes(one["secret key"].numpy().tobytes()) for one in kept}
    assert len(kept) == 5 and len(keys) == 1, "every client has the one key in its own memory"
    result = json.loads((folder / "result.json").read_text())
    assert torch.isfinite(torch.tensor(result["metrics"]["target"]["accuracy"]))


def test_the_process_needs_no_torch():
    code = "import sys, unseen.privacy.he.server_process; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False", "it would take seconds to start"
