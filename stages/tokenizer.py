"""Stage tokenizer@MODEL: the corpus -> the model's own tokenizer, and the corpus as token ids."""

from pathlib import Path

import pandas as pd

from lineage.artifacts import check_intact, create_artifact, read_json, read_table
from lineage.config.params import read_recorded_params
from lineage.config.records import parse_record
from lineage.language import byte_count, shuffle_words
from lineage.networks.public_folders import parse_checkpoint_source
from lineage.networks.public_tokenizer import load_public_tokenizer
from lineage.randomness import generator
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
    """Train the tokenizer on the training texts, or take that of a public checkpoint.

    Write every split of the corpus as flat arrays, unless the model does not read it.
    """
    (name,) = stage.arguments
    params = read_recorded_params()
    record = read_json(Path(f"artifacts/sources/models/{name}.json"))
    is_public = record["family"] == PUBLIC_FAMILY
    inputs = []
    tables: dict[str, pd.DataFrame] = {}
    if not is_public or record["reads_corpus"]:
        corpus_dir = Path("artifacts/corpora") / params.budget.corpus
        check_intact(corpus_dir)
        inputs.append(corpus_dir)
        tables = read_corpus(corpus_dir)
    tokenizer_settings: object
    if is_public:
        recorded = record["source"]
        source = parse_checkpoint_source(
            recorded["from"], recorded["revision"], f"params.yaml: models.{name}"
        )
        tokenizer_settings = source.path_or_repo
    else:
        # Not read by lineage.study.models: a change of how models train must not re-run the
        # tokenizers.
        settings = parse_record(
            TokenizerSettings,
            params.models[name].get("tokenizer", {}),
            f"params.yaml: models.{name}.tokenizer",
        )
        tokenizer_settings = vars(settings)
    parameters = {"tokenizer": tokenizer_settings}
    language = params.corpora[params.budget.corpus].language
    tags = {"family": record["family"], "model": name}
    with stage.track(parameters=parameters, inputs=inputs, **tags) as tracker:
        if is_public:
            folder = source.verify_unchanged(resolve_data_root(), recorded)
            tokenizer = load_public_tokenizer(folder, language=language)
        else:
            texts = tables["train"]["text"].tolist()
            with stage.work.measure("corpus", sum(map(byte_count, texts))):
                tokenizer = train_tokenizer(
                    texts, settings, tokenizer_type=record["unit"], language=language
                )
        tokens_dir = Path("artifacts/tokens") / name
        with create_artifact(tokens_dir, "tokens", vocab_size=tokenizer.vocab_size) as draft:
            tokenizer.save(draft)
            if tables:
                if not is_public and settings.shuffle_words:
                    tables["train"] = shuffle_texts(tables["train"], language, params.seed)
                write_token_ids(stage, tracker, tokenizer, tables, draft)
        tracker.log_summary({"vocab_size": tokenizer.vocab_size})


def read_corpus(corpus_dir: Path) -> dict[str, pd.DataFrame]:
    """Read the texts and their languages, by split."""
    return {
        split: read_table(corpus_dir / f"{split}.parquet", ["text", "language"]) for split in SPLITS
    }


def shuffle_texts(table: pd.DataFrame, language: str, seed: int) -> pd.DataFrame:
    """Shuffle the words of each sentence, of each text for itself."""
    texts = [
        shuffle_words(text, language, generator("shuffled words", seed, number))
        for number, text in enumerate(table["text"])
    ]
    return table.assign(text=texts)


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


if __name__ == "__main__":
    run_stage("tokenizer", work)
