"""Methods of a notebook's cell: run again, refused where names collide, and known to worker processes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading

import pytest

from unseen.errors import UsageError
from unseen.hparams import SAME, Settings, setting, unstated_settings
from unseen.methods import METHODS
from unseen.registry import SESSION, Registry
from unseen.session_parts import find_session_parts, pickle_by_value

CELL = """
from dataclasses import dataclass
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods import METHODS, Method, register

SHRINK = {shrink}

def shrink(weights, by):
    return weights * by * SHRINK

@dataclass(frozen=True)
class MineSettings(Settings):
    by: float = setting(1.0, "factor of every round's weights", search=LogUniform(0.1, 1.0))

@register
class Mine(Method[MineSettings]):
    name, summary = "mine", "the mean, made smaller"
    fixed_weights = ""

    def server(self, work):
        assert "mine" in METHODS
        return shrink(work.updates.mean(work.updates.samples), self.settings.by)
"""
SHORT = "hold_out='75', rounds=1, batch_size=16, batches_per_epoch=1"


def run_cells(*cells, folder):
    """Run cells as a notebook does: one after another in a `__main__` that is no file."""
    code = "\n".join(f"exec(compile({cell!r}, '<cell>', 'exec'), globals())" for cell in cells)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


def test_a_cell_run_again_replaces_its_method_also_in_workers(tmp_path):
    cell = "\n".join(
        [
            "import unseen",
            "def loss(workers):",
            f"    return unseen.train('rotated-digits', method='mine', {SHORT}, workers=workers).metrics",
        ]
    )
    same = "first = loss(1); print(first == loss(2))"
    done = run_cells(
        CELL.format(shrink=1.0), cell, same, CELL.format(shrink=0.0), same, "print(first)", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["True", "True"]
    assert "0.1" in done.stdout.splitlines()[2], "weights of zero always predict the first class"


def test_settings_survive_the_way_to_a_worker(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Own(Settings):
        given: float = setting(0.5, "a number")
        later: float = setting(1.0, "a number", formerly=2.0)

    import pickle

    Own.__module__ = SESSION
    copied = pickle.loads(pickle_by_value(Own, what="settings"))
    (given, _) = dataclasses.fields(copied)
    assert given.default_factory is dataclasses.MISSING and given.metadata["formerly"] is SAME
    assert unstated_settings(copied) == {"given": 0.5, "later": 2.0}
    assert pickle.loads(pickle_by_value(METHODS, what="registry")) is METHODS


def test_what_cannot_be_sent_says_so_in_one_line():
    lock = threading.Lock()

    def method():
        return lock

    with pytest.raises(UsageError, match=r"method 'mine' cannot be sent .*lock.*workers=1"):
        pickle_by_value(method, what="method 'mine'")


def test_a_part_that_is_not_needed_does_not_stop_a_run_and_one_that_is_says_why(tmp_path):
    locked = (
        "import threading, unseen\nLOCK = threading.Lock()\n"
        "class Locked(METHODS['mine']):\n    name = 'locked'\n"
        "    def client(self, work):\n        with LOCK:\n            return super().client(work)\n"
        "register(Locked)"
    )
    train = f"unseen.train('rotated-digits', method='{{}}', {SHORT}, workers=2).metrics"
    use = f"\ntry:\n    {train.format('locked')}\nexcept unseen.errors.UsageError as error:\n    print(error)"
    done = run_cells(CELL.format(shrink=1.0), locked, train.format("mine"), use, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "locked cannot be sent to worker processes" in line


def entries(home, *, kind="part"):
    """A registry with one entry, registered by code of the module `home`."""
    registry = Registry(kind, group="unseen.none")
    code = "def part():\n    return 1\nregistry.register('x')(part)"
    again = compile(code, "<cell>", "exec")
    exec(again, {"__name__": home, "registry": registry})
    return registry, again


@pytest.mark.parametrize("home", [SESSION, "some_package.module"])
def test_a_definition_run_again_replaces_itself(home):
    registry, again = entries(home)
    first = registry["x"]
    exec(again, {"__name__": home, "registry": registry})
    assert registry["x"] is not first


@pytest.mark.parametrize(("home", "other"), [("one", "two"), ("one", SESSION), (SESSION, "one")])
def test_two_owners_of_one_name_are_refused(home, other):
    registry, again = entries(home)
    with pytest.raises(UsageError, match=f"part 'x' is registered by {home} already; .*{other} another name"):
        exec(again, {"__name__": other, "registry": registry})


def test_a_session_cannot_take_the_name_of_a_method_of_ours():
    cell = "class Mine(METHODS['fedavg']):\n    name = 'fedavg'\nregister(Mine)"
    from unseen.methods import register

    with pytest.raises(UsageError, match=r"registered by unseen\.methods\.fedavg already"):
        exec(cell, {"__name__": SESSION, "METHODS": METHODS, "register": register})


def test_nothing_of_ours_is_sent():
    parts = find_session_parts()
    assert not any(module.startswith("unseen") for module in parts.modules)
