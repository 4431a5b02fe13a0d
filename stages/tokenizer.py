"""Stage tokenizer@V: the corpus -> the variant's own tokenizer, and the corpus as its ids."""

from pathlib import Path
from typing import Any

from lineage.artifacts import create, manifest, read_json, read_table
from lineage.loading.public import origin_of
from lineage.loading.public_reader import read_reader
from lineage.params import read_params
from lineage.records import load
from lineage.rows import PUBLIC
from lineage.running.runtime import data_root
from lineage.running.stage import Stage, run
from lineage.text.tokenization import TokenizerSettings
from lineage.text.tokens import encode_corpus
from lineage.text.vocabulary import train_tokenizer


def work(stage: Stage) -> None:
    """Train the tokenizer on the training texts, and write every split as flat arrays."""
    (name,) = stage.arguments
    params, about = read_params(), read_json(Path(f"artifacts/sources/variants/{name}.json"))
    if about["family"] == PUBLIC:
        adopt(stage, name, about)
        return
    # Read without `lineage.study`, so that a change of how models train leaves the tokenizers as they are.
    settings = load(TokenizerSettings, params.models[name]["tokenizer"], f"params.yaml: models.{name}.tokenizer")
    corpus = Path("artifacts/corpora") / params.budget.corpus
    manifest(corpus, "corpus")
    tables = {split: read_table(corpus / f"{split}.parquet", ["text", "language"]) for split in ("train", "valid")}
    several = len(set(tables["train"]["language"]) | set(tables["valid"]["language"])) > 1
    with stage.tracked(parameters={"tokenizer": vars(settings)}, inputs=[corpus], family=about["family"], variant=name) as tracker:
        language = params.corpora[params.budget.corpus].language
        reader = train_tokenizer(tables["train"]["text"].tolist(), settings, unit=about["unit"], language=language)
        tracker.summary({"vocabulary": reader.vocabulary})
        with create(Path("artifacts/tokens") / name, "tokens", vocabulary=reader.vocabulary) as draft:
            reader.save(draft)
            for split, table in tables.items():
                languages = table["language"].tolist() if several else ()
                with stage.progress(f"encode {split}", len(table)) as report:
                    tokens = encode_corpus(table["text"].tolist(), reader, languages=languages, report=report)
                tokens.save(draft, split)
                tracker.summary({f"{split}_tokens": len(tokens.ids), f"{split}_bytes": tokens.text_bytes})


def adopt(stage: Stage, name: str, about: dict[str, Any]) -> None:
    """A public checkpoint's own tokenizer. The corpus is not written as its ids: nothing is pretrained on them."""
    params, where = read_params(), f"params.yaml: models.{name}"
    origin = origin_of(about["source"]["from"], about["source"]["revision"], where)
    language = params.corpora[params.budget.corpus].language
    with stage.tracked(parameters={"tokenizer": origin.place}, inputs=[], family=about["family"], variant=name) as tracker:
        reader = read_reader(origin.unchanged(data_root(), about["source"]), language=language)
        with create(Path("artifacts/tokens") / name, "tokens", vocabulary=reader.vocabulary) as draft:
            reader.save(draft)
        tracker.summary({"vocabulary": reader.vocabulary})


def main() -> None:
    """Run the stage."""
    run("tokenizer", work)


if __name__ == "__main__":
    main()
