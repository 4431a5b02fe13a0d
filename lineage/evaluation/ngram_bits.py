"""The bits per byte of n-gram models on held-out text, as the stage `ngram` writes them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lineage import artifacts
from lineage.config.records import parse_record


@dataclass(frozen=True)
class NgramBits:
    """The bits per byte of a 5-gram model.

    It reads the tokens of a pretrained model, and predicts those of that model's validation. Or it
    is `kneser_ney`, which reads tokens of its own and predicts all held-out text.
    """

    model: str
    metric: str  # of the pretrained model's validation, such as bits_per_byte_forward
    bits_per_byte: float
    text_bytes: int  # of held-out text
    train_bytes: int


@dataclass(frozen=True)
class NgramBitsFile:
    """The content of ngram.json."""

    models: tuple[NgramBits, ...]


def write_ngram_bits(path: Path, bits: Sequence[NgramBits]) -> None:
    artifacts.write_json(path, asdict(NgramBitsFile(tuple(bits))))


def read_ngram_bits(path: Path) -> tuple[NgramBits, ...]:
    """Read the file of `write_ngram_bits`. Raises InputError if it is missing or malformed."""
    return parse_record(NgramBitsFile, artifacts.read_json(path), str(path)).models
