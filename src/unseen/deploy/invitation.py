"""The invitation: a small file, without any secret, by which a site finds and recognizes its coordinator."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from unseen.deploy.safe_names import require_safe_name
from unseen.errors import UsageError
from unseen.fileio import write_text

SUFFIX = ".invitation"
_TEXT = """\
# An invitation to train with Unseen. It contains no secret. At the site, next to its data:
#     unseen join {file} --data FOLDER
site = {site}
coordinator = {address}
ca = '''
{ca}'''
"""


@dataclass(frozen=True)
class Invitation:
    """The site's name, the coordinator's address (host:port) and its CA certificate (PEM)."""

    site: str
    address: str
    ca: str

    def save(self, path: Path) -> None:
        """Write the file."""
        values = {"site": json.dumps(self.site), "address": json.dumps(self.address), "ca": self.ca}
        write_text(path, _TEXT.format(file=path.name, **values))

    @classmethod
    def load(cls, path: Path) -> Invitation:
        """Read the file."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
            found = cls(*(str(values[name]) for name in ("site", "coordinator", "ca")))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError) as error:
            raise UsageError(
                f"{path} is not an invitation; expected the file of `unseen invite SITE`"
            ) from error
        require_site_name(found.site)
        if "BEGIN CERTIFICATE" not in found.ca or not re.fullmatch(r".+:\d+", found.address):
            raise UsageError(f"{path} is incomplete; ask the coordinator for another (`unseen invite`)")
        return found


def require_site_name(site: str) -> str:
    """Check that a name can serve as file name and domain name."""
    return require_safe_name(site, "a site")
