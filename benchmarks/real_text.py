"""Measure what the models of finished runs learned from real text.

    python -m benchmarks.real_text real-text real-text-again

Each folder is a study that has run. Each trained model reads two held-out texts of corpus-small
below the data root, on which no study trains: test.parquet, of the same kind as the training
text, and wikitext2_validation.parquet, WikiText-2's validation text with its tokens joined into
plain text. They are read as in the pipeline's validation: by the model's own sampler, whose
sequences continue over the ends of documents. The results, the learning curves and a plot are
written to benchmarks/results (real_text.json, .md, .csv, .svg).
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import curves
from benchmarks.bigrams import BigramModel
from benchmarks.cache import ContinuousCache, sum_nats_with_cache
from benchmarks.contest import describe_machine
from lineage.artifacts import read_json, read_manifest, read_table, write_json
from lineage.config.params import read_params
from lineage.errors import InputError
from lineage.language import normalize_text
from lineage.networks.batch import BatchSampler
from lineage.networks.checkpoint import Checkpoint
from lineage.runtime.settings import resolve_data_root
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.budget import count_parameters_by_role
from lineage.training.devices import configure_torch
from lineage.training.loop import validate
from lineage.training.objectives import LossSums, compute_lm_metrics, regularized_lm_loss
from lineage.training.pretrain import to_validation_settings
from lineage.training.samplers import iterate_batches
from lineage.training.train_run import ALL_BATCHES

RESULTS = Path(__file__).parent / "results"
# The held-out texts, below the data root.
HELDOUT_PATHS = {
    "test": "corpus-small/test.parquet",
    "wikitext2": "corpus-small/wikitext2_validation.parquet",
}
TOKENIZED_TEXT = "wikitext2"  # written as tokens, with <unk> for unknown words
# Tokenizers of words read this character, which no text contains, in place of <unk>.
UNKNOWN_WORD = "\ue000"
# Patterns of WikiText's tokens, and their replacements in plain text.
DETOKENIZATION_RULES = (
    (r" @([-,.])@ ", r"\1"),
    (r" ([.,:;?!%)\]])", r"\1"),
    (r"([(\[$]) ", r"\1"),
    (r" ('(?:s|m|d|re|ve|ll)|n't)\b", r"\1"),
    (r'" ([^"\n]*?) "', r'"\1"'),
)
# Published results: system, perplexity on WikiText-2 validation and test, and where it is reported.
PUBLISHED_RESULTS = (
    ("plain LSTM, 2 x 200, tied", 107.6, None, "GluonNLP"),
    ("plain LSTM, 650 units", 91.0, 86.9, "GluonNLP"),
    ("plain LSTM, 1500 units", 86.5, 82.3, "GluonNLP"),
    ("plain LSTM, SGD, 100 epochs", 101.1, 95.8, "jcblaise"),
    ("AWD-LSTM, 600/200", 84.9, 80.7, "GluonNLP"),
    ("AWD-LSTM, 1150, Adam and warm-up, 150 epochs", 85.3, 81.0, "jcblaise"),
    ("AWD-LSTM, 1150, SGD without NT-ASGD, 150 epochs", 77.8, 74.2, "jcblaise"),
    ("AWD-LSTM, 750 epochs", 68.7, 65.6, "salesforce/awd-lstm-lm"),
    ("the same, fine-tuned, with a cache", 52.2, 50.6, "salesforce/awd-lstm-lm"),
)
REMARK = (
    "The published systems trained on WikiText-2's own training text, tokenised, with its 33,278 "
    "words and up to hundreds of passes; ours on other articles of Wikipedia, as they are "
    "written, with fewer words and a few passes, and here they read WikiText-2's validation text "
    "put back into writing. The columns stand side by side to say how far apart they are, not "
    "which is better. A word outside of the vocabulary counts as <unk>, so a perplexity belongs "
    "to its share of unknown words. Nats are shared out among words and sentence ends; <S>, which "
    "always follows </S>, is no word of its own, though its nats stay in (backward: the other way "
    "round). A cache learns the text that is measured: what it gives stands beside the model's "
    "own perplexity, with the window, theta and lambda that were found for another model, and in "
    "no comparison."
)


@dataclass(frozen=True)
class TrainedModel:
    """A pretrained model of a finished run."""

    study: str
    run_root: Path
    pretrain_seed: int
    checkpoint: Checkpoint
    budget_used: dict[str, Any]

    @property
    def token_folder(self) -> Path:
        """The folder of its training corpus as token ids."""
        return self.run_root / "artifacts" / "tokens" / self.checkpoint.model_name


def load_trained_models(root: Path) -> list[TrainedModel]:
    """Load the models of a run that have a language-model loss.

    Raises InputError if a model is missing or its training failed.
    """
    if not (root / "params.yaml").is_file():
        raise InputError(
            f"{root}: no study is here; make one with `lineage init NAME --from real-text`, "
            "then `lineage run` in its folder"
        )
    params = read_params(root / "params.yaml")
    models = []
    for model_name in params.grid.models:
        for seed in params.grid.pretrain_seeds:
            model = _load_trained_model(root, model_name, seed)
            # Static vectors have no loss.
            if model.checkpoint.family.batch_sampler is not None:
                models.append(model)
    return models


def _load_trained_model(root: Path, model_name: str, seed: int) -> TrainedModel:
    folder = root / "artifacts" / "pretrained" / model_name / str(seed)
    if not folder.is_dir():
        raise InputError(f"{root}: {model_name} was not trained; let `lineage run` end there first")
    reason = read_manifest(folder, "model")["reason"]
    if reason:
        raise InputError(
            f"{root}: the training of {model_name} failed ({reason}); change its params.yaml"
        )
    return TrainedModel(
        study=root.name,
        run_root=root,
        pretrain_seed=seed,
        checkpoint=Checkpoint.load(folder),
        budget_used=read_json(folder / "spent.json"),
    )


def load_heldout_texts(data_root: Path) -> dict[str, list[str]]:
    """Load the held-out texts, normalized like a corpus. Raises InputError if one is missing."""
    heldout_texts = {}
    for name, relative_path in HELDOUT_PATHS.items():
        path = data_root / relative_path
        if not path.is_file():
            raise InputError(
                f"{path}: there is no such file; "
                "name the folder that holds corpus-small by data_root in runtime.yaml"
            )
        texts = [normalize_text(text) for text in read_table(path, ["text"])["text"]]
        if name == TOKENIZED_TEXT:
            texts = [detokenize(text) for text in texts]
        heldout_texts[name] = texts
    return heldout_texts


def detokenize(text: str) -> str:
    """Join WikiText's tokens into plain text: no @-@, no space before a comma. <unk> stays."""
    for pattern, replacement in DETOKENIZATION_RULES:
        text = re.sub(pattern, replacement, text)
    return text


def measure(checkpoint: Checkpoint, model: nn.Module, texts: Sequence[str]) -> dict[str, float]:
    """Compute the language-model metrics of a text.

    They are perplexities for a tokenizer of words, and bits per byte, or nats per masked token and
    next-sentence accuracy, for the others.
    """
    family = checkpoint.family
    tokenizer = checkpoint.tokenizer
    assert family.batch_sampler is not None, "static vectors have no loss"
    assert family.objective is not None
    if tokenizer.tokenizer_type == "word":
        texts = [text.replace("<unk>", UNKNOWN_WORD) for text in texts]
    sampler = family.batch_sampler(
        encode_corpus(texts, tokenizer),
        tokenizer,
        to_validation_settings(checkpoint.pretrain),
        seed=0,
    )
    sums = validate(model, family.objective, sampler, max_batches=ALL_BATCHES, precision="fp32")
    if tokenizer.tokenizer_type != "word":
        return compute_lm_metrics(sums)
    metrics = compute_perplexities(sums.nats, sampler, tokenizer)
    if family.objective is regularized_lm_loss:
        cached_nats = sum_nats_with_cache(model, sampler, ContinuousCache())
        for name, value in compute_perplexities(cached_nats, sampler, tokenizer).items():
            if name.startswith("perplexity"):
                metrics[f"{name}_with_a_cache"] = value
    return metrics


def compute_perplexities(
    nats_by_direction: dict[str, float], sampler: BatchSampler, tokenizer: Tokenizer
) -> dict[str, float]:
    """Return the perplexity per direction, the number of words, and the share of unknown words.

    A perplexity is exp of the nats per word or sentence end. The sentence start, which always
    follows a sentence end, is not counted; in the backward direction it is the other way round.
    """
    sentence_start = tokenizer.special_token_ids["<S>"]
    sentence_end = tokenizer.special_token_ids["</S>"]
    unknown = tokenizer.special_token_ids["<unk>"]
    uncounted_id = {"forward": sentence_start, "backward": sentence_end}
    num_directions = len(nats_by_direction)
    target_counts = dict.fromkeys(nats_by_direction, 0)
    num_words = 0
    num_unknown = 0
    for _, _, batch in iterate_batches(sampler):
        assert batch.targets_BT is not None
        targets_by_direction = batch.targets_BT.chunk(num_directions)
        for direction, targets in zip(nats_by_direction, targets_by_direction, strict=True):
            is_word = (targets != sentence_start) & (targets != sentence_end)
            target_counts[direction] += int((targets != uncounted_id[direction]).sum())
            num_words += int(is_word.sum())
            num_unknown += int((targets == unknown).sum())
    metrics = {}
    for direction, nats in nats_by_direction.items():
        metrics[f"perplexity_{direction}"] = float(np.exp(nats / max(target_counts[direction], 1)))
    metrics["words"] = num_words / num_directions
    metrics["unknown_token_rate"] = num_unknown / max(num_words, 1)
    return metrics


def token_pairs(
    sampler: BatchSampler, *, text_bytes: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the input ids and the ids that follow them, both (N,).

    They are those of one epoch, or of the batches that a training on `text_bytes` reads.
    """
    first_ids = []
    second_ids = []
    size_bytes = 0
    max_epochs = 1 if text_bytes is None else None
    for _, _, batch in iterate_batches(sampler, max_epochs=max_epochs):
        if text_bytes is not None and size_bytes >= text_bytes:
            break
        assert batch.targets_BT is not None
        first_ids.append(batch.ids_BT.flatten().numpy())
        second_ids.append(batch.targets_BT.flatten().numpy())
        size_bytes += batch.text_bytes
    return np.concatenate(first_ids), np.concatenate(second_ids)


def fit_bigrams(trained: TrainedModel) -> BigramModel:
    """Count the bigrams of the batches that the model was trained on.

    The weights are fitted on the validation text of the run.
    """
    checkpoint = trained.checkpoint
    build_sampler = checkpoint.family.batch_sampler
    assert build_sampler is not None

    def load_sampler(split: str, seed: int) -> BatchSampler:
        corpus = TokenizedCorpus.load(trained.token_folder, split)
        return build_sampler(corpus, checkpoint.tokenizer, checkpoint.pretrain, seed=seed)

    train_pairs = token_pairs(
        load_sampler("train", checkpoint.seed), text_bytes=trained.budget_used["text_bytes"]
    )
    bigrams = BigramModel.from_pairs(*train_pairs, vocab_size=checkpoint.tokenizer.vocab_size)
    return bigrams.fit_weights(*token_pairs(load_sampler("valid", 0)))


def compute_bigram_bits_per_byte(
    checkpoint: Checkpoint, texts: Sequence[str], bigrams: BigramModel
) -> float:
    """Return the bits per byte of the bigram model on the tokens that the model predicts."""
    assert checkpoint.family.batch_sampler is not None
    sampler = checkpoint.family.batch_sampler(
        encode_corpus(texts, checkpoint.tokenizer),
        checkpoint.tokenizer,
        checkpoint.pretrain,
        seed=0,
    )
    nats = -float(np.log(bigrams.probabilities(*token_pairs(sampler))).sum())
    text_bytes = sum(batch.text_bytes for _, _, batch in iterate_batches(sampler))
    sums = LossSums({"causal": nats}, {"causal": 0}, text_bytes)
    return compute_lm_metrics(sums)["bits_per_byte"]


def measure_system(trained: TrainedModel, heldout_texts: dict[str, list[str]]) -> dict[str, Any]:
    """Return the record of a model in real_text.json."""
    checkpoint = trained.checkpoint
    model = checkpoint.build(torch.device("cpu"))
    metrics = {name: measure(checkpoint, model, texts) for name, texts in heldout_texts.items()}
    curve = curves.read_curve(trained.run_root, checkpoint.model_name, trained.pretrain_seed)
    record = {
        "study": trained.study,
        "model": checkpoint.model_name,
        "family": checkpoint.family.name,
        "vocab_size": checkpoint.tokenizer.vocab_size,
        "lossless": checkpoint.tokenizer.lossless,
        "spent": trained.budget_used,
        "parameters": count_parameters_by_role(model),
        "held": metrics,
        "last_check": curves.last_validation(curve),
    }
    if "bits_per_byte" in metrics["test"]:
        bigrams = fit_bigrams(trained)
        record["bigram_weights"] = bigrams.weights
        for name, texts in heldout_texts.items():
            metrics[name]["bigram_bits_per_byte"] = compute_bigram_bits_per_byte(
                checkpoint, texts, bigrams
            )
    return record


def format_markdown(results: dict[str, Any]) -> str:
    """Format the results as a table, next to a table of published results."""
    titles = ("system", "study", "text read", "body", "vocabulary", "held text", "figures")
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for system in results["systems"]:
        lines += _format_system(system)
    lines += [
        "",
        "Published, on WikiText-2:",
        "",
        "| system | validation | test | reported by |",
        "|---|---|---|---|",
    ]
    for name, validation, test, source in PUBLISHED_RESULTS:
        lines.append(f"| {name} | {validation} | {test or ''} | {source} |")
    machine = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    lines += ["", REMARK, "", f"Machine: {machine}."]
    return "\n".join(lines) + "\n"


def _format_system(system: dict[str, Any]) -> list[str]:
    """Return the table rows of a system, one per held-out text."""
    spent = system["spent"]
    first_cells = [
        system["model"],
        system["study"],
        f"{spent['text_bytes'] / 1e6:.1f} MB, {spent['epochs']:.2f} epochs",
        f"{spent['body_parameters']:,}",
        f"{system['vocab_size']:,}",
    ]
    rows = []
    for text_name, metrics in system["held"].items():
        figures = [f"{name.replace('_', ' ')} {value:,.4g}" for name, value in metrics.items()]
        rows.append(f"| {' | '.join([*first_cells, text_name, ', '.join(figures)])} |")
    return rows


def main(arguments: Sequence[str]) -> int:
    """Measure all models, and write and print the results. Returns 2 after an input error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="the folder of a finished study",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    configure_torch(1)
    trained_models: list[TrainedModel] = []
    systems = []
    try:
        for folder in options.folders:
            trained_models += load_trained_models(folder)
        heldout_texts = load_heldout_texts(resolve_data_root())
        for trained in trained_models:
            message = f"{trained.study}: {trained.checkpoint.model_name} ..."
            print(message, file=sys.stderr, flush=True)
            systems.append(measure_system(trained, heldout_texts))
    except InputError as error:
        print(f"real_text: {error}", file=sys.stderr)
        return 2

    results = {"machine": describe_machine(), "systems": systems}
    markdown = format_markdown(results)
    write_json(options.out / "real_text.json", results)
    (options.out / "real_text.md").write_text(markdown, encoding="utf-8")
    curve_by_model = {}
    for trained in trained_models:
        model_name = trained.checkpoint.model_name
        curve = curves.read_curve(trained.run_root, model_name, trained.pretrain_seed)
        curve_by_model[trained.study, model_name] = curve
    curves.write_curves(curve_by_model, options.out)
    print(markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
