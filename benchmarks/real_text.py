"""What the systems of finished profiles learned of real text: `python -m benchmarks.real_text .runs/real-text .runs/real-text-again`.

A folder is the worktree of a run. Each trained model reads two held texts of corpus-small under the data root, which no profile trains on:
test.parquet, of the same kind as the training text, and wikitext2_validation.parquet, the real one, put back from tokens into writing. Text is
read as in the pipeline's own validation: by the model's own stream, whose lanes or windows run over the ends of documents. Figures, curves and
a picture go to benchmarks/results (real_text.json, .md, .csv, .svg).
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
from benchmarks.bigrams import Bigrams
from benchmarks.cache import Cache, cached_nats
from benchmarks.contest import machine
from lineage.artifacts import read_json, read_manifest, read_table, write_json
from lineage.config.params import read_params
from lineage.data.language import normalize_text
from lineage.errors import InputError
from lineage.models.checkpoint import Checkpoint
from lineage.runtime.settings import resolve_data_root
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.budget import count_parameters_by_role
from lineage.training.devices import configure_torch
from lineage.training.loop import validate
from lineage.training.objectives import LossSums, compute_lm_metrics, regularized_lm_loss
from lineage.training.pretrain import ALL_BATCHES, to_validation_settings
from lineage.training.samplers import BatchSampler, iterate_batches

RESULTS = Path(__file__).parent / "results"
HELD = {
    "test": "corpus-small/test.parquet",
    "wikitext2": "corpus-small/wikitext2_validation.parquet",
}
TOKENISED = (
    "wikitext2"  # the split that was written as tokens, with <unk> for what its makers did not know
)
UNWRITTEN = "\ue000"  # one word that nobody writes, for readers of words where <unk> stands
AS_WRITTEN = ((r" @([-,.])@ ", r"\1"), (r" ([.,:;?!%)\]])", r"\1"), (r"([(\[$]) ", r"\1"), (r" ('(?:s|m|d|re|ve|ll)|n't)\b", r"\1"),
              (r'" ([^"\n]*?) "', r'"\1"'))  # fmt: skip
# Published numbers: system, perplexity on WikiText-2 validation and test, and where it is reported.
PUBLISHED = (
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
    "The published systems trained on WikiText-2's own training text, tokenised, with its 33,278 words and up to hundreds of passes; ours on other "
    "articles of Wikipedia, as they are written, with fewer words and a few passes, and here they read WikiText-2's validation text put back into "
    "writing. The columns stand side by side to say how far apart they are, not which is better. A word outside of the vocabulary counts as <unk>, "
    "so a perplexity belongs to its share of unknown words. Nats are shared out among words and sentence ends; <S>, which always follows </S>, "
    "is no word of its own, though its nats stay in (backward: the other way round). A cache learns the text that is measured: what it gives stands "
    "beside the model's own perplexity, with the window, theta and lambda that were found for another model, and in no comparison."
)


@dataclass(frozen=True)
class Trained:
    """One model of a finished run."""

    profile: str
    root: Path  # of the run
    seed: int  # of its pretraining
    checkpoint: Checkpoint
    spent: dict[str, Any]

    @property
    def tokens(self) -> Path:
        """The folder of its corpus as ids."""
        return self.root / "artifacts" / "tokens" / self.checkpoint.model_name


def trained_models(root: Path) -> list[Trained]:
    """The models of a run that have a loss. Raises InputError where one is not there, or its training failed."""
    if not (root / "params.yaml").is_file():
        raise InputError(
            f"{root}: no run is here; run `python -m flows.pipeline --local --profile NAME` and give its folder, .runs/NAME"
        )
    params, found = read_params(root / "params.yaml"), []
    for variant in params.grid.models:
        for seed in params.grid.pretrain_seeds:
            folder = root / "artifacts" / "pretrained" / variant / str(seed)
            if not folder.is_dir():
                raise InputError(
                    f"{root}: {variant} was not trained; let `python -m flows.pipeline --local --profile {root.name}` end first"
                )
            if reason := read_manifest(folder, "model")["reason"]:
                raise InputError(
                    f"{root}: the training of {variant} failed ({reason}); mend the profile"
                )
            one = Trained(
                root.name, root, seed, Checkpoint.load(folder), read_json(folder / "spent.json")
            )
            found += (
                [one] if one.checkpoint.family.batch_sampler is not None else []
            )  # static vectors have no loss
    return found


def held_texts(root: Path) -> dict[str, list[str]]:
    """The held texts, cleaned as a corpus is. Raises InputError."""
    found = {}
    for name, path in HELD.items():
        if not (root / path).is_file():
            raise InputError(
                f"{root / path}: there is no such file; name the folder that holds corpus-small by data_root in runtime.yaml"
            )
        texts = [normalize_text(text) for text in read_table(root / path, ["text"])["text"]]
        found[name] = [as_written(text) for text in texts] if name == TOKENISED else texts
    return found


def as_written(text: str) -> str:
    """WikiText's tokens as they would be written: no @-@, and no space before a comma. <unk> stays."""
    for pattern, written in AS_WRITTEN:
        text = re.sub(pattern, written, text)
    return text


def measured(checkpoint: Checkpoint, model: nn.Module, texts: Sequence[str]) -> dict[str, float]:
    """What the family's objective finds on a text: perplexity of words, else bits per byte, or nats a masked piece and next sentence."""
    family, reader = checkpoint.family, checkpoint.tokenizer
    assert family.batch_sampler is not None and family.objective is not None, (
        "static vectors have no loss"
    )
    if reader.tokenizer_type == "word":
        texts = [text.replace("<unk>", UNWRITTEN) for text in texts]
    stream = family.batch_sampler(
        encode_corpus(texts, reader), reader, to_validation_settings(checkpoint.pretrain), seed=0
    )
    sums = validate(model, family.objective, stream, max_batches=ALL_BATCHES, precision="fp32")
    if reader.tokenizer_type != "word":
        return compute_lm_metrics(sums)
    found = perplexities(sums.nats, stream, reader)
    if family.objective is not regularized_lm_loss:
        return found
    cached = perplexities(cached_nats(model, stream, Cache()), stream, reader)
    return found | {
        f"{name}_with_a_cache": value
        for name, value in cached.items()
        if name.startswith("perplexity")
    }


def perplexities(
    nats: dict[str, float], stream: BatchSampler, reader: Tokenizer
) -> dict[str, float]:
    """exp of the nats a word or sentence end, over the full vocabulary; the words counted, and the share of them that is not in the vocabulary."""
    sure = {
        "forward": reader.special_token_ids["<S>"],
        "backward": reader.special_token_ids["</S>"],
    }  # what one always knows
    counts, words, unknown = dict.fromkeys(nats, 0), 0, 0
    for _, _, batch in iterate_batches(stream):
        assert batch.targets_BT is not None
        for way, targets in zip(nats, batch.targets_BT.chunk(len(nats)), strict=True):
            counts[way] += int((targets != sure[way]).sum())
            words += int(
                (
                    (targets != reader.special_token_ids["<S>"])
                    & (targets != reader.special_token_ids["</S>"])
                ).sum()
            )
            unknown += int((targets == reader.special_token_ids["<unk>"]).sum())
    found = {
        f"perplexity_{way}": float(np.exp(total / max(counts[way], 1)))
        for way, total in nats.items()
    }
    return found | {"words": words / len(nats), "unknown_token_rate": unknown / max(words, 1)}


def pairs(stream: BatchSampler, *, text_bytes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(N,) pieces and (N,) those after them: of a whole text, or of the batches that a training of so many bytes reads."""
    before, after, size = [], [], 0
    for _, _, batch in iterate_batches(stream, max_epochs=1 if text_bytes is None else None):
        if text_bytes is not None and size >= text_bytes:
            break
        assert batch.targets_BT is not None
        before.append(batch.ids_BT.flatten().numpy())
        after.append(batch.targets_BT.flatten().numpy())
        size += batch.text_bytes
    return np.concatenate(before), np.concatenate(after)


def bigrams_of(trained: Trained) -> Bigrams:
    """Bigrams of the very batches that the model learned from, their weights fitted on the run's validation text."""
    checkpoint, family = trained.checkpoint, trained.checkpoint.family
    assert family.batch_sampler is not None
    learned, held = (family.batch_sampler(TokenizedCorpus.load(trained.tokens, split), checkpoint.tokenizer, checkpoint.pretrain, seed=seed)
                     for split, seed in (("train", checkpoint.seed), ("valid", 0)))  # fmt: skip
    counted = Bigrams.counted(
        *pairs(learned, text_bytes=trained.spent["text_bytes"]), checkpoint.tokenizer.vocab_size
    )
    return counted.fitted(*pairs(held))


def counted_measures(trained: Trained, texts: Sequence[str], bigrams: Bigrams) -> dict[str, float]:
    """The bigrams' bits per byte on what the model predicts of a text."""
    checkpoint = trained.checkpoint
    assert checkpoint.family.batch_sampler is not None
    stream = checkpoint.family.batch_sampler(
        encode_corpus(texts, checkpoint.tokenizer),
        checkpoint.tokenizer,
        checkpoint.pretrain,
        seed=0,
    )
    nats = -float(np.log(bigrams.probabilities(*pairs(stream))).sum())
    text_bytes = sum(batch.text_bytes for _, _, batch in iterate_batches(stream))
    return {
        "bigram_bits_per_byte": compute_lm_metrics(
            LossSums({"causal": nats}, {"causal": 0}, text_bytes)
        )["bits_per_byte"]
    }


def system(trained: Trained, held: dict[str, list[str]]) -> dict[str, Any]:
    """All that is written of one model."""
    checkpoint = trained.checkpoint
    model = checkpoint.build(torch.device("cpu"))
    found = {name: measured(checkpoint, model, texts) for name, texts in held.items()}
    about = {"profile": trained.profile, "model": checkpoint.model_name, "family": checkpoint.family.name, "vocab_size": checkpoint.tokenizer.vocab_size,
             "lossless": checkpoint.tokenizer.lossless, "spent": trained.spent, "parameters": count_parameters_by_role(model), "held": found}  # fmt: skip
    if "bits_per_byte" in found["test"]:
        bigrams = bigrams_of(trained)
        about["bigram_weights"] = bigrams.weights
        for name, texts in held.items():
            found[name] |= counted_measures(trained, texts, bigrams)
    return about | {
        "last_check": curves.last_check(
            curves.curve(trained.root, checkpoint.model_name, trained.seed)
        )
    }


def markdown(found: dict[str, Any]) -> str:
    """The figures as tables, beside published ones."""
    heads = ("system", "profile", "text read", "body", "vocabulary", "held text", "figures")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for one in found["systems"]:
        spent, body = one["spent"], one["spent"]["body_parameters"]
        read = f"{spent['text_bytes'] / 1e6:.1f} MB, {spent['epochs']:.2f} epochs"
        for split, figures in one["held"].items():
            shown = ", ".join(
                f"{name.replace('_', ' ')} {value:,.4g}" for name, value in figures.items()
            )
            lines.append(
                f"| {one['model']} | {one['profile']} | {read} | {body:,} | {one['vocab_size']:,} | {split} | {shown} |"
            )
    lines += [
        "",
        "Published, on WikiText-2:",
        "",
        "| system | validation | test | reported by |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {first} | {second or ''} | {where} |"
        for name, first, second, where in PUBLISHED
    ]
    return (
        "\n".join(
            [
                *lines,
                "",
                REMARK,
                "",
                "Machine: "
                + ", ".join(f"{key} {value}" for key, value in found["machine"].items())
                + ".",
            ]
        )
        + "\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Measure, write and print; 2 where a folder or a text is not what it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="the worktree of a finished run, such as .runs/real-text",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    configure_torch(1)
    try:
        models = [one for folder in given.folders for one in trained_models(folder)]
        held = held_texts(resolve_data_root())
        systems = []
        for one in models:
            print(f"{one.profile}: {one.checkpoint.model_name} ...", file=sys.stderr, flush=True)
            systems.append(system(one, held))
    except InputError as error:
        print(f"real_text: {error}", file=sys.stderr)
        return 2
    found = {"machine": machine(), "systems": systems}
    write_json(given.out / "real_text.json", found)
    (given.out / "real_text.md").write_text(markdown(found), encoding="utf-8")
    curves.write(
        {
            (one.profile, one.checkpoint.model_name): curves.curve(
                one.root, one.checkpoint.model_name, one.seed
            )
            for one in models
        },
        given.out,
    )
    print(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
