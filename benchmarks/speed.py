"""`make bench`: our speed beside what a user would pick instead, in one table. `python -m benchmarks.speed [ROW ...] [--quick] [--into FOLDER]`.

All rows are measured, or those that are named; each row's result is written as soon as it is there, the table of all of a folder's rows at the end.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import networks, recurrent, text
from benchmarks.contest import markdown, measured, outcome
from lineage.training.devices import configure_torch

CONTESTS = {**networks.CONTESTS, **recurrent.CONTESTS, **text.CONTESTS}
RESULTS = Path(__file__).parent / "results"
ROUNDS = 5


def main(arguments: list[str]) -> None:
    """Measure what is asked for, or all, and print the table of all that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(CONTESTS)}")
    parser.add_argument(
        "--quick", action="store_true", help="toy sizes, two rounds, nothing kept: whether it runs"
    )
    parser.add_argument(
        "--into", type=Path, default=RESULTS, help="the folder of the rows and of their table"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    if unknown := [row for row in given.rows if row not in CONTESTS]:
        parser.error(f"there is no row {unknown[0]}; the rows are {', '.join(CONTESTS)}")
    configure_torch(1)
    given.into.mkdir(parents=True, exist_ok=True)
    for name in given.rows or CONTESTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        contest = CONTESTS[name](quick=given.quick)
        found = outcome(contest, measured(contest, rounds=2 if given.quick else given.rounds))
        if given.quick:
            print(markdown([found]))
        else:
            (given.into / f"{name}.json").write_text(
                json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8"
            )
    if not given.quick:
        table = markdown(kept(given.into))
        (given.into / "speed.md").write_text(table, encoding="utf-8")
        print(table)


def kept(folder: Path) -> list[dict]:
    """A folder's rows in the table's order."""
    return [
        json.loads(path.read_text(encoding="utf-8"))
        for name in CONTESTS
        if (path := folder / f"{name}.json").is_file()
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
