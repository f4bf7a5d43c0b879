"""The audit as files: a page that works offline, the same numbers as JSON, and a sheet of pictures.

Page and sheet hold training images; nothing is written outside the folder that was asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unseen.audit import audit_summary as words
from unseen.audit.attack import AttackResult
from unseen.audit.audit import Audit, ProtectionAudit
from unseen.audit.image_grid import first_reconstructions, image_to_base64, write_image_grid
from unseen.audit.reconstruction_score import Reconstruction
from unseen.fileio import write_json, write_text
from unseen.report.markup import Markup, esc, join, section, table, tag
from unseen.report.page import assemble, page_header

KINDS = {"message": "one client's message", "merged": "the merged model"}


def write_audit(audit: Audit, out: Path) -> Path:
    """Write page, numbers and pictures into a folder; return the page."""
    page = out / "audit.html"
    write_json(out / "audit.json", to_json(audit))
    write_image_grid(out / "audit.png", audit)
    write_text(page, audit_page(audit))
    return page


def to_json(audit: Audit) -> dict[str, Any]:
    """All numbers and sentences, no picture."""
    plan, effort = audit.plan, audit.plan.effort
    return {
        "run_id": audit.run_id,
        "data": audit.data,
        "model": audit.config.model,
        "method": audit.config.method,
        "finding": words.headline(audit),
        "run_protection": audit.recorded,
        "inversion": {
            "impossible": audit.impossible,
            "images": plan.images,
            "clients_in_round": audit.in_round,
            "start": plan.at,
            "effort": vars(effort),
            "assumptions": words.assumptions(audit),
            "guess_without_update": {name: guess._asdict() for name, guess in audit.guesses.items()},
            "protections": [_protection_json(each, audit) for each in audit.audited],
            "not_tried": audit.refused,
        },
        "membership": {
            "finding": words.membership_finding(audit.membership),
            **(audit.membership.to_json() if audit.membership else {}),
        },
    }


def _protection_json(audited: ProtectionAudit, audit: Audit) -> dict[str, Any]:
    return {
        "name": audited.name,
        "settings": audited.settings,
        "statement": audited.statement,
        "notes": list(audited.notes),
        "findings": _said(audited, audit),
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
            for one in found.pictures
        ],
    }


def audit_page(audit: Audit) -> str:
    """The page."""
    config = audit.config
    about = [audit.data, config.model, config.method, f"seed {config.seed}", f"run {audit.run_id}"]
    body = join(
        [
            page_header("Privacy audit", esc(words.headline(audit)), about),
            _warning(),
            _overview(audit),
            *(_protection_section(each, audit) for each in audit.audited),
            _refused(audit),
            _membership(audit),
            section("What was assumed", tag("ul", *(tag("li", said) for said in words.assumptions(audit))))
            if not audit.impossible
            else "",
        ]
    )
    return assemble(title=f"Privacy audit: {words.headline(audit)}", body=body, charts={})


def _warning() -> Markup:
    strong = tag("strong", "Contains training images. ")
    return tag("p", strong, words.WARNING, class_="notice", role="note")


def _said(audited: ProtectionAudit, audit: Audit) -> list[str]:
    return words.protection_findings(audited, images=audit.plan.images, in_round=audit.in_round)


def _overview(audit: Audit) -> Markup:
    """All views in one table."""
    if audit.impossible:
        return section("Images rebuilt from updates", tag("p", f"Not tried: {audit.impossible}."))
    rows = []
    for audited in audit.audited:
        for kind, title in KINDS.items():
            attacks = words.attacks_of_kind(audited, kind)
            if attacks:
                found, total, chance = words.count_rebuilt(attacks)
                counted = f"{found} of {total}" + (f" (by chance {chance})" if chance else "")
                rows.append([audited.name, title, counted, *_means(attacks)])
    names = {"random": "random pixels", "average": "an average picture"}
    rows += [
        ["a guess", names[name], "", f"{guess.psnr:.1f}", f"{guess.ssim:.2f}", ""]
        for name, guess in audit.guesses.items()
    ]
    headers = ["protection", "read from", "images rebuilt", "PSNR, dB", "SSIM", "labels read"]
    note = (
        "PSNR and SSIM are means over the images: higher is more alike, and the SSIM of equal pictures is 1. "
        "Guesses were made without any update; an attack that comes no closer has learnt nothing."
    )
    return section(
        "Images rebuilt from updates", table(headers, rows, text_columns=2), tag("p", note, class_="note")
    )


def _means(attacks: list[AttackResult]) -> list[str]:
    pictures = [picture for found in attacks for picture in found.pictures]
    ratio, structure = (
        sum(getattr(one, name) for one in pictures) / len(pictures) for name in ("psnr", "ssim")
    )
    labels = f"{sum(found.labels for found in attacks)} of {len(pictures)}"
    return [f"{ratio:.1f}", f"{structure:.2f}", labels]


def _protection_section(audited: ProtectionAudit, audit: Audit) -> Markup:
    parts: list[Markup] = [tag("p", said) for said in _said(audited, audit)]
    for kind, title in KINDS.items():
        pictures = first_reconstructions(words.attacks_of_kind(audited, kind))
        cards = [card for picture in pictures for card in _cards(picture)]
        if cards:
            parts += [tag("h3", f"From {title}"), tag("div", *cards, class_="examples")]
    told = [audited.statement, *audited.notes]
    parts.append(
        tag("p", " ".join(text if text.endswith(".") else f"{text}." for text in told), class_="note")
    )
    return section(f"Protection: {audited.name}", *parts)


def _cards(picture: Reconstruction) -> list[Markup]:
    """The original, and what the attack made of it beside it."""
    verdict = "✗ rebuilt" if picture.recognised else "✓ not rebuilt"
    place = f"original is no. {picture.place} of {picture.candidates}"
    numbers = f"{picture.psnr:.1f} dB, SSIM {picture.ssim:.2f}"
    frame = "example wrong" if picture.recognised else "example right"
    return [
        _card(picture.original, "original", f"class {picture.label}", picture.client, frame="example right"),
        _card(picture.rebuilt, verdict, numbers, place, frame=frame),
    ]


def _card(image: Any, verdict: str, answer: str, hint: str, *, frame: str) -> Markup:
    drawn = Markup(
        f'<img alt="{esc(verdict)}: {esc(answer)}" src="data:image/png;base64,{image_to_base64(image)}">'
    )
    caption = tag(
        "figcaption",
        tag("span", verdict, class_="verdict"),
        tag("span", answer, class_="answer"),
        tag("span", hint, class_="hint"),
    )
    return tag("figure", drawn, caption, class_=frame)


def _refused(audit: Audit) -> Markup:
    rows = [[name, reason] for name, reason in audit.refused.items()]
    return section("Not tried", table(["protection", "why"], rows, text_columns=2)) if rows else Markup("")


def _membership(audit: Audit) -> Markup:
    found = audit.membership
    said = tag("p", words.membership_finding(found) + ".")
    if found is None:
        return section("Members of the training data", said)
    named = {"AUC (guessing: 0.5)": found.auc, "advantage (guessing: 0)": found.advantage}
    for rate, value in found.found.items():
        named[f"members found at {float(rate):.0%} false alarms (guessing: {float(rate):.0%})"] = value
    grid = table(
        ["", "value", "95 % interval"],
        [[name, f"{each.value:.3f}", f"{each.low:.3f} to {each.high:.3f}"] for name, each in named.items()],
    )
    note = (
        f"The attack takes samples with a small loss for members: {found.members} training samples (mean "
        f"loss {found.member_loss:.4f}) against {found.others} of the same domains that were kept for "
        f"validation and test ({found.other_loss:.4f}). Stronger attacks exist."
    )
    return section("Members of the training data", said, grid, tag("p", note, class_="note"))
