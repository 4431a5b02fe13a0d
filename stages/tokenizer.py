"""Stage tokenizer@V: the corpus -> the variant's own tokenizer, and the corpus as its ids."""

from pathlib import Path
from typing import Any

from lineage.artifacts import create_artifact, read_json, read_manifest, read_table
from lineage.config.params import read_params
from lineage.config.records import parse_record
from lineage.models.public_folders import parse_checkpoint_source
from lineage.models.public_tokenizer import load_public_tokenizer
from lineage.results import PUBLIC_FAMILY
from lineage.runtime.settings import resolve_data_root
from lineage.runtime.stage import Stage, run_stage
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import TokenizerSettings
from lineage.tokenizers.train import train_tokenizer


def work(stage: Stage) -> None:
    """Train the tokenizer on the training texts, and write every split as flat arrays."""
    (name,) = stage.arguments
    params, model_record = read_params(), read_json(Path(f"artifacts/sources/models/{name}.json"))
    if model_record["family"] == PUBLIC_FAMILY:
        import_public_tokenizer(stage, name, model_record)
        return
    # Read without `lineage.config.study`, so that a change of how models train leaves the tokenizers as they are.
    settings = parse_record(
        TokenizerSettings, params.models[name]["tokenizer"], f"params.yaml: models.{name}.tokenizer"
    )
    corpus = Path("artifacts/corpora") / params.budget.corpus
    read_manifest(corpus, "corpus")
    tables = {
        split: read_table(corpus / f"{split}.parquet", ["text", "language"])
        for split in ("train", "valid")
    }
    multilingual = len(set(tables["train"]["language"]) | set(tables["valid"]["language"])) > 1
    with stage.track(
        parameters={"tokenizer": vars(settings)},
        inputs=[corpus],
        family=model_record["family"],
        variant=name,
    ) as tracker:
        language = params.corpora[params.budget.corpus].language
        tokenizer = train_tokenizer(
            tables["train"]["text"].tolist(),
            settings,
            tokenizer_type=model_record["unit"],
            language=language,
        )
        tracker.log_summary({"vocabulary": tokenizer.vocab_size})
        with create_artifact(
            Path("artifacts/tokens") / name, "tokens", vocab_size=tokenizer.vocab_size
        ) as draft:
            tokenizer.save(draft)
            for split, table in tables.items():
                languages = table["language"].tolist() if multilingual else ()
                with stage.show_progress(f"encode {split}", len(table)) as report:
                    tokens = encode_corpus(
                        table["text"].tolist(), tokenizer, languages=languages, on_progress=report
                    )
                tokens.save(draft, split)
                tracker.log_summary(
                    {f"{split}_tokens": len(tokens.ids), f"{split}_bytes": tokens.text_bytes}
                )


def import_public_tokenizer(stage: Stage, model: str, model_record: dict[str, Any]) -> None:
    """A public checkpoint's own tokenizer. The corpus is not written as its ids: nothing is pretrained on them."""
    params, where = read_params(), f"params.yaml: models.{model}"
    origin = parse_checkpoint_source(
        model_record["source"]["from"], model_record["source"]["revision"], where
    )
    language = params.corpora[params.budget.corpus].language
    with stage.track(
        parameters={"tokenizer": origin.path_or_repo},
        inputs=[],
        family=model_record["family"],
        variant=model,
    ) as tracker:
        tokenizer = load_public_tokenizer(
            origin.verify_unchanged(resolve_data_root(), model_record["source"]), language=language
        )
        with create_artifact(
            Path("artifacts/tokens") / model, "tokens", vocab_size=tokenizer.vocab_size
        ) as draft:
            tokenizer.save(draft)
        tracker.log_summary({"vocabulary": tokenizer.vocab_size})


def main() -> None:
    """Run the stage."""
    run_stage("tokenizer", work)


if __name__ == "__main__":
    main()
