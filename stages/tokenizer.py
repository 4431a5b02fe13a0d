"""Stage tokenizer@MODEL: the corpus -> the model's own tokenizer, and the corpus as token ids."""

from pathlib import Path
from typing import Any

import pandas as pd

from lineage.artifacts import check_intact, create_artifact, read_json, read_table
from lineage.config.params import Params, read_recorded_params
from lineage.config.records import parse_record
from lineage.language import byte_count
from lineage.networks.public_folders import parse_checkpoint_source
from lineage.networks.public_tokenizer import load_public_tokenizer
from lineage.results import PUBLIC_FAMILY
from lineage.runtime.recorder import Tracker
from lineage.runtime.settings import resolve_data_root
from lineage.runtime.stage import Stage, run_stage
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer, TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.work import Stopwatch

SPLITS = ("train", "valid")


def work(stage: Stage) -> None:
    """Train the tokenizer on the training texts, and write every split as flat arrays."""
    (name,) = stage.arguments
    params = read_recorded_params()
    model_record = read_json(Path(f"artifacts/sources/models/{name}.json"))
    if model_record["family"] == PUBLIC_FAMILY:
        import_public_tokenizer(stage, name, model_record)
        return
    # Not read by lineage.study.models: a change of how models train must not re-run the tokenizers.
    settings = parse_record(
        TokenizerSettings,
        params.models[name].get("tokenizer", {}),
        f"params.yaml: models.{name}.tokenizer",
    )
    corpus_dir = find_corpus(params)
    tables = read_corpus(corpus_dir)
    tags = {"family": model_record["family"], "model": name}
    with stage.track(
        parameters={"tokenizer": vars(settings)}, inputs=[corpus_dir], **tags
    ) as tracker:
        texts = tables["train"]["text"].tolist()
        with stage.work.measure("corpus", sum(map(byte_count, texts))):
            tokenizer = train_tokenizer(
                texts,
                settings,
                tokenizer_type=model_record["unit"],
                language=params.corpora[params.budget.corpus].language,
            )
        vocab_size = tokenizer.vocab_size
        tracker.log_summary({"vocab_size": vocab_size})
        tokens_dir = Path("artifacts/tokens") / name
        with create_artifact(tokens_dir, "tokens", vocab_size=vocab_size) as draft:
            tokenizer.save(draft)
            write_token_ids(stage, tracker, tokenizer, tables, draft)


def find_corpus(params: Params) -> Path:
    """Return the folder of the corpus. Raises InputError if it is missing or damaged."""
    corpus_dir = Path("artifacts/corpora") / params.budget.corpus
    check_intact(corpus_dir)
    return corpus_dir


def read_corpus(corpus_dir: Path) -> dict[str, pd.DataFrame]:
    """Read the texts and their languages, by split."""
    return {
        split: read_table(corpus_dir / f"{split}.parquet", ["text", "language"]) for split in SPLITS
    }


def write_token_ids(
    stage: Stage,
    tracker: Tracker,
    tokenizer: Tokenizer,
    tables: dict[str, pd.DataFrame],
    folder: Path,
) -> None:
    """Encode every split of the corpus, and write it as flat arrays."""
    languages = set(tables["train"]["language"]) | set(tables["valid"]["language"])
    for split, table in tables.items():
        stopwatch = Stopwatch()
        with stage.show_progress(f"encode {split}", len(table)) as report:
            tokens = encode_corpus(
                table["text"].tolist(),
                tokenizer,
                languages=table["language"].tolist() if len(languages) > 1 else (),
                on_progress=report,
            )
        tokens.save(folder, split)
        stage.work.add("corpus", tokens.text_bytes, stopwatch.seconds)
        tracker.log_summary(
            {f"{split}_tokens": len(tokens.ids), f"{split}_bytes": tokens.text_bytes}
        )


def import_public_tokenizer(stage: Stage, name: str, model_record: dict[str, Any]) -> None:
    """Write the tokenizer of a public checkpoint.

    The corpus is encoded only if the checkpoint continues on it.
    """
    params = read_recorded_params()
    inputs = []
    tables: dict[str, pd.DataFrame] = {}
    if model_record["reads_corpus"]:
        inputs.append(find_corpus(params))
        tables = read_corpus(inputs[0])
    source_record = model_record["source"]
    source = parse_checkpoint_source(
        source_record["from"], source_record["revision"], f"params.yaml: models.{name}"
    )
    tags = {"family": model_record["family"], "model": name}
    parameters = {"tokenizer": source.path_or_repo}
    with stage.track(parameters=parameters, inputs=inputs, **tags) as tracker:
        tokenizer = load_public_tokenizer(
            source.verify_unchanged(resolve_data_root(), source_record),
            language=params.corpora[params.budget.corpus].language,
        )
        vocab_size = tokenizer.vocab_size
        with create_artifact(
            Path("artifacts/tokens") / name, "tokens", vocab_size=vocab_size
        ) as draft:
            tokenizer.save(draft)
            if tables:
                write_token_ids(stage, tracker, tokenizer, tables, draft)
        tracker.log_summary({"vocab_size": vocab_size})


def main() -> None:
    """Run the stage."""
    run_stage("tokenizer", work)


if __name__ == "__main__":
    main()
