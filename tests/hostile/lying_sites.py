"""Lying sites: what a site may send in place of its honest answer, by name.

A lie is a function of the honest answer; `tell` makes the stand-in for Flower use lies in chosen rounds. The
lies are the 62 of the review (FINDINGS, part II, section 3b) and those found since.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tiny_sites import LoopbackGrid

from unseen.deploy.flower.message import SiteMessage

LIAR = "a"
Lie = Callable[[SiteMessage], SiteMessage]


def header(change: Callable[[dict[str, Any]], object]) -> Lie:
    """A lie in the header: `change` works on a copy of it, or returns another."""

    def lie(answer: SiteMessage) -> SiteMessage:
        values = copy.deepcopy(answer.header)
        found = change(values)
        return SiteMessage(found if isinstance(found, dict) else values, answer.arrays)

    return lie


def fact(**facts: Any) -> Lie:
    """A lie in the liar's own numbers."""
    return header(lambda values: values["clients"][LIAR].update(facts))


def array(name: str, change: Callable[[Any], Any]) -> Lie:
    """A lie in one array, added where the honest answer has none."""

    def lie(answer: SiteMessage) -> SiteMessage:
        found = answer.arrays.get(name)
        return SiteMessage(answer.header, {**answer.arrays, name: np.asarray(change(found))})

    return lie


def without(name: str) -> Lie:
    return lambda answer: SiteMessage(
        answer.header, {key: value for key, value in answer.arrays.items() if key != name}
    )


def both(*lies: Lie) -> Lie:
    def lie(answer: SiteMessage) -> SiteMessage:
        for each in lies:
            answer = each(answer)
        return answer

    return lie


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


WEIGHTS = f"{LIAR}/weights"
UPDATES: dict[str, tuple[Lie, str]] = {
    "samples=1e18": (fact(samples=10**18), "its census says"),
    "samples=1e18 and all weights 7": (
        both(fact(samples=10**18), array(WEIGHTS, lambda w: np.full_like(w, 7))),
        "its census says",
    ),
    "samples=-1000": (fact(samples=-1000), "expected a whole number"),
    "samples=0": (fact(samples=0), "its census says"),
    "samples=true": (fact(samples=True), "expected a whole number"),
    "samples='x'": (fact(samples="x"), "expected a whole number"),
    "samples=NaN": (fact(samples=float("nan")), "expected a whole number"),
    "samples=[1,2]": (fact(samples=[1, 2]), "expected a whole number"),
    "samples=infinite": (fact(samples=float("inf")), "expected a whole number"),
    "weights NaN": (array(WEIGHTS, lambda w: w * np.float32("nan")), "NaN"),
    "weights of wrong shape": (array(WEIGHTS, lambda w: w[:-1]), "numbers where the model has"),
    "weights of no dimension": (array(WEIGHTS, lambda w: w[0]), "numbers where the model has"),
    "weights as float64": (array(WEIGHTS, lambda w: w.astype(np.float64)), "float64"),
    "weights as text": (array(WEIGHTS, lambda w: np.array(["x"] * 5)), "type <U1"),
    "weights of another byte order": (array(WEIGHTS, lambda w: w.astype(">f4")), "type >f4"),
    "weights missing": (without(WEIGHTS), "weights are missing"),
    "loss='x'": (fact(loss="x"), "expected a number"),
    "loss=NaN": (fact(loss=float("nan")), "not finite"),
    "loss=1e300": (fact(loss=1e300), "not finite"),
    "seen=-5": (fact(seen=-5), "expected a whole number"),
    "seen=10**400": (fact(seen=10**400), "expected a whole number"),
    "seen=10**6": (fact(seen=10**6), "says that it took"),
    "steps=None": (fact(steps=None), "expected a whole number"),
    "steps=10**9": (fact(steps=10**9), "says that it took"),
    "diagnostics of 1e5 numbers": (fact(diagnostics={"x": [0.5] * 100_000}), "diagnostics"),
    "diagnostics of 1e3 names": (fact(diagnostics={str(i): 1 for i in range(1000)}), "diagnostics"),
    "diagnostics a text": (fact(diagnostics="x"), "diagnostics"),
    "diagnostics 400 deep": (fact(diagnostics={"x": nested(400)}), "diagnostics"),
    "diagnostics of texts": (fact(diagnostics={"x": "<b>"}), "diagnostics"),
    "diagnostics 10**400": (fact(diagnostics={"x": 10**400}), "diagnostics"),
    "diagnostics with a name that breaks lines": (fact(diagnostics={"x\n\x1b[2J": 1}), "unusable name"),
    "versions of others": (header(lambda h: h["versions"].update({"b": 999})), "not its own"),
    "versions missing": (header(lambda h: h.pop("versions") and None), "'versions' is missing"),
    "versions a text": (header(lambda h: h.update(versions="x")), "'versions' is missing"),
    "versions of a later round": (header(lambda h: h["versions"].update({LIAR: 999})), "cannot have"),
    "clients missing": (header(lambda h: h.pop("clients") and None), "'clients' is missing"),
    "clients a list": (header(lambda h: h.update(clients=[1])), "'clients' is missing"),
    "undeclared extras": (array(f"{LIAR}/extras/pixels", lambda _: np.ones(3)), "nobody asked for"),
    "undeclared array": (array("zzz", lambda _: np.ones(3)), "nobody asked for"),
    "array of another client": (array("b/weights", lambda _: np.ones(3)), "nobody asked for"),
    "withheld=5": (fact(withheld=5), "did not say in words"),
    "withheld with escapes": (fact(withheld="\x1b[2J\nfake"), "?[2J?fake"),
    "error with escapes": (lambda _: SiteMessage({"error": "\x1b[2J\nfake"}), "?[2J?fake"),
    "error of a megabyte": (lambda _: SiteMessage({"error": "x" * 10**6}), "xxx ..."),
    "error a list": (lambda _: SiteMessage({"error": [[1]]}), "type list"),
    "layout another": (header(lambda h: h.update(layout=["x"])), "another model"),
    "nothing": (lambda _: SiteMessage({}), "another model"),
}
"""Name -> lie about an update, and what the fault says of it."""


def claim(n: int, shift: int = 0) -> Callable[[Any], Any]:
    return lambda confusion: np.diag(np.full(len(confusion), n)).astype(np.int64) + shift


def extra(kind: str, change: Callable[[Any], Any]) -> Lie:
    return array(f"{LIAR}/extras/{kind}", change)


STEPS, SPECTRA = "number of effective steps", "low-frequency amplitude spectra of images"
EXTRAS: dict[str, tuple[str, Lie, str]] = {
    "few effective steps": ("fednova", extra(STEPS, lambda x: x * 1e-30), "count as"),
    "effective steps missing": ("fednova", without(f"{LIAR}/extras/{STEPS}"), "did not send"),
    "samples of others": ("copa", extra("number of samples by domain", lambda x: x[::-1]), "per domain"),
    "class counts of other samples": ("mdfl", extra("class counts", lambda x: x * 2), "class counts"),
    "class counts missing": ("mdfl", without(f"{LIAR}/extras/class counts"), "alone"),
    "labels out of range": ("fedavg-share", extra("labels", lambda x: x + 99), "outside of 0"),
    "control too short": ("scaffold", extra("change of the control variate", lambda x: x[:-1]), "shape"),
    "spectra of nothing": ("feddg", extra(SPECTRA, lambda x: x[:0]), "spectra"),
}
"""Name -> method, lie about what it sends beside the weights, and what the fault says."""

CONFUSION, LOSS = "0/confusion", "0/loss"
SUMS: dict[str, tuple[Lie, str]] = {
    "all right, 1e15 samples": (array(CONFUSION, claim(10**15)), "outside of 0 to"),
    "negative counts": (array(CONFUSION, lambda c: -c), "outside of 0 to"),
    "counts that overflow to the right sum": (array(CONFUSION, claim(2**62)), "outside of 0 to"),
    "all zero": (array(CONFUSION, lambda c: c * 0), "the census says"),
    "other samples per class": (array(CONFUSION, lambda c: c[::-1]), "samples per class"),
    "counts as NaN": (array(CONFUSION, lambda c: c * np.nan), "expected torch.int64"),
    "loss missing": (without(LOSS), "shape"),
    "loss NaN": (array(LOSS, lambda x: x * np.nan), "not finite"),
    "loss of another shape": (array(LOSS, lambda x: np.ones((2, 2))), "shape"),
    "another set": (array("7/loss", lambda _: np.ones(1)), "nobody asked for"),
    "a negative set": (array("-1/loss", lambda _: np.ones(1)), "nobody asked for"),
    "an unknown metric": (array("0/extra:zzz", lambda _: np.ones(1)), "no metric has"),
    "nothing": (lambda _: SiteMessage({}), "shape"),
}
"""Name -> lie about an evaluation of a held-out site, and what the fault says of it."""

CENSUS: dict[str, tuple[Lie, str]] = {
    "counts 1e12": (header(lambda h: h["counts"].update(x=10**12)), "its counts"),
    "counts negative": (header(lambda h: h["counts"].update(x=-3)), "its counts"),
    "counts of other classes": (header(lambda h: h["counts"].update(q=3)), "its counts"),
    "counts a list": (header(lambda h: h.update(counts=[1])), "its counts"),
    "no sample": (header(lambda h: h.update(counts={})), "its counts"),
    "shape huge": (header(lambda h: h.update(shape=[3, 10**6, 10**6])), "its shape"),
    "shape negative": (header(lambda h: h.update(shape=[-1, 8, 8])), "its shape"),
    "shape of many sides": (header(lambda h: h.update(shape=[1] * 40)), "its shape"),
    "classes not texts": (header(lambda h: h.update(classes=[["x"]])), "its classes"),
    "classes twice": (header(lambda h: h.update(classes=["x", "x"])), "its classes"),
    "classes that break lines": (header(lambda h: h.update(classes=["x\n\x1b[2J"])), "its classes"),
    "a million classes": (
        header(lambda h: h.update(classes=[str(i) for i in range(10**5 + 1)])),
        "its classes",
    ),
    "task unknown": (header(lambda h: h.update(task="x" * 10**6)), "its task"),
    "fingerprint of 10 MB": (header(lambda h: h.update(fingerprint="x" * 10**7)), "its fingerprint"),
    "measured a text": (header(lambda h: h.update(measured="yes")), "its measured"),
    "name ../../x": (header(lambda h: h.update(site="../../x")), "no usable name"),
    "name that breaks lines": (header(lambda h: h.update(site="a\n\x1b[2J")), "no usable name"),
    "nothing": (lambda _: SiteMessage({}), "no usable name|unusable summary"),
}
"""Name -> lie about a site's data before the run, and why it is turned away."""

SHARED = {"masked": f"{LIAR}/extras/masked numbers", "what": f"{LIAR}/extras/what the masked numbers are"}


def as_bytes(value: object) -> Any:
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


SEALED: dict[str, tuple[str, Lie, str]] = {
    "consult without versions": ("advertise", header(lambda h: h.pop("versions") and None), "'versions'"),
    "consult without refusals": ("advertise", header(lambda h: h.update(refusals=3)), "'refusals'"),
    "public key of 3 bytes": ("advertise", array(f"{LIAR}/public keys", lambda k: k[:3]), "shape"),
    "public key all zero": ("advertise", array(f"{LIAR}/public keys", lambda k: k * 0), "nobody can agree"),
    "public key missing": ("advertise", without(f"{LIAR}/public keys"), "public keys"),
    "undeclared key": ("advertise", array(f"{LIAR}/zzz", lambda _: np.ones(1)), "nobody asked for"),
    "refusal with escapes": ("advertise", header(lambda h: h.update(refusals={LIAR: "\x1b\n"})), "??"),
    "masked row too short": ("train", array(SHARED["masked"], lambda m: m[:-1]), "masked numbers"),
    "masked row missing": ("train", without(SHARED["masked"]), "did not send its masked numbers"),
    "contents missing": ("train", without(SHARED["what"]), "did not send its masked numbers"),
    "contents garbage": ("train", array(SHARED["what"], lambda _: np.full(9, 123, np.uint8)), "unreadable"),
    "contents of another kind": (
        "train",
        array(SHARED["what"], lambda _: as_bytes([{"kind": "zzz", "shape": [1], "type": "float32"}])),
        "nobody asked for",
    ),
    "contents type=__class__": (
        "train",
        array(SHARED["what"], lambda _: as_bytes([{"kind": "zzz", "shape": [1], "type": "__class__"}])),
        "unreadable",
    ),
    "weights beside the masked row": (
        "train",
        array(WEIGHTS, lambda _: np.ones(3, np.float32)),
        "in the clear",
    ),
}
"""Name -> step of secure summation, lie in it, and what the fault says."""


def tell(grid: LoopbackGrid, lies: Mapping[int, Lie], *, ask: str, site: str = LIAR) -> None:
    """Let a site tell the lie of each round (an evaluation counts as its round) in its answers to `ask`."""
    evaluations = [0]

    def spoil(name: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        if name != site or question.header["ask"] != ask:
            return answer
        number = question.header.get("round", 0)
        if ask == "evaluate":
            evaluations[0] += 1
            number = evaluations[0]
        return lies[number](answer) if number in lies else answer

    grid.spoil = spoil
