"""The command line of a run: `python -m flows.pipeline`.

It is a Prefect flow unless --local is given.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.execute import EXIT_BAD_INPUT, TELEMETRY_OFF
from flows.run import RunOptions, interrupt_on_signals, preview_run, run_pipeline
from lineage.errors import InputError
from lineage.runtime.settings import STATE_DIR, check_writable, prepare_environment

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    local: Annotated[bool, typer.Option("--local", help="run without Prefect")] = False,
    pools: Annotated[
        bool,
        typer.Option("--pools", help="send stages to the cpu and gpu work pools; needs --profile"),
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            help="run profiles/NAME.yaml in its own worktree, and commit to the branch runs/NAME"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what would run, and run nothing")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(help="stages at a time; by default as many as cores and memory allow"),
    ] = None,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="let a profile run code that is not committed")
    ] = False,
    final: Annotated[
        bool, typer.Option("--final", help="score the test split; needs --profile")
    ] = False,
) -> None:
    """Run what is stale.

    Exit code: 0 done, 2 bad configuration or input, 3 finished but results failed, 1 anything else.
    """
    os.environ.update(TELEMETRY_OFF)
    prepare_environment()
    interrupt_on_signals()
    try:
        check_writable(str(STATE_DIR))
        options = RunOptions(profile, pools, jobs, allow_dirty, final)
        if local and pools:
            raise InputError("--pools: needs Prefect, which --local leaves out; give one of them")
        exit_status = 0
        if dry_run:
            preview_run(options, checkout=Path.cwd())
        elif local:
            exit_status = run_pipeline(options, checkout=Path.cwd())
        else:
            exit_status = _run_with_prefect(options)
    except InputError as error:
        print(error, file=sys.stderr)
        exit_status = EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("stopped; the next run goes on from the last checkpoints", file=sys.stderr)
        exit_status = 1
    raise typer.Exit(exit_status)


def _run_with_prefect(options: RunOptions) -> int:
    # Imported here: Prefect takes a second, reads its settings when it is imported, and is not
    # needed with --local.
    from flows.servers import prefect_environment

    for name, value in prefect_environment(Path.cwd()).items():
        os.environ.setdefault(name, value)
    if options.pools and "PREFECT_API_URL" not in os.environ:
        raise InputError("--pools: no Prefect server is up; run `make up`, or set PREFECT_API_URL")
    from flows.flow import run_flow

    return run_flow(options)


if __name__ == "__main__":
    app()
