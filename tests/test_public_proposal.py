"""`lineage init` proposes a public checkpoint: of a named folder, or of the Hub's cache."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from flows.new_study import draft_study
from lineage.config.records import parse_yaml
from lineage.errors import InputError
from lineage.study.draft import StudyDraft
from lineage.study.source_records import collect_records
from tests.helpers.new_study import check_in_folder, list_files, make_home, make_tickets
from tests.helpers.public_checkpoints import build_hf_model, save_checkpoint

REVISION = "0123456789abcdef0123456789abcdef01234567"
OTHER_REVISION = REVISION[::-1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def make_draft(public_model: Path | None) -> StudyDraft:
    return draft_study(
        Path("studies/new"),
        ["texts/*.txt"],
        ["queue=train.csv,test=test.csv"],
        public_model=public_model,
    )


def draft(public_model: Path | None = None) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Draft a study, and return its params.yaml as a tree and as text, and the printed lines."""
    made = make_draft(public_model)
    return parse_yaml(made.params_text, Path("params.yaml")), made.params_text, made.lines


def write_tables() -> None:
    make_tickets(1200).to_csv("train.csv", index=False)
    make_tickets(200, seed=2).to_csv("test.csv", index=False)


def fill_cache(home: Path, kind: str, repository: str, revision: str, **overrides: Any) -> None:
    """Put a model into the Hub's cache of the fixture `home`."""
    folder = home / "no-hub" / f"models--{repository.replace('/', '--')}"
    save_checkpoint(kind, folder / "snapshots" / revision, model=build_hf_model(kind, **overrides))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs/main").write_text(revision)


def test_a_named_folder_joins_the_grid_and_is_accepted_by_the_checks(home: Path) -> None:
    write_tables()
    save_checkpoint("distilbert", home / "models/DistilBERT base")
    files = list_files(home)
    tree, _, lines = draft(Path("models/DistilBERT base"))
    assert list_files(home) == files
    assert tree["models"]["distilbert_base"] == {"from": "../../models/DistilBERT base"}
    assert tree["grid"]["models"][-1] == tree["grid"]["adapt_models"][-1] == "distilbert_base"
    assert "not budget-matched" in lines[-1]
    made = make_draft(home / "models/DistilBERT base")
    assert f'from: "{home}/models/DistilBERT base"' in made.params_text, "absolute paths stay"
    check_in_folder(home / "studies/new", made)


def test_a_model_without_a_head_is_not_proposed_for_adaptation(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tables()
    save_checkpoint("electra", home / "electra")
    tree, text, _ = draft(Path("electra"))
    assert "electra" in tree["grid"]["models"]
    assert tree["grid"]["adapt_models"] == ["elmo", "gpt_modern", "bert_modern", "gpt_bert"]
    folder = home / "studies/new"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text(text)
    monkeypatch.chdir(folder)
    from lineage.config.params import read_params

    records = collect_records(read_params(), folder)
    assert records["models/electra"]["source"]["from"] == "../../electra"


def test_a_folder_named_like_a_family_does_not_replace_it(home: Path) -> None:
    write_tables()
    save_checkpoint("bert", home / "bert")
    tree, *_ = draft(Path("bert"))
    assert tree["models"]["public_bert"] == {"from": "../../bert"}
    assert "bert" not in tree["models"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "nowhere is not a folder"), ("texts", r"texts: config\.json is missing")],
)
def test_a_folder_that_cannot_be_read_is_refused(home: Path, name: str, message: str) -> None:
    write_tables()
    with pytest.raises(InputError, match=message):
        draft(Path(name))


def test_the_smallest_model_of_the_hubs_cache_is_proposed_outside_the_grid(home: Path) -> None:
    write_tables()
    before, text_before, lines_before = draft()
    assert "public" not in "".join(lines_before)
    fill_cache(home, "distilbert", "some/Large-1.0", REVISION, hidden_dim=90)
    fill_cache(home, "distilbert", "some/Small-1.0", OTHER_REVISION)
    other = home / f"no-hub/models--some--broken/snapshots/{REVISION}"
    other.mkdir(parents=True)
    (other / "config.json").write_text('{"model_type": "t5"}')
    tree, text, lines = draft()
    assert tree["models"].pop("small_1_0") == {"from": "some/Small-1.0", "revision": OTHER_REVISION}
    assert tree == before, "it is run only if the user adds it to the grid"
    (line,) = set(text.splitlines()) - set(text_before.splitlines())
    assert line.endswith("add it to grid.models and grid.adapt_models to compare it")
    (said,) = set(lines) - set(lines_before)
    assert said.startswith("public model small_1_0: some/Small-1.0 lies in the Hub's cache")


def test_without_transformers_nothing_of_the_cache_is_proposed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tables()
    fill_cache(home, "distilbert", "some/small", REVISION)
    monkeypatch.setattr("lineage.study.public_proposal.is_transformers_available", lambda: False)
    assert "small" not in draft()[0]["models"]
    save_checkpoint("bert", home / "one")
    with pytest.raises(InputError, match=r"--public-model: .*lineage-pretraining\[formats\]"):
        draft(Path("one"))
