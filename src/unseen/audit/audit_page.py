"""The audit as files: a page that works offline, the same numbers as JSON, and a grid of images.

Page and grid contain training images; nothing is written outside the requested folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unseen.audit import audit_summary as summary
from unseen.audit.attack import AttackResult
from unseen.audit.audit import Audit, ProtectionAudit
from unseen.audit.audit_summary import attacks_of_kind
from unseen.audit.membership import Membership
from unseen.audit.reconstruction_score import Reconstruction
from unseen.fileio import write_atomically, write_json, write_text
from unseen.report.page import DataTable, ImageCard, render_page
from unseen.report.png import encode_png, to_pil

MOST_COLUMNS = 8
"""Images in one row."""
_SIDE, _GAP, _LABELS, _LINE = 72, 6, 190, 16


def image_to_base64(image: Tensor) -> str:
    """Encode one image on the scale 0..1 as a PNG file in base64."""
    return encode_png(_pixels(image))


def first_reconstructions(attacks: Sequence[AttackResult]) -> list[Reconstruction]:
    """Return the reconstructions of some attacks, as many as fit in one row."""
    return [one for found in attacks for one in found.reconstructions][:MOST_COLUMNS]


def write_image_grid(path: Path, audit: Audit) -> None:
    """Write the originals in the first row, then a row per protection and view."""
    rows: list[tuple[list[str], list[Tensor], list[str]]] = []
    originals: list[Reconstruction] = []
    for audited in audit.audited:
        for kind, title in (("message", "one message"), ("merged", "merged model")):
            images = first_reconstructions(attacks_of_kind(audited, kind))
            if images:
                scores = [f"{one.psnr:.1f} dB, {one.ssim:.2f}" for one in images]
                rows.append(([audited.name, title], [one.rebuilt for one in images], scores))
                originals = max(originals, images, key=len)
    if not rows:
        return
    first = [one.original for one in originals], [one.label for one in originals]
    rows.insert(0, (["originals", "class"], *first))
    write_atomically(path, lambda target: _draw(rows).save(target, format="PNG"))


def _draw(rows: Sequence[tuple[list[str], list[Tensor], list[str]]]) -> Any:
    from PIL import Image, ImageDraw

    columns = max(len(images) for _, images, _ in rows)
    step = _SIDE + _GAP + 14
    sheet = Image.new("RGB", (_LABELS + columns * step, len(rows) * (_SIDE + _LINE + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (title, images, below) in enumerate(rows):
        top = _GAP + number * (_SIDE + _LINE + _GAP)
        draw.text((_GAP, top + 20), "\n".join(title), fill="black")
        for column, (image, text) in enumerate(zip(images, below, strict=True)):
            left = _LABELS + column * step
            shown = to_pil(_pixels(image)).convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
            sheet.paste(shown, (left, top))
            draw.text((left, top + _SIDE + 2), text, fill="black")
    return sheet


def _pixels(image: Tensor) -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = image.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).numpy()
    return pixels


KINDS = {"message": "one client's message", "merged": "the merged model"}


def write_audit(audit: Audit, out: Path) -> Path:
    """Write page, numbers and images into a folder; return the page."""
    page = out / "audit.html"
    write_json(out / "audit.json", to_json(audit))
    write_image_grid(out / "audit.png", audit)
    write_text(page, audit_page(audit))
    return page


def to_json(audit: Audit) -> dict[str, Any]:
    """Return all numbers and sentences, without images."""
    plan, effort = audit.plan, audit.plan.effort
    return {
        "run_id": audit.run_id,
        "data": audit.data,
        "model": audit.config.model,
        "method": audit.config.method,
        "finding": summary.headline(audit),
        "run_protection": audit.recorded,
        "inversion": {
            "impossible": audit.impossible,
            "images": plan.images,
            "clients_in_round": audit.in_round,
            "start": plan.at,
            "effort": vars(effort),
            "assumptions": summary.assumptions(audit),
            "guess_without_update": {name: guess._asdict() for name, guess in audit.guesses.items()},
            "protections": [_protection_json(each, audit) for each in audit.audited],
            "not_tried": audit.refused,
        },
        "protocol": [vars(each) for each in audit.protocol],
        "membership": {
            "finding": summary.membership_finding(audit.membership),
            **(audit.membership.to_json() if audit.membership else {}),
        },
    }


def _protection_json(audited: ProtectionAudit, audit: Audit) -> dict[str, Any]:
    return {
        "name": audited.name,
        "settings": audited.settings,
        "statement": audited.statement,
        "notes": list(audited.notes),
        "findings": _findings(audited, audit),
        "views": [_view_json(found) for found in audited.attacks],
    }


def _view_json(found: AttackResult) -> dict[str, Any]:
    return {
        "view": found.view.kind,
        "clients": list(found.view.clients),
        "readable": found.view.readable,
        "rebuilt": found.recognised,
        "rebuilt_by_chance": found.by_chance,
        "labels_read": found.labels,
        "mismatch": found.mismatch,
        "images": [
            {
                "client": one.client,
                "psnr": round(one.psnr, 2),
                "ssim": round(one.ssim, 4),
                "place": one.place,
                "candidates": one.candidates,
                "rebuilt": one.recognised,
            }
            for one in found.reconstructions
        ],
    }


def audit_page(audit: Audit) -> str:
    """Render the page."""
    config, headline = audit.config, summary.headline(audit)
    refused = [[name, reason] for name, reason in audit.refused.items()]
    return render_page(
        "audit.html.j2",
        package="unseen.audit",
        title=f"Privacy audit: {headline}",
        charts={},
        headline=headline,
        about=[audit.data, config.model, config.method, f"seed {config.seed}", f"run {audit.run_id}"],
        warning=summary.WARNING,
        impossible=audit.impossible,
        overview=_overview(audit),
        protections=[_protection_context(each, audit) for each in audit.audited],
        refused=DataTable(["protection", "why"], refused, text_columns=2),
        protocol=_protocol_table(audit),
        membership=_membership_context(audit.membership),
        assumptions=[] if audit.impossible else summary.assumptions(audit),
    )


def _protocol_table(audit: Audit) -> DataTable:
    """List the attacks on the protocol with their verdicts."""
    rows = [
        [f"{each.finding}: {each.attack}", each.protection, each.verdict, each.sentence]
        for each in audit.protocol
    ]
    return DataTable(["attack", "protection", "verdict", "what was seen"], rows, text_columns=4)


def _findings(audited: ProtectionAudit, audit: Audit) -> list[str]:
    return summary.protection_findings(audited, images=audit.plan.images, in_round=audit.in_round)


def _overview(audit: Audit) -> DataTable:
    """Summarize all views in one table, and the guesses that were made without an update."""
    rows = []
    for audited in audit.audited:
        for kind, title in KINDS.items():
            attacks = summary.attacks_of_kind(audited, kind)
            if attacks:
                rows.append([audited.name, title, str(summary.count_rebuilt(attacks)), *_means(attacks)])
    names = {"random": "random pixels", "average": "an average image"}
    rows += [
        ["a guess", names[name], "", f"{guess.psnr:.1f}", f"{guess.ssim:.2f}", ""]
        for name, guess in audit.guesses.items()
    ]
    headers = ["protection", "read from", "images rebuilt", "PSNR, dB", "SSIM", "labels read"]
    return DataTable(headers, rows, text_columns=2)


def _means(attacks: list[AttackResult]) -> list[str]:
    images = [one for found in attacks for one in found.reconstructions]
    ratio, structure = (sum(getattr(one, name) for one in images) / len(images) for name in ("psnr", "ssim"))
    labels = f"{sum(found.labels for found in attacks)} of {len(images)}"
    return [f"{ratio:.1f}", f"{structure:.2f}", labels]


def _protection_context(audited: ProtectionAudit, audit: Audit) -> dict[str, Any]:
    """Collect one protection's findings and images for the template."""
    shown = {
        title: first_reconstructions(summary.attacks_of_kind(audited, kind)) for kind, title in KINDS.items()
    }
    texts = [audited.statement, *audited.notes]
    return {
        "name": audited.name,
        "findings": _findings(audited, audit),
        "cards": {
            title: [card for one in images for card in _cards(one)]
            for title, images in shown.items()
            if images
        },
        "statement": " ".join(text if text.endswith(".") else f"{text}." for text in texts),
    }


def _cards(one: Reconstruction) -> list[ImageCard]:
    """Return the original followed by the attack's reconstruction."""
    label = f"class {one.label}"
    verdict = "✗ rebuilt" if one.recognised else "✓ not rebuilt"
    numbers = f"{one.psnr:.1f} dB, SSIM {one.ssim:.2f}"
    return [
        ImageCard(
            image_to_base64(one.original), f"original: {label}", "original", label, one.client, right=True
        ),
        ImageCard(
            png=image_to_base64(one.rebuilt),
            alt=f"{verdict}: {numbers}",
            verdict=verdict,
            answer=numbers,
            hint=f"original is no. {one.place} of {one.candidates}",
            right=not one.recognised,
        ),
    ]


def _membership_context(found: Membership | None) -> dict[str, Any]:
    """Collect the membership test for the template; only its finding where there was no test."""
    finding = summary.membership_finding(found)
    if found is None:
        return {"finding": finding, "table": None, "note": ""}
    named = {"AUC (guessing: 0.5)": found.auc, "advantage (guessing: 0)": found.advantage}
    for rate, value in found.found.items():
        named[f"members found at {float(rate):.0%} false alarms (guessing: {float(rate):.0%})"] = value
    rows = [[name, f"{each.value:.3f}", f"{each.low:.3f} to {each.high:.3f}"] for name, each in named.items()]
    note = (
        f"The attack takes samples with a small loss for members: {found.members} training samples (mean "
        f"loss {found.member_loss:.4f}) against {found.others} of the same domains that were kept for "
        f"validation and test ({found.other_loss:.4f}). Stronger attacks exist."
    )
    return {"finding": finding, "table": DataTable(["", "value", "95 % interval"], rows), "note": note}
