"""`make bench`: compare our speed with that of the libraries that a user would choose instead.

`python -m benchmarks.speed [ROW ...] [--quick] [--into FOLDER]` measures the named rows, or all of
them. Each result is written as soon as it is measured. The table is written at the end; it shows
all results of the folder.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import networks, recurrent, text
from benchmarks.contest import format_markdown, measure_cpu_seconds, summarize
from lineage.training.devices import configure_torch

CONTESTS = {**networks.CONTESTS, **recurrent.CONTESTS, **text.CONTESTS}
RESULTS = Path(__file__).parent / "results"
DEFAULT_ROUNDS = 5
QUICK_ROUNDS = 2


def main(arguments: list[str]) -> None:
    """Measure the requested contests and print the table; `learning` is a benchmark of its own."""
    if arguments[:1] == ["learning"]:
        from benchmarks import learning  # it imports transformers

        learning.main(arguments[1:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help=f"any of {', '.join(CONTESTS)}; default: all")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only test that it runs: toy sizes, two rounds, nothing is saved",
    )
    parser.add_argument(
        "--into", type=Path, default=RESULTS, help="the folder of the results and of their table"
    )
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    options = parser.parse_args(arguments)
    unknown = [row for row in options.rows if row not in CONTESTS]
    if unknown:
        parser.error(f"there is no row {unknown[0]}; the rows are {', '.join(CONTESTS)}")

    configure_torch(1)
    options.into.mkdir(parents=True, exist_ok=True)
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    for name in options.rows or CONTESTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        contest = CONTESTS[name](quick=options.quick)
        result = summarize(contest, measure_cpu_seconds(contest, rounds=rounds))
        if options.quick:
            print(format_markdown([result]))
        else:
            content = json.dumps(result, indent=1, sort_keys=True) + "\n"
            (options.into / f"{name}.json").write_text(content, encoding="utf-8")
    if not options.quick:
        table = format_markdown(load_results(options.into))
        (options.into / "speed.md").write_text(table, encoding="utf-8")
        print(table)


def load_results(folder: Path) -> list[dict]:
    """Load the results of a folder, in the order of the table."""
    paths = [folder / f"{name}.json" for name in CONTESTS]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]


if __name__ == "__main__":
    main(sys.argv[1:])
