"""Calls of Flower's command `flwr`, with our own connection settings; the user's stay untouched."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.deploy.flower.access_control import gate_token
from unseen.deploy.flower.compat import TOKEN_VARIABLE, flower_environment
from unseen.errors import UnseenError
from unseen.fileio import write_text

CONNECTION = "unseen"


@dataclass(frozen=True)
class SuperLinkConnection:
    """Address of a SuperLink, and the CA of its certificate (None: no TLS).

    names  Flower's node id -> site whose key it presented; empty: sites name themselves
    home   the coordinator's home, whose token opens its gate; None: a SuperLink without a gate
    """

    address: str
    ca: Path | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    home: Path | None = None


def run_flwr(arguments: Sequence[str], coordinator: SuperLinkConnection, *, home: Path) -> str:
    """Run the command with our connection as its last argument; return its output."""
    trust = (
        "insecure = true"
        if coordinator.ca is None
        else f"root-certificates = {json.dumps(str(coordinator.ca.absolute()))}"
    )
    write_text(
        home / "config.toml",
        f"[superlink.{CONNECTION}]\naddress = {json.dumps(coordinator.address)}\n{trust}\n",
    )
    token = {} if coordinator.home is None else {TOKEN_VARIABLE: gate_token(coordinator.home)}
    program = [sys.executable, "-P", "-m", "unseen.deploy.flower.with_token", "flwr"]
    try:
        done = subprocess.run(
            [*program, *arguments, CONNECTION],
            env=flower_environment(home, **token),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise connection_error(coordinator, str(error)) from error
    said = done.stdout + done.stderr
    if done.returncode:
        raise connection_error(coordinator, said)
    return said


def run_flwr_json(
    arguments: Sequence[str], coordinator: SuperLinkConnection, *, home: Path
) -> dict[str, Any]:
    """Run the command and parse the JSON in its output."""
    said = run_flwr([*arguments, "--format", "json"], coordinator, home=home)
    try:
        values, _ = json.JSONDecoder().raw_decode(said[said.index("{") :])
    except ValueError:
        raise connection_error(coordinator, said) from None
    if not isinstance(values, dict) or not values.get("success", True):
        raise connection_error(coordinator, said)
    return values


def connection_error(coordinator: SuperLinkConnection, said: str) -> UnseenError:
    """Condense Flower's output to an error of one line."""
    message = re.search(r'"error-message":\s*("(?:[^"\\]|\\.)*")', said)
    lines = (json.loads(message.group(1)) if message else said).splitlines()
    plain = [line.strip(" │╭╮╰╯─") for line in lines]
    reason = next((line for line in reversed(plain) if line), "it gave no reason")
    if "403" in said and coordinator.home is None:
        reason = "it asks for a token; name the folder of `unseen up` with --coordinator"
    trust = "its own CA (--ca)" if coordinator.ca else "no TLS (no --ca)"
    return UnseenError(
        f"the coordinator at {coordinator.address} cannot be reached with {trust}: {reason.split('. ')[0]}"
    )
