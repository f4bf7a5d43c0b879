"""`unseen card`: write, sign and verify the model card of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.console import messages, print_json, results
from unseen.cli.options import AsJson, with_plugins
from unseen.errors import UnseenError, UsageError

if TYPE_CHECKING:
    from unseen.runs.folder import RunFolder


@with_plugins
def card_command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    sign_key: Annotated[
        Path | None,
        typer.Option(help="Sign the card: an Ed25519 key of ssh-keygen, or a key of 'unseen join'."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check signature and files instead of writing.")
    ] = False,
    public_key: Annotated[
        str, typer.Option(help="With --verify: the key that must have signed, as .pub file or line.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write the model card of a run: what the model is for, how good and how sure it is, what left, limits.

    A run writes `model-card.md` and `model-card.json` at its end; this command writes them for older runs,
    again after an audit, and with a signature. The card has the SHA-256 sums of the run's files. The
    signature is in OpenSSH's format, so `ssh-keygen -Y verify` can check it as well.

    Examples:

        unseen card runs/my_run

        unseen card runs/my_run --sign-key ~/.ssh/id_ed25519

        unseen card runs/my_run --verify --public-key them.pub
    """
    from unseen.runs.folder import RunFolder

    if public_key and not verify:
        raise UsageError("--public-key is the key to check against: add --verify")
    if verify and sign_key is not None:
        raise UsageError("--verify writes nothing, and --sign-key signs: give one of them")
    files = RunFolder(run)
    with messages().status("Computing the sums of the run's files"):
        found = _verify(files, public_key) if verify else _write(files, sign_key)
    if as_json:
        print_json(found)
        return
    console = results()
    if verify:
        console.print(f"{found['files']} files are as the card says", soft_wrap=True)
    else:
        console.print(f"Model card: {found['markdown']}\nFor programs: {found['card']}", soft_wrap=True)
    key = f"Signed by {found['key']} ({found['fingerprint']})" if found["signed"] else ""
    console.print(key or "Unsigned: SHA-256 sums only, which find damage", soft_wrap=True, markup=False)


def _write(files: RunFolder, sign_key: Path | None) -> dict[str, Any]:
    from unseen.fileio import write_text
    from unseen.report.model_card import write_model_card

    if sign_key is None:
        if files.card_signature.exists():
            raise UsageError(
                f"the card of {files.path} is signed: give --sign-key to sign the new one as well, or delete "
                f"{files.card_signature.name}"
            )
        written = write_model_card(files.path)
        return {"card": str(written), "markdown": str(files.card_text), "signed": False}
    from unseen.deploy.identity.detached_signature import Signer
    from unseen.deploy.identity.keys import fingerprint

    signer = Signer(sign_key)
    written = write_model_card(files.path, key=signer.line)
    write_text(files.card_signature, signer.sign(written.read_bytes()))
    return {
        "card": str(written),
        "markdown": str(files.card_text),
        "signed": True,
        "signature": str(files.card_signature),
        "key": signer.line,
        "fingerprint": fingerprint(signer.line),
    }


def _verify(files: RunFolder, public_key: str) -> dict[str, Any]:
    from unseen.fileio import read_text
    from unseen.report.model_card import changed_files, read_card

    card, signed = read_card(files.path), files.card_signature.exists()
    if not signed and (public_key or card.get("signature")):
        raise UnseenError(f"{files.card} has no signature: {files.card_signature.name} is missing")
    found: dict[str, Any] = {"signed": signed, "files": len(card["files"])}
    if signed:
        from unseen.deploy.identity.detached_signature import require_signer, verify_detached
        from unseen.deploy.identity.keys import fingerprint

        line = verify_detached(files.card.read_bytes(), read_text(files.card_signature))
        if public_key:
            require_signer(line, public_key)
        found |= {"key": line, "fingerprint": fingerprint(line)}
    if changed := changed_files(files.path, card):
        raise UnseenError(
            f"{files.path}: not as the card says: {', '.join(changed)}; restore them, or write the card "
            "again if the change was meant"
        )
    return found
