"""The page tells which data, recipes and hyperparameters a study had."""

from dataclasses import replace

from lineage.analysis.records import ChosenTrial
from lineage.config.data import CorpusSource, Task
from lineage.report.section import ReportData, Table
from lineage.report.sections.what_was_run import END_HEADING, build, name_origin
from tests.helpers.evidence import PARAMS
from tests.helpers.result_cells import analyze_cells, build_cells
from tests.helpers.sections import find_blocks, read_table


def test_data_recipes_and_chosen_hyperparameters_are_named() -> None:
    hub = CorpusSource(hub="owner/texts", split="train", text="text", revision="0123456789" * 4)
    files = CorpusSource(files="/home/me/private/notes.csv", text="text")
    corpus = replace(PARAMS.corpora["general"], sources=(hub, files))
    trials = (
        ChosenTrial("tfidf", 1, "C 1", False, 2),
        ChosenTrial("tfidf", 3, "C 100", True, 5),
        ChosenTrial("finetune", 0, "learning_rate 0.1", False, 3),
        ChosenTrial("finetune", 1, "learning_rate 0.2", False, 4),
        ChosenTrial("finetune", 2, "learning_rate 0.1, body_dropout 0.25", True, 1),
    )
    report = ReportData(
        replace(analyze_cells(build_cells(elmo=0.7)), chosen_trials=trials),
        params=replace(PARAMS, corpora={"general": corpus}),
    )
    section = build(report)
    assert section is not None
    data, recipes, chosen = map(read_table, find_blocks(section, Table))
    assert [line["from"] for line in data[:2]] == ["owner/texts, revision 01234567", "notes.csv"]
    by_model = {line["model"]: line["recipe"] for line in recipes}
    assert "vocabulary 4,000, learning rate 0.002, 16 sequences a step" in by_model["BERT"]
    assert [tuple(line.values()) for line in chosen] == [
        ("TF-IDF", "C 1: 2, 100: 5", "5 of 7"),
        (
            "fine-tuning",
            "learning rate 0.1: 3, 0.2: 4; body dropout 0.25, learning rate 0.1: 1",
            "1 of 8",
        ),
    ]
    assert END_HEADING in chosen[0]
    assert build(replace(report, params=None)) is None


def test_files_are_named_with_the_folder_that_they_share() -> None:
    """A single file names itself, and the folders of a machine are nobody's business."""
    names = {
        "texts/*.txt": ("texts: *.txt", "texts"),
        "texts/notes.csv": ("notes.csv", "notes.csv"),
        "/home/me/texts/*.txt": ("*.txt", "*.txt"),
        "*.txt": ("*.txt", "*.txt"),
    }
    for files, (name, short) in names.items():
        source = CorpusSource(files=files, text="text")
        assert (name_origin(source), name_origin(source, short=True)) == (name, short)
    files = {"train": "set/train.parquet", "test": "set/test.parquet"}
    task = Task(kind="text_classification", files=files, text=("text",), label="label")
    assert name_origin(task) == "set: train.parquet, test.parquet"
