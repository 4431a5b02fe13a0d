"""The `lineage` command. Each command is thin: it parses options and calls one function.

Commands import what they need when they run, since Prefect, DVC and torch take a second each.
"""

import contextlib
import os
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from flows.execute import EXIT_BAD_INPUT, TELEMETRY_OFF
from lineage import __version__
from lineage.errors import InputError, describe_shortage
from lineage.runtime.settings import prepare_environment

if TYPE_CHECKING:
    from flows.run import RunOptions


class _Commands(TyperGroup):
    """All commands: an error of the user's ends each of them alike."""

    def invoke(self, ctx: Any) -> object:  # typer has a copy of click, which is private
        with _exit_without_prefect(), _input_errors_exit():
            return super().invoke(ctx)


app = typer.Typer(
    name="lineage",
    cls=_Commands,
    help="Which pretraining method is best for my corpus, my tasks, my number of labels and my "
    "budget? Start with `lineage init`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

JobsOption = Annotated[
    int | None, typer.Option(help="Stages at a time. By default as many as cores and memory allow.")
]


MinutesOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="The minutes that the run may take. If the forecast is longer, the models and the "
        "text that fit are proposed.",
    ),
]


@app.callback(invoke_without_command=True)
def set_up(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Prepare the environment of every command."""
    os.environ.update(TELEMETRY_OFF)
    prepare_environment()
    if version:
        print(f"lineage {__version__}")
        raise typer.Exit


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to create.")],
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="Running text, such as 'texts/*.txt' or notes.csv,text=COLUMN. May be repeated."
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="A file with labels as NAME=FILE, such as queue=train.csv. Keys may follow: "
            "queue=train.csv,test=test.csv,label=queue. May be repeated."
        ),
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="The code of the language, such as en. Guessed by default.")
    ] = None,
    public_model: Annotated[
        Path | None,
        typer.Option(
            help="A folder with a public checkpoint that transformers saved, to compare with. By "
            "default, one in the Hub's cache is proposed."
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option("--from", help="Copy a ready-made study, such as few-labels, instead."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="A DVC cache to share with other studies.")
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Inspect your files, and create a study: a folder with a commented params.yaml."""
    from flows.study import check_new_folder, create_study, read_ready_made_study

    if more:  # the shell has replaced a pattern by the names of files
        raise InputError(
            f"{more[0]}: an argument too many; name files by --corpus and --task, with "
            "patterns in quotes, such as --corpus 'texts/*.txt' --task queue=train.csv"
        )
    check_new_folder(folder)  # before the user's files are read
    if template is not None:
        if corpus or task or language or public_model:
            raise InputError("--from: copies a study as it is; leave the other options out")
        params_text = read_ready_made_study(template)
    else:
        from flows.new_study import draft_study

        draft = draft_study(folder, corpus or [], task or [], language, public_model)
        params_text = draft.params_text
        for line in draft.lines:
            print(line)
    create_study(folder, params_text, cache=cache)
    print(
        f"created {folder}; read {folder / 'params.yaml'}, then run: cd {folder} && lineage check"
    )


@app.command()
def check(
    jobs: JobsOption = None,
    by_stage: Annotated[
        bool, typer.Option("--by-stage", help="Show each stage, not only each kind of stage.")
    ] = False,
    minutes: MinutesOption = None,
) -> None:
    """Validate all parameters and data, and forecast minutes, memory and disk."""
    from flows.forecast import check_and_forecast

    check_and_forecast(Path.cwd(), jobs=jobs, by_stage=by_stage, minutes=minutes)


@app.command()
def plan(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """Print which stages would run, and why. Nothing runs."""
    from flows.plan import plan_as_json, print_plan
    from flows.run import plan_study

    nodes, stale = plan_study(Path.cwd())
    if as_json:
        print(plan_as_json(nodes, stale))
    else:
        print_plan(nodes, stale)


@app.command()
def run(
    jobs: JobsOption = None,
    workers: Annotated[
        bool, typer.Option("--workers", help="Send stages to Prefect workers (`lineage up`).")
    ] = False,
    no_prefect: Annotated[
        bool, typer.Option("--no-prefect", help="Run without Prefect; the results are the same.")
    ] = False,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit params.yaml, dvc.lock and the report to git.")
    ] = False,
    minutes: MinutesOption = None,
) -> None:
    """Run every stage that is stale. A run that was stopped goes on where it was.

    With --minutes it is checked first, and does not begin if it is forecast to take longer.

    Exit code: 0 done, 2 bad configuration or input, 3 finished but some results failed, 1 anything
    else.
    """
    from flows.run import RunOptions, interrupt_on_signals, run_study

    interrupt_on_signals()
    options = RunOptions(jobs, workers, commit)
    if minutes is not None:
        from flows.forecast import check_and_forecast

        if not check_and_forecast(Path.cwd(), jobs=jobs, minutes=minutes):
            raise InputError(
                "--minutes: the run would take longer; change params.yaml as proposed, or leave "
                "the option out"
            )
    if not no_prefect:
        exit_status = _run_with_prefect(options)
    elif workers:
        raise InputError("--workers: needs Prefect; leave --no-prefect out")
    else:
        print("Prefect: no server", flush=True)
        exit_status = run_study(options, root=Path.cwd())
    raise typer.Exit(exit_status)


@app.command()
def status() -> None:
    """Print whether a run is under way, which stages are done, and where the report is."""
    from flows.view import print_status

    print_status(_study_root())


@app.command()
def report(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="A report, or a study with one: make its pages again from the results and "
            "predictions that it keeps.",
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Print where the report is, or make a report again from what it rests on."""
    if folder is not None:
        from lineage.report.evidence import rebuild_report

        page = rebuild_report(folder).absolute()
    else:
        page = Path("reports/comparison.html").absolute()
    if not page.is_file():
        if folder is None:
            _study_root()  # says where there is no study
        raise InputError(f"{page}: there is no report yet; run `lineage run`")
    print(page)
    if folder is None:
        from flows.view import describe_changed_params

        if changed := describe_changed_params(Path()):
            print(changed, file=sys.stderr)
    if open_page:
        webbrowser.open(page.as_uri())


@app.command()
def predict(
    file: Annotated[
        Path | None,
        typer.Argument(help="A csv, tsv, jsonl, parquet or txt file (one text per line)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The file to write: .csv, .tsv, .jsonl or .parquet."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="A task of this study.")] = None,
    system: Annotated[
        str | None,
        typer.Option(
            help="The system that predicts, or the folder of an exported one. By default the one "
            "that the report recommends."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="The number of labels that it was trained on. By default the most."),
    ] = None,
    text_column: Annotated[
        list[str] | None,
        typer.Option(
            help="The column of FILE that holds the text, if its name differs from the task's. "
            "May be repeated, in the order of the task's columns."
        ),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Print the systems of the task, and their scores.")
    ] = False,
) -> None:
    """Label a file with a system of this study: its columns, predictions and probabilities."""
    from lineage.serving.predict import predict_file, print_systems

    if list_all:
        if task is None:
            raise InputError("--list: name a task with --task")
        print_systems(task)
        return
    if file is None:
        raise InputError("lineage predict: name a file to label")
    summary = predict_file(
        file, out, task=task, system=system, label_count=labels, text_columns=text_column
    )
    print(summary)


@app.command()
def embed(
    file: Annotated[
        Path, typer.Argument(help="A csv, tsv, jsonl, parquet or txt file (one text per line).")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The .parquet file to write.")],
    model: Annotated[
        str,
        typer.Option(help="A model of this study, or MODEL@TASK for the model adapted to a task."),
    ],
    layer: Annotated[
        int | None,
        typer.Option(help="The layer, from 0, the embeddings. By default the mean of all layers."),
    ] = None,
    words: Annotated[
        bool, typer.Option("--words", help="Write a vector for each word instead of each text.")
    ] = False,
    text_column: Annotated[
        str | None, typer.Option(help="The column that holds the text. Default: `text`.")
    ] = None,
) -> None:
    """Write the vectors of texts, or of their words, that a model of this study computes."""
    from lineage.serving.embed import embed_file

    print(embed_file(file, out, model=model, layer=layer, words=words, text_column=text_column))


@app.command()
def neighbours(
    text: Annotated[str, typer.Argument(help="A text, such as 'They went to see the new play.'")],
    word: Annotated[str, typer.Option(help="The word of the text to look for.")],
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model of this study, or MODEL@TASK for the model adapted to a task. May be "
            "repeated. By default all models."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Search the items of a task instead of the corpus.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="The layer, from 0, the embeddings. By default all layers.")
    ] = None,
    count: Annotated[
        int, typer.Option("-k", "--count", min=1, help="Neighbours of each model and layer.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the places where a word is used most like in a text, for each model and layer.

    Static models, such as word2vec, list the most similar words.
    """
    from lineage.serving.neighbours import find_neighbours

    print(
        find_neighbours(
            text,
            word,
            models=model or [],
            task=task,
            layer=layer,
            num_neighbours=count,
            as_json=as_json,
        )
    )


@app.command()
def serve(
    task: Annotated[str, typer.Option(help="A task of this study.")],
    system: Annotated[
        str | None,
        typer.Option(
            help="A system of this study, as `lineage predict --list` shows them. By default the "
            "champion, which MLflow keeps."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port, on this machine.")] = 5051,
) -> None:
    """Answer requests over HTTP, on this machine only, as `lineage predict` labels a file."""
    from lineage.serving.server import serve as run_server

    with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
        run_server(task, system=system, port=port)
    print("the server has ended")


@app.command("export")
def export_command(
    name: Annotated[
        str,
        typer.Argument(
            help="MODEL, MODEL@TASK for the model adapted to a task, or TASK/SYSTEM for a system."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The folder or file to write.")],
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="transformers (BERT, GPT), elmo, or word2vec (a file; binary if it ends in .bin). "
            "By default that of the model's family.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="The number of labels that a system was trained on. Default: the most."),
    ] = None,
) -> None:
    """Write a model for another library, or a system as a folder that needs no study."""
    from lineage.serving.export import export

    print(export(name, out, file_format=file_format, label_count=labels))


@app.command()
def bundle(
    stages: Annotated[
        list[str],
        typer.Argument(help="Stages as `lineage plan` prints them, such as pretrain@gpt-0."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")],
) -> None:
    """Pack stages into a file, for a machine that no server reaches, such as one with a GPU."""
    from flows.bundle_home import make_bundle

    print(make_bundle(Path.cwd(), stages, out))


@app.command("run-bundle")
def run_bundle_command(
    file: Annotated[Path, typer.Argument(help="A file of `lineage bundle` or of this command.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The file to write; it may be the same.")
    ],
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Stop at a resume point after so many minutes. By default at the end."
        ),
    ] = None,
) -> None:
    """Run the stages of a bundle on this machine, which needs no study, git, server or DVC.

    Exit code: 0 all have finished, 3 the time is up and the written file goes on, 2 bad input, 1
    anything else.
    """
    from flows.bundle_run import run_bundle

    raise typer.Exit(run_bundle(file, out, minutes=minutes))


@app.command()
def accept(
    file: Annotated[Path, typer.Argument(help="A file that `lineage run-bundle` has written.")],
) -> None:
    """Put the results of a bundle into this study, as if its stages had run here."""
    from flows.bundle_home import accept_bundle

    print(accept_bundle(Path.cwd(), file))


@app.command()
def ui() -> None:
    """Serve MLflow (runs, curves, report) and Prefect (flows), on this machine only."""
    from flows.servers import start_pages

    print(start_pages(_study_root()))


@app.command()
def up(
    no_workers: Annotated[
        bool,
        typer.Option("--no-workers", help="Start the server only; workers are on other machines."),
    ] = False,
) -> None:
    """Start a Prefect server and workers on this machine, for --workers and schedules."""
    from flows.servers import start_all

    print(start_all(_study_root(), with_workers=not no_workers))


@app.command()
def down() -> None:
    """End everything that `up` and `ui` started."""
    from flows.servers import stop_all

    stop_all(_study_root())
    print("all servers and workers of this study have ended")


@app.command()
def schedule(
    cron: Annotated[
        str | None, typer.Option(help="When to run, such as '0 2 * * *' for 2:00 each night.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="The time zone of --cron.")] = "UTC",
    workers: Annotated[
        bool, typer.Option("--workers", help="Send stages to Prefect workers.")
    ] = False,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit the results of each run to git.")
    ] = False,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A webhook to call when a run fails or is late, or when another system is "
            "recommended than before.",
        ),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Remove the schedule.")] = False,
) -> None:
    """Run this study by the clock. Needs `lineage up`."""
    from flows.servers import connect_to_server
    from flows.study import check_can_commit

    if off == (cron is not None):
        raise InputError("lineage schedule: give --cron, or --off")
    if off and notify is not None:
        raise InputError("--notify: goes with --cron; --off ends notifications too")
    root = _study_root()
    if commit:
        check_can_commit(root)
    connect_to_server(root)
    from flows.deployments import remove_schedule, set_schedule

    if cron is None:
        print(remove_schedule(root))
    else:
        print(set_schedule(root, cron, timezone, workers=workers, commit=commit, webhook=notify))


@app.command()
def params(
    schema: Annotated[bool, typer.Option("--schema", help="The JSON schema, for editors.")] = False,
) -> None:
    """Print every parameter of this study with its value, defaults included."""
    from lineage.study.resolved import format_params, format_schema

    print(format_schema() if schema else format_params(Path("params.yaml")))


def _study_root() -> Path:
    """Return the current folder, if it is a study. Raises InputError."""
    from flows.study import open_study

    return open_study(Path.cwd())


def _run_with_prefect(options: "RunOptions") -> int:
    from flows.servers import RUN_SETTINGS, start_temporary_prefect, use_prefect, wait_for_prefect
    from flows.study import check_places, hold_run_lock

    root = _study_root()
    # Refuse before the server is started, if possible.
    check_places(root)
    with hold_run_lock(root):
        pass
    use_prefect(root, RUN_SETTINGS)
    if options.workers and "PREFECT_API_URL" not in os.environ:
        raise InputError(
            "--workers: no Prefect server is up; run `lineage up`, or set PREFECT_API_URL"
        )
    is_temporary = start_temporary_prefect(root)
    from flows.machine import start_stage_server
    from flows.parameters import check_parameters

    start_stage_server(root)  # it imports what stages need while Prefect starts
    check_parameters(root)
    from flows.flow import run_with_prefect

    wait_for_prefect(root)
    address = os.environ["PREFECT_API_URL"].removesuffix("/api")
    lifetime = ", for this run only" if is_temporary else ""
    print(f"Prefect: {address}{lifetime}", flush=True)
    return run_with_prefect(options)


@contextlib.contextmanager
def _exit_without_prefect() -> Iterator[None]:
    """Exit at once if Prefect was used and its server is gone.

    Prefect's threads would try for minutes to reach it.
    """
    try:
        yield
    except typer.Exit as end:
        from flows.addresses import prefect_is_up

        is_used = "prefect" in sys.modules and "PREFECT_API_URL" in os.environ
        if is_used and not prefect_is_up():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.exit_code)
        raise


@contextlib.contextmanager
def _input_errors_exit() -> Iterator[None]:
    """Print an InputError as one line and exit with 2; end quietly on an interruption."""
    try:
        yield
    except InputError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(EXIT_BAD_INPUT) from None
    except (OSError, MemoryError) as error:
        shortage = describe_shortage(error)
        if shortage is None:
            raise
        print(shortage, file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("stopped; a run goes on from its last checkpoints", file=sys.stderr)
        raise typer.Exit(1) from None


def main() -> None:
    """Run the command line, in Python's UTF-8 mode: paths may have any letters in any locale."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"  # the stages inherit it
        os.execv(sys.executable, sys.orig_argv)
    app()


if __name__ == "__main__":
    main()
