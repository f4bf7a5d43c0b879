"""`unseen help`: the pages of the documentation in the terminal, without a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from unseen.cli.console import results
from unseen.errors import UnseenError, unknown_name

PAGES = (Path(__file__).parents[1] / "help", Path(__file__).parents[3] / "docs")
"""Folder of the pages in an installed package, and in a checkout."""
METHOD_PAGES = "methods"
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def help_command(
    context: typer.Context,
    topic: Annotated[
        str | None, typer.Argument(help="A page, a method or a command; without it, the pages are listed.")
    ] = None,
) -> None:
    """Show a page of the documentation, formatted in a terminal, as Markdown in a pipe.

    Examples:

        unseen help

        unseen help training

        unseen help csac
    """
    pages = find_pages()
    if topic is None:
        _print_topics(pages)
    elif topic in pages:
        _print_page(_COMMENT.sub("", pages[topic].read_text(encoding="utf-8")))
    else:
        _print_help(context, topic, pages)


def find_pages() -> dict[str, Path]:
    """Find the pages by topic: those of the documentation, then one per method."""
    folder = next((folder for folder in PAGES if folder.is_dir()), None)
    if folder is None:
        raise UnseenError(f"this installation has no pages ({PAGES[0]} is missing): install unseen again")
    methods = sorted((folder / METHOD_PAGES).glob("*.md"))
    return {
        **{path.stem: path for path in sorted(folder.glob("*.md"))},
        **{METHOD_PAGES if path.stem == "README" else path.stem: path for path in methods},
    }


def _print_topics(pages: dict[str, Path]) -> None:
    """List the topics with the titles of their pages, and the methods by name."""
    table = Table(box=None, pad_edge=False, show_header=False)
    shown = [name for name, path in pages.items() if path.parent.name != METHOD_PAGES or name == METHOD_PAGES]
    for name in shown:
        title = pages[name].read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        table.add_row(f"unseen help {name}", title)
    console = results()
    console.print(table)
    console.print(f"\nand a page per method: {', '.join(name for name in pages if name not in shown)}")


def _print_page(text: str) -> None:
    """Page through formatted text in a terminal; print the text as it is where the output goes elsewhere."""
    console = results()
    if not console.is_terminal:
        typer.echo(text)
        return
    from rich.markdown import Markdown

    with console.capture() as captured:
        console.print(Markdown(text))
    typer.echo_via_pager(captured.get(), color=console.color_system is not None)


def _print_help(context: typer.Context, topic: str, pages: dict[str, Path]) -> None:
    """Show a command's own help."""
    commands = getattr(context.find_root().command, "commands", {})
    if topic not in commands:
        raise unknown_name("topic", topic, {*pages, *commands})
    commands[topic].main(["--help"], prog_name=f"unseen {topic}", standalone_mode=False)
