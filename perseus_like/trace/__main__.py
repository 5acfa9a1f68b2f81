"""Makes timelines of several ranks one, or tells in words where the time went."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..whole_files import unfinished
from .files import TraceError, merge, read

FILES = "timelines of ranks; rank 0's alone brings those beside it (trace.json: trace.rank1.json, …)"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        traces = read(options.files)
        if options.command == "merge":
            events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in merge(traces))
            with unfinished(options.output) as file:
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
        print(f"python -m perseus_like.trace: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perseus_like.trace", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    into_one = commands.add_parser("merge", help="all ranks' timelines in one file, on one clock")
    into_one.add_argument("files", nargs="+", type=Path, metavar="FILE", help=FILES)
    into_one.add_argument("-o", "--output", type=Path, default=Path("merged.json"), metavar="FILE")
    in_words = commands.add_parser("summary", help="where the time went, in words")
    in_words.add_argument("files", nargs="+", type=Path, metavar="FILE", help=FILES)
    in_words.add_argument("--draw", type=Path, metavar="PICTURE", help="also as a picture: .png, .svg or .pdf")
    return parser


if __name__ == "__main__":
    sys.exit(main())
