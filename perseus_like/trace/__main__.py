"""Merges the timelines of several ranks, or summarizes where the time of a job went."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..host_facts import replacing
from .files import TraceError, merge, read

FILES = "timelines of ranks; for rank 0's file alone, the other ranks' files beside it are read, too"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.command == "summary" and options.draw is not None:
            from .picture import check

            check(options.draw)
        traces = read(options.files, _report)
        if options.command == "merge":
            events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in merge(traces))
            with replacing(options.output) as file:
                file.write_text(f"[\n{events}\n]\n")
            print(f"{options.output}: {len(traces)} ranks; open it in https://ui.perfetto.dev")
        else:
            from .report import render
            from .summary import summarize

            summary = summarize(traces)
            sys.stdout.write(render(summary))
            if options.draw is not None:
                from .picture import draw

                draw(summary, options.draw)
    except (TraceError, OSError) as error:
        _report(str(error))
        return 1
    return 0


def _report(text: str) -> None:
    print(f"python -m perseus_like.trace: {text}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perseus_like.trace", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    into_one = commands.add_parser("merge", help="write all ranks' timelines into one file, on one clock")
    into_one.add_argument("files", nargs="+", type=Path, metavar="FILE", help=FILES)
    into_one.add_argument("-o", "--output", type=Path, default=Path("merged.json"), metavar="FILE")
    in_words = commands.add_parser("summary", help="print a summary of where the time went")
    in_words.add_argument("files", nargs="+", type=Path, metavar="FILE", help=FILES)
    in_words.add_argument("--draw", type=Path, metavar="PICTURE", help="also draw it: .png, .svg or .pdf")
    return parser


if __name__ == "__main__":
    sys.exit(main())
