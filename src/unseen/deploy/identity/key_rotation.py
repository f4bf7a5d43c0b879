"""A site's change of its key: the new one is signed with the former one, so the coordinator can accept it.

The file SITE.rotation decides: once it is written, the change is finished at the next start, whatever was
interrupted.
"""

from __future__ import annotations

import base64
import binascii
import json
import shutil
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from unseen.deploy.identity.keys import (
    SiteKey,
    load_private_key,
    read_public_key,
    sign,
    site_key,
    verify_signature,
)
from unseen.deploy.site.ledger_chain import append_new_key
from unseen.errors import UsageError
from unseen.fileio import to_toml, write_text

SUFFIX = ".rotation"
NEXT, RETIRED = "next-key", "retired-keys"


def rotate_key(home: Path, site: str) -> Path:
    """Give a site a new key; return the file with which the coordinator accepts it."""
    finish_rotation(home, site)
    old = SiteKey(home / f"{site}.key", home / f"{site}.pub")
    if not old.private.exists():
        raise UsageError(
            f"{home} has no key of {site} yet, so there is none to change; leave out --rotate-key"
        )
    shutil.rmtree(home / NEXT, ignore_errors=True)
    new, former = site_key(home / NEXT, site), load_private_key(old.private)
    key = read_public_key(new.line)
    signature = base64.b64encode(sign(former, _content(site, former.line, key))).decode()
    path = home / f"{site}{SUFFIX}"
    values = {"site": site, "former": former.line, "key": key, "signature": signature}
    write_text(
        path, f"# A change of this site's key, signed with the former one. No secret.\n{to_toml(values)}"
    )
    finish_rotation(home, site)
    return path


def finish_rotation(home: Path, site: str) -> None:
    """Put a new key into the place of the former one, if a rotation was written and not finished."""
    path = home / f"{site}{SUFFIX}"
    new = SiteKey(home / NEXT / f"{site}.key", home / NEXT / f"{site}.pub")
    current = SiteKey(home / f"{site}.key", home / f"{site}.pub")
    if not (path.exists() and new.private.exists()):
        return
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    if load_private_key(new.private).line != values["key"]:
        return
    if current.private.exists():
        append_new_key(home, values["key"], key=current.private)
        retired = home / RETIRED / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
        retired.mkdir(mode=0o700, parents=True, exist_ok=True)
        if current.public.exists():
            current.public.replace(retired / current.public.name)
        current.private.replace(retired / current.private.name)
    if new.public.exists():
        new.public.replace(current.public)
    new.private.replace(current.private)


def read_rotation(path: Path, *, site: str, known: str) -> str:
    """Return the new key in a rotation of this site; refuse one that the known key did not sign."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        key, signature = str(values["key"]), base64.b64decode(str(values["signature"]), validate=True)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, binascii.Error) as error:
        raise UsageError(
            f"{path} is not a rotation; expected the file of `unseen join --rotate-key`"
        ) from error
    if not verify_signature(known, _content(site, known, key), signature):
        raise UsageError(
            f"{path} is not signed with the key of {site} that is known here; nothing was changed"
        )
    return read_public_key(key)


def _content(site: str, former: str, key: str) -> bytes:
    return json.dumps(["unseen: change of a site's key", site, former, key]).encode()
