"""A model card as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unseen.printable import printable
from unseen.report.formatting import (
    NOTHING,
    SPACE,
    format_bytes,
    format_count,
    format_duration,
    format_value,
    is_number,
    join_names,
    method_name,
)
from unseen.tasks import metric_label

MOST_CLASSES = 30


def card_markdown(card: Mapping[str, Any]) -> str:
    """Write the card for people."""
    parts = {
        f"Model card: {_text(card['model']['model'])}, run {_text(card['model']['run_id'])}": [
            _summary(card)
        ],
        "What it is for": _purpose(card),
        "How good it is": _results(card),
        "How sure it is": _calibration(card),
        "What left each client": _disclosures(card),
        "Protection": _protection(card),
        "Limits": [_bullets(_text(each) for each in card["limits"])],
        "Energy": _energy(card["energy"]),
        "Versions and files": _origin(card),
    }
    first, *others = parts.items()
    sections = [
        f"# {first[0]}",
        *first[1],
        *(line for title, body in others for line in (f"## {title}", *body)),
    ]
    return "\n\n".join(sections) + "\n"


def _summary(card: Mapping[str, Any]) -> str:
    model = card["model"]
    size = f" with {format_count(model['parameters'])} trained parameters" if model["parameters"] else ""
    return (
        f"{_text(model['model'])}{size}, trained by {_text(method_name(model['method']))} "
        f"({_text(model['trained'] or 'time not recorded')}), seed {model['seed']}."
    )


def _purpose(card: Mapping[str, Any]) -> list[str]:
    data, classes = card["data"], [_text(name) for name in card["model"]["classes"]]
    held = [_text(name) for name in data["held_out"]]
    shown = ", ".join(classes[:MOST_CLASSES]) + (" and others" if len(classes) > MOST_CLASSES else "")
    task = f"tells {len(classes)} classes apart: {shown}" if classes else "predicts a quantity"
    rows = [[_text(name), format_count(count)] for name, count in data["sources"].items()]
    shape = [str(size) for size in card["model"]["input_shape"] or ["not recorded"]]
    entry = f"{shape[0]} numbers per row" if len(shape) == 1 and shape[0].isdigit() else " x ".join(shape)
    lines = [f"It {task}. Input: {entry}."]
    lines.append(
        f"It was trained on {_text(data['name'])} and is meant for data like that of its sources. Whether it "
        f"also works elsewhere was tested on {join_names(held)}, which it was not trained on."
        if held
        else f"It was trained on {_text(data['name'])}; no domain was held out."
    )
    return [*lines, _table(["source", "samples"], rows)]


def _results(card: Mapping[str, Any]) -> list[str]:
    metrics = card["metrics"]
    name, held_out = metrics["name"], metrics["held_out_domains"]
    names = [name, *(("rmse",) if any("rmse" in found for found in held_out.values()) else ())]

    def line(label: str, samples: object, found: Mapping[str, Any]) -> list[str]:
        return [label, format_count(samples), *(format_value(found.get(each), each) for each in names)]

    rows = [
        line(f"{_text(domain)} (held out)", found["samples"], found) for domain, found in held_out.items()
    ]
    for part, label in (("in_domain", "test"), ("source_validation", "validation")):
        if metrics[part]:
            rows.append(line(f"{label} data of the sources", None, metrics[part]))
    lines = [_table(["data", "samples", *map(metric_label, names)], rows)]
    for part, what in (("worst_domain", "domain"), ("worst_group", "group")):
        if worst := metrics[part]:
            lines.append(f"Worst {what}: {_text(worst[what])}, {format_value(worst.get(name), name)}. ")
    rule, number = _text(card["model"]["selection"]), card["model"]["selected_round"]
    return [*(line.strip() for line in lines), f"The model of round {number} was kept, chosen by {rule}."]


def _calibration(card: Mapping[str, Any]) -> list[str]:
    found, coverage = card["calibration"], card["coverage"]
    if not found:
        return ["Not calibrated, or not recorded by the version that trained it."]
    kind, lines = found["scaling"]["kind"], []
    what = (
        f"Probabilities were scaled ({_text(kind)})" if card["model"]["classes"] else "Intervals were fitted"
    )
    lines.append(f"{what} on validation samples of {_text(', '.join(found['sources']))}.")
    if reliable := found.get("target"):
        rows = [
            [label, *(show(reliable[when].get(key)) for when in ("before", "after"))]
            for key, label, show in (
                ("ece", "ECE", _percent),
                ("brier", "Brier score", format_value),
                ("nll", "NLL", format_value),
            )
        ]
        lines.append(_table(["on held-out data", "before", "after"], rows))
    if coverage:
        rows = [
            [
                _text(domain),
                _percent(coverage["promise"]),
                _percent(each["coverage"]),
                format_value(each["size"]),
            ]
            for domain, each in coverage["held_out_domains"].items()
        ]
        lines.append(_table(["held-out domain", "promised on the sources", "covered", "mean size"], rows))
        lines.append(
            f"Score {_text(coverage['score'])}, rule {_text(coverage['rule'])}. On a domain that was not "
            "trained on, coverage is measured, not promised."
        )
    return lines


def _disclosures(card: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            _text(line.get("kind", "")),
            _text(line.get("protected", "")),
            format_count(line.get("senders")),
            format_count(line.get("messages")),
            format_bytes(line.get("bytes")),
        ]
        for line in card["left"]
    ]
    headers = ["what", "how it was protected", "senders", "messages", "in all"]
    return [_table(headers, rows, texts=2) if rows else "Not recorded."]


def _protection(card: Mapping[str, Any]) -> list[str]:
    found, audit = card["protection"] or {}, card["audit"]
    if not found:
        lines = ["Not recorded."]
    else:
        numbers = {key: value for key, value in found.items() if key not in ("name", "statement")}
        epsilon = found.get("epsilon")
        lines = [f"{_text(found.get('name'))}: {_text(found.get('statement'))}"]
        if numbers:
            lines.append(_bullets(f"{_text(key)}: {_text(value)}" for key, value in numbers.items()))
        if not is_number(epsilon):
            lines.append("No epsilon: nothing bounds what the model reveals of single samples or clients.")
    if audit is None:
        return [*lines, "No audit was found with the run."]
    return [*lines, f"Audit: {_text(audit['finding'])}.", f"Membership: {_text(audit['membership'])}."]


def _energy(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return ["Not recorded."]
    amount = f"{found['kwh']:.3g}{SPACE}kWh ({found['joules']:.3g}{SPACE}J)"
    assumed = (
        f"{format_duration(found['cpu_seconds'])} of processor time at an assumed "
        f"{found['watts_per_core']:g}{SPACE}W per busy core, not measured"
    )
    how = {
        "measured": "measured by the processor's counters (RAPL), which also count whatever else ran",
        "estimated": f"estimated: {assumed}",
        "partly measured": f"partly measured by the processor's counters, for the rest estimated ({assumed})",
    }[found["how"]]
    lost = "" if found["known"] else " Of some starts of the run the use is unknown."
    return [
        f"{amount}, {how}. Starts of the run: {found['starts']}. Covers {found['covers']}; no graphics card, "
        f"no network, no cooling.{lost}"
    ]


def _origin(card: Mapping[str, Any]) -> list[str]:
    trained, written = card["versions"]["trained_with"], card["versions"]["card_written_with"]
    files = [[f"`{_text(name)}`", f"`{_text(digest)}`"] for name, digest in card["files"].items()]
    signature = card["signature"]
    said = (
        f"Signed: `{signature['file']}` is a detached signature of `model-card.json`, which has the sum of "
        f"this file too. Key: `{_text(signature['key'])}`."
        if signature
        else "Unsigned: the sums find damage, but whoever changes a file can change them too."
    )
    return [
        f"Trained with Unseen {_text(trained['unseen'] or 'of an unknown version')}; card written with "
        + ", ".join(f"{_text(name)} {_text(number)}" for name, number in written.items())
        + ".",
        _table(["file", "SHA-256"], files, texts=2),
        said,
    ]


def _percent(value: object) -> str:
    return f"{100 * value:.1f}{SPACE}%" if is_number(value) else NOTHING


def _bullets(texts: Any) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> str:
    ruler = [":--" if place < texts else "--:" for place in range(len(headers))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (headers, ruler, *rows))


SPECIAL = str.maketrans({sign: f"\\{sign}" for sign in "\\|*_[]#`"} | {"<": "&lt;"})


def _text(value: object) -> str:
    """Make a name or sentence safe: on one line, and never read as Markdown or HTML."""
    return printable(value if isinstance(value, str) else str(value), longest=2000).translate(SPECIAL)
