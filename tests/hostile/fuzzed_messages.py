"""Messages changed at random places: headers, arrays, and the bytes of Flower's records.

`fuzz` changes a message, `fuzz_record` its form on the wire; both draw from a `Random`, which hypothesis or a
seed drives. `ReplayGrid` answers from memory, so that a round costs no training.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from tiny_sites import LoopbackGrid

from unseen.deploy.flower.message import SiteMessage, from_flower_record, to_flower_record
from unseen.errors import UnseenError

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308, 5e-324),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "\x00", "\x1b[2J\n", "\u202e", "\ud800", "../../x"),
    *("a" * 100_000, [], {}, [[]], {"": None}, [1] * 5000, {"a": {"a": {"a": 1}}}, "NaN", "__class__"),
)


def fuzz(message: SiteMessage, random: Random) -> SiteMessage:
    """Change a message at one to three places."""
    header, arrays = copy.deepcopy(message.header), dict(message.arrays)
    for _ in range(random.randint(1, 3)):
        if arrays and random.random() < 0.5:
            _change_arrays(arrays, random)
        else:
            header = _change_value(header, random)
    return SiteMessage(header, arrays)


def _value(random: Random) -> Any:
    return copy.deepcopy(random.choice(VALUES))


def _change_value(value: Any, random: Random, depth: int = 0) -> Any:
    """Change a JSON value at a random place; at the top it stays an object."""
    if depth and random.random() < 0.3:
        return _value(random)
    if isinstance(value, dict):
        key = random.choice([*value, "zzz"])
        how = random.random()
        if key in value and how < 0.2:
            del value[key]
        elif key in value and how < 0.9:
            value[key] = _change_value(value[key], random, depth + 1)
        else:
            value[random.choice(["zzz", "", "error", "withheld", "b", "\n"])] = _value(random)
        return value
    if isinstance(value, list) and value and random.random() < 0.7:
        place = random.randrange(len(value))
        how = random.random()
        if how < 0.3:
            del value[place]
        elif how < 0.5:
            value.append(copy.deepcopy(value[place]))
        else:
            value[place] = _change_value(value[place], random, depth + 1)
        return value
    return _value(random)


NAMES = ("zzz", "", "a/", "-1/loss", "0/zzz", "a/extras/zzz", "b/weights")
_BITS = np.random.default_rng(0)
ARRAYS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x[:-1] if x.ndim else x[None],
    lambda x: x.ravel()[:0],
    lambda x: x.reshape(-1)[0] if x.size else x,
    lambda x: x[None],
    lambda x: x.reshape(1, *x.shape, 1),
    lambda x: np.concatenate([x.ravel(), x.ravel()]),
    lambda x: x.astype(np.float64),
    lambda x: x.astype(np.float16),
    lambda x: x.astype(np.int64),
    lambda x: x.astype(np.uint8),
    lambda x: x.astype(bool),
    lambda x: x.astype(np.complex64),
    lambda x: x.astype(x.dtype.newbyteorder(">")),
    lambda x: np.array(["x"] * 3),
    lambda x: np.array([b"x" * 9]),
    lambda x: np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    lambda x: np.array(["2026-01-01"], dtype="datetime64[D]"),
    lambda x: np.asfortranarray(x.reshape(2, -1)) if x.size % 2 == 0 and x.size else x,
    lambda x: np.full_like(x, np.nan) if x.dtype.kind == "f" else np.full_like(x, np.iinfo(x.dtype).max),
    lambda x: np.full_like(x, np.inf) if x.dtype.kind == "f" else np.full_like(x, np.iinfo(x.dtype).min),
    lambda x: np.full_like(x, 1e30) if x.dtype == np.float32 else x * 0,
    lambda x: -x if x.dtype.kind in "fi" else x,
    lambda x: np.frombuffer(_BITS.bytes(max(x.nbytes, 0)), dtype=x.dtype).reshape(x.shape),
)


def _change_arrays(arrays: dict[str, Any], random: Random) -> None:
    name = random.choice(list(arrays))
    how = random.random()
    if how < 0.1:
        del arrays[name]
    elif how < 0.2:
        arrays[random.choice(NAMES)] = arrays[name]
    elif how < 0.3:
        arrays[name] = arrays[random.choice(list(arrays))]
    else:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                arrays[name] = np.asarray(random.choice(ARRAYS)(arrays[name]))
            except (ValueError, TypeError):
                arrays[name] = np.zeros(2)


def fuzz_record(message: SiteMessage, random: Random) -> RecordDict:
    """Change what Flower carries: bytes of an array, what it says of them, or the text of the header."""
    record = to_flower_record(message)
    found = record.array_records["arrays"]
    text = str(record.config_records["facts"]["json"])
    how = random.random()
    if found and how < 0.6:
        name = random.choice(list(found))
        array = found[name]
        data = bytearray(array.data)
        what = random.random()
        if what < 0.5 and data:
            for _ in range(random.randint(1, 4)):
                data[random.randrange(min(len(data), 200))] = random.randrange(256)
        elif what < 0.7:
            del data[random.randrange(len(data) + 1) :]
        elif what < 0.8:
            data = bytearray(bytes(data).replace(b"'shape': (", b"'shape': (9999999999,", 1))
        stype = random.choice([array.stype, array.stype, array.stype, "pickle", ""])
        found[name] = Array(array.dtype, tuple(array.shape), stype, bytes(data))
        return record
    if how < 0.9:
        cut = random.randrange(len(text) + 1)
        pieces = text[:cut], text[:cut] + text[cut + 1 :], text + "}"
        text = random.choice([*pieces, "[" * 100_000, "[1]", "null", "1e999"])
        return RecordDict({"arrays": found, "facts": ConfigRecord({"json": text})})
    facts = random.choice([ConfigRecord({}), ConfigRecord({"json": 7}), ConfigRecord({"json": b"{}"})])
    arrays = {"arrays": found} if random.random() < 0.5 else {"zzz": ArrayRecord()}
    return RecordDict({**arrays, "facts": facts})


class ReplayGrid(LoopbackGrid):
    """Sites that answer each kind of question once, and with the same answer afterwards.

    fuzzed  (site, ask) whose answers are changed at random
    limit   number of changed answers, after which all are honest
    counts  changed messages by kind
    """

    def __init__(
        self, *arguments: Any, random: Random, fuzzed: Iterable[tuple[str, str]], limit: int, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.random, self.fuzzed, self.limit = random, set(fuzzed), limit
        self.counts: dict[str, int] = {}
        self.kept: dict[tuple[str, str, tuple[str, ...]], SiteMessage] = {}

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            number = str(len(self._replies))
            ids.append(number)
            site = self.sites[message.metadata.dst_node_id - 100]
            question = from_flower_record(message.content)
            key = site.name, question.header["ask"], tuple(question.header.get("splits", ()))
            if key not in self.kept:
                self.kept[key] = site.answer(question)
            self._replies[number] = _Reply(number, self._content(site.name, key[1], self.kept[key]))
        return ids

    def _content(self, site: str, ask: str, answer: SiteMessage) -> RecordDict:
        if (site, ask) not in self.fuzzed or sum(self.counts.values()) >= self.limit:
            return to_flower_record(answer)
        self.counts[ask] = self.counts.get(ask, 0) + 1
        if self.random.random() < 0.3:
            return fuzz_record(answer, self.random)
        return to_flower_record(fuzz(answer, self.random))

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        return [self._replies.pop(number) for number in list(ids)]


class _Reply:
    def __init__(self, number: str, content: RecordDict) -> None:
        self.content, self.metadata, self.reply_to_message_id = content, self, number

    def has_error(self) -> bool:
        return False


def read_or_refuse(record: RecordDict) -> bool:
    """Read a record; whether it could be read. Any other error than a refusal is the reader's fault."""
    try:
        from_flower_record(record)
    except UnseenError:
        return False
    return True
