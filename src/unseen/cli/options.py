"""Options that `unseen bench` and `unseen reproduce` share: where jobs run and where results go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHERE = "Where"

DataRoot = Annotated[
    str | None, typer.Option(help="Where named data sets lie.", envvar="UNSEEN_DATA", rich_help_panel=WHERE)
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps.", rich_help_panel=WHERE)]
Workers = Annotated[
    int | None, typer.Option(help="Jobs side by side; one a core if not given.", rich_help_panel=WHERE)
]
Threads = Annotated[int, typer.Option(help="Threads of each job.", rich_help_panel=WHERE)]
Work = Annotated[
    Path | None, typer.Option(help="Folder of the jobs, if not OUT/jobs.", rich_help_panel=WHERE)
]
Latex = Annotated[
    Path | None, typer.Option(help="Place of the LaTeX tables, if not OUT/table.tex.", rich_help_panel=WHERE)
]
Csv = Annotated[
    Path | None, typer.Option(help="Place of the CSV table, if not OUT/table.csv.", rich_help_panel=WHERE)
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Try failed jobs again.", rich_help_panel=WHERE)
]
Collect = Annotated[
    bool,
    typer.Option("--collect", help="Run nothing; write the outputs of what is done.", rich_help_panel=WHERE),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.", rich_help_panel=WHERE)]
