"""What a live page is told: little when nothing is new, everything when something is, texts escaped."""

from __future__ import annotations

import json

import pytest
from made_records import NASTY, append, one_round, write_live_run

from unseen.errors import UsageError
from unseen.fileio import is_locked, locked
from unseen.live.followed_folder import find_source
from unseen.live.live_view import NewsDesk
from unseen.live.record_tail import RecordTail
from unseen.live.run_source import RunSource, seconds_left
from unseen.runs.folder import RunFolder


def desk(folder):
    return NewsDesk(find_source(folder))


def chart_rows(chart):
    return [row for rows in chart["datasets"].values() for row in rows]


def renew(page):
    """Forget the rest that a desk takes after it has drawn charts."""
    page._rests_until = 0.0


def test_a_page_without_news_is_told_only_that(running_run):
    page = desk(running_run)
    first = page.news()
    assert set(first) == {"version", "state", "age", "title", "parts", "charts"}
    assert first["version"].partition(".")[0] == str((running_run / "records.jsonl").stat().st_size)
    renew(page)
    assert set(page.news(first["version"])) == {"version", "state", "age"}


def test_new_records_are_shown_and_nothing_is_read_twice(running_run):
    page = desk(running_run)
    first = page.news()
    assert "chart-scores-1" in first["charts"]
    assert "rounds so far" in first["parts"]["tiles"]
    read = page.source.tail.records[:]
    append(running_run, *one_round(4))
    renew(page)
    news = page.news(first["version"])
    assert "after 4 rounds" in news["title"]
    assert len(page.source.tail.records) == len(read) + 2
    assert all(old is new for old, new in zip(read, page.source.tail.records, strict=False))
    assert {row["round"] for row in chart_rows(news["charts"]["chart-loss-1"])} == {1, 2, 3, 4}


def test_the_tiles_say_what_would_be_kept_and_how_long_it_takes(running_run):
    tiles = desk(running_run).news()["parts"]["tiles"]
    assert "round 3" in tiles
    assert "about 21\u00a0s" in tiles, "7 rounds of 3 s"


def test_the_time_left_counts_evaluations_of_those_rounds_only():
    rounds = [{"round": number, "seconds": 100.0 if number < 5 else 2.0} for number in range(1, 15)]
    evaluations = [{"round": number, "seconds": 5.0} for number in (2, 10)]
    assert seconds_left(rounds, evaluations, planned=24) == pytest.approx(10 * 2.5)
    assert seconds_left([], [], planned=24) is None
    assert seconds_left(rounds, evaluations, planned=None) is None


def test_states_follow_the_lock_and_the_result(tmp_path):
    folder = write_live_run(tmp_path / "run")
    source = RunSource(folder)
    source.look()
    assert source.state == "stopped"
    with locked(RunFolder(folder).lock, place=folder):
        source.look()
        assert source.state == "running"
    (folder / "result.json").write_text(json.dumps({"held_out": ["held"], "rounds": 3, "metrics": {}}))
    source.look()
    assert source.state == "finished"


def test_asking_whether_a_folder_is_locked_turns_nobody_away(tmp_path):
    lock = tmp_path / "lock"
    assert not is_locked(lock)
    with locked(lock, place=tmp_path):
        assert is_locked(lock)
        assert is_locked(lock)
    assert not is_locked(lock)
    with locked(lock, place=tmp_path):
        pass


def test_a_finished_run_shows_its_result_and_a_link(serve_page, tmp_path):
    folder = write_live_run(tmp_path / "run", planned=3)
    result = {"held_out": ["held"], "rounds": 3, "task": "classification", "selected_round": 3, "seed": 0,
              "selection": "source-validation", "metrics": {"target": {"accuracy": 0.75}}}  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    news = serve_page(folder).news()
    assert news["state"] == "finished"
    assert 'href="report"' in news["parts"]["result"]
    assert "75.0" in news["parts"]["result"]


@pytest.mark.parametrize("name", [NASTY, 'it\'s "quoted" & {{ 7 * 7 }}', "a</script>b"])
def test_names_of_others_are_escaped(tmp_path, name):
    folder = write_live_run(tmp_path / "run", domains=("a", name))
    append(folder, {"event": "fault", "round": 2, "client": name, "reason": name})
    news = desk(folder).news()
    for html in news["parts"].values():
        assert "<img" not in html
        assert "<script" not in html
        assert "</script" not in html
    assert "49" not in news["parts"]["tables"]
    rows = chart_rows(news["charts"]["chart-scores-1"])
    assert f"{name} (held out)" in {row.get("series") for row in rows}


def test_records_cut_by_a_resume_are_read_again(tmp_path):
    """The next attempt cuts at its checkpoint and writes as many bytes again before anyone looks."""
    folder = write_live_run(tmp_path / "run", rounds=3)
    path = folder / "records.jsonl"
    tail = RecordTail(path)
    assert tail.read()
    assert not tail.read()
    lines = path.read_text().splitlines(keepends=True)
    other = [line.replace('"seconds": 2.0', '"seconds": 3.0') for line in lines[3:]]
    path.write_text("".join(lines[:3] + other))
    assert path.stat().st_size == tail.offset
    append(folder, *one_round(4))
    assert tail.read()
    assert [r["seconds"] for r in tail.records if r["event"] == "round"] == [2.0, 3.0, 3.0, 2.0]
    path.write_text("".join(lines[:3]))
    tail.read()
    assert [r["round"] for r in tail.records if r["event"] == "round"] == [1]


def test_half_a_line_waits_for_its_other_half(tmp_path):
    folder = write_live_run(tmp_path / "run", rounds=1)
    tail = RecordTail(folder / "records.jsonl")
    tail.read()
    count = len(tail.records)
    with tail.path.open("a") as file:
        file.write('{"event": "fau')
    assert not tail.read()
    with tail.path.open("a") as file:
        file.write('lt", "round": 1}\n')
    assert tail.read()
    assert len(tail.records) == count + 1


def test_damaged_records_are_named_on_the_page(running_run):
    with (running_run / "records.jsonl").open("a") as file:
        file.write("no record <b>\n")
    shown = desk(running_run).news()["parts"]["header"]
    assert "cannot be read" in shown
    assert "<b>" not in shown


def test_a_record_that_lacks_something_does_not_end_the_page(running_run):
    append(running_run, {"event": "round", "round": "seven"})
    page = desk(running_run)
    assert "ValueError" in page.news()["parts"]["header"]


def test_a_thousand_rounds_stay_small(tmp_path):
    folder = write_live_run(tmp_path / "run", rounds=1000, planned=2000, domains=tuple("abcdef"))
    page = desk(folder)
    news = page.news()
    assert len(json.dumps(news)) < 600_000
    assert len(json.dumps(page.news(news["version"]))) < 100


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no run, bench or coordinator's home"):
        find_source(tmp_path)
    write_live_run(tmp_path)
    with pytest.raises(UsageError, match="--work is for a bench"):
        find_source(tmp_path, work=tmp_path)
