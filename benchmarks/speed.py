"""`make bench`: our speed beside what a user would pick instead, in one table. `python -m benchmarks.speed [ROW ...] [--quick] [--again]`.

Each row's result is kept in benchmarks/results; rows that are there are not measured again unless they are named or --again is given.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import networks, recurrent, text
from benchmarks.contest import markdown, measured, outcome
from lineage.train import prepare_torch

CONTESTS = {**networks.CONTESTS, **recurrent.CONTESTS, **text.CONTESTS}
RESULTS = Path(__file__).parent / "results"
ROUNDS = 5


def main(arguments: list[str]) -> None:
    """Measure what is asked for, or what is missing, and print the table of all that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(CONTESTS)}")
    parser.add_argument("--quick", action="store_true", help="toy sizes, two rounds, nothing kept: whether it runs")
    parser.add_argument("--again", action="store_true", help="measure all rows anew")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    if unknown := [row for row in given.rows if row not in CONTESTS]:
        parser.error(f"there is no row {unknown[0]}; the rows are {', '.join(CONTESTS)}")
    prepare_torch(1)
    found = []
    for name in given.rows or CONTESTS:
        kept = RESULTS / f"{name}.json"
        if kept.is_file() and not (given.rows or given.again or given.quick):
            found.append(json.loads(kept.read_text(encoding="utf-8")))
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        contest = CONTESTS[name](quick=given.quick)
        found.append(outcome(contest, measured(contest, rounds=2 if given.quick else given.rounds)))
        if not given.quick:
            kept.write_text(json.dumps(found[-1], indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if not given.quick:
        every = [json.loads(path.read_text(encoding="utf-8")) for name in CONTESTS if (path := RESULTS / f"{name}.json").is_file()]
        (RESULTS / "speed.md").write_text(markdown(every), encoding="utf-8")
    print(markdown(found))


if __name__ == "__main__":
    main(sys.argv[1:])
