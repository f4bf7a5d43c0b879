"""What is seen while a bench runs, and how long it is said to take."""

from __future__ import annotations

import io

from rich.console import Console

from unseen.bench.grid import jobs
from unseen.bench.workers import Progress
from unseen.cli.bench_progress import BenchProgress, RoundTimes


def test_times_are_measured_per_method():
    times = RoundTimes()
    assert times.seconds_left([("a", 3)], workers=1) is None
    times.add("a", rounds=2, seconds=4.0)
    times.add("b", rounds=1, seconds=5.0)
    assert times.seconds_per_round("a") == 2.0 and times.seconds_per_round("b") == 5.0
    assert times.seconds_per_round("new") == 3.0, "9 seconds for 3 rounds"
    left = [("a", 10), ("b", 2), ("new", 10)]
    assert times.seconds_left(left, workers=1) == 20 + 10 + 30
    assert times.seconds_left(left, workers=2) == 30, "three jobs, the longest takes 30"
    assert times.seconds_left([], workers=2) == 0


def follow(grid, console):
    """Show a bench of four jobs: one done, one failed, one at work, one waiting."""
    first, second, third, fourth = jobs(grid)
    view = BenchProgress(console, workers=2)
    with view:
        view.on_plan([first, second, third, fourth], [], [], {})
        for job in (first, second):
            view.on_job_start(job)
        view.on_job_progress(first, Progress(0, 2))
        view.on_job_progress(first, Progress(2, 2, 0.875))
        view.on_job_end(first)
        view.on_job_error(second, "it [b]broke[/b]")
        view.on_job_start(third)
        view.on_tick()
        view.on_job_progress(third, Progress(0, 2))
        view.on_job_progress(third, Progress(1, 2, 0.25))
        view.on_tick()


def test_a_terminal_shows_a_table(make_grid):
    text = io.StringIO()
    follow(make_grid(seeds=(0, 1)), Console(file=text, force_terminal=True, width=100, color_system=None))
    shown = text.getvalue()
    for words in (
        "running",
        "preparing",
        "1/2",
        "0.250",
        "1/4 jobs done",
        "1 waiting",
        "1 failed",
        "it [b]broke[/b]",
    ):
        assert words in shown, shown


def test_a_pipe_gets_lines(make_grid):
    text = io.StringIO()
    follow(make_grid(seeds=(0, 1)), Console(file=text, width=60))
    lines = text.getvalue().splitlines()
    assert lines[0] == "4 jobs to run, 0 done already; 2 at a time"
    assert lines[1].startswith("done 1/4  fedavg 75 seed 0: 0.0\u00a0s, validation 0.875")
    assert lines[2] == "failed      ppdg 75 seed 0: it [b]broke[/b]"
    assert len(lines) == 3


def test_jobs_of_an_earlier_start_tell_how_long_it_will_take(make_grid):
    first, second, third, fourth = jobs(make_grid(seeds=(0, 1)))
    assert (first.label, second.label) == (third.label, fourth.label), "the first two are of two methods"
    text = io.StringIO()
    view = BenchProgress(Console(file=text, width=60), workers=1)
    for _ in range(2):
        view.on_plan([third, fourth], [first, second], [], {first.id: 600.0, second.id: 3000.0})
    view.on_job_start(third)
    view.on_job_progress(third, Progress(0, 2))
    view.on_job_progress(third, Progress(1, 2))
    view.on_job_end(third)
    assert text.getvalue().splitlines()[-1].endswith("about 50\u00a0min 00\u00a0s left"), text.getvalue()


def test_a_part_of_a_job_counts_only_where_no_whole_one_is_known(make_grid):
    _, second, third, fourth = jobs(make_grid(seeds=(0, 1)))
    text = io.StringIO()
    view = BenchProgress(Console(file=text, width=60), workers=1)
    view.on_plan([third, fourth], [second], [], {second.id: 6000.0})
    for job in (third, fourth):
        view.on_job_start(job)
        view.on_job_progress(job, Progress(0, 2))
        view.on_job_progress(job, Progress(1, 2))
    view.on_job_end(third)
    assert text.getvalue().splitlines()[-1].endswith("about 50\u00a0min 00\u00a0s left"), (
        "half of a job of 6000 seconds"
    )
