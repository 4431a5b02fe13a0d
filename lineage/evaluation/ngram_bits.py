"""The scores of counting on held-out text, as the stage `ngram` writes it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from lineage import artifacts
from lineage.config.records import parse_record

Predicted = Literal["next tokens", "masked tokens"]


@dataclass(frozen=True)
class NgramBits:
    """The bits per byte of a 5-gram model.

    It is `kneser_ney`, which reads tokens of its own and predicts all held-out text. In reports
    made before there were `HeldoutLosses`, others read the tokens of a pretrained model, and
    predict those of that model's last validation.
    """

    model: str
    metric: str  # of the pretrained model's validation, such as bits_per_byte_forward
    bits_per_byte: float
    text_bytes: int  # of held-out text
    train_bytes: int


@dataclass(frozen=True)
class HeldoutLosses:
    """The losses of a pretrained model and of counting on the same blocks of held-out text.

    All losses are sums in nats, one for each block.
    """

    model: str
    predicted: Predicted
    train_bytes: int  # of the text that is counted
    num_units: tuple[int, ...]  # bytes of text, or masked tokens
    model_nats: tuple[tuple[float, ...], ...]  # of each pretraining that has not failed
    ngram_nats: tuple[float, ...]  # of masked tokens, by 5-grams on both sides
    frequency_nats: tuple[float, ...] = ()  # of masked tokens, by the frequency of tokens

    @property
    def model_bits(self) -> float:
        """Bits per byte or per masked token, the mean of the pretrainings."""
        return self._bits(np.mean(self.model_nats, axis=0))

    @property
    def ngram_bits(self) -> float:
        """Bits per byte or per masked token."""
        return self._bits(self.ngram_nats)

    @property
    def frequency_bits(self) -> float | None:
        """Bits per masked token, None for next tokens."""
        return self._bits(self.frequency_nats) if self.frequency_nats else None

    def _bits(self, nats: npt.ArrayLike) -> float:
        return float(np.sum(nats) / math.log(2) / sum(self.num_units))


@dataclass(frozen=True)
class NgramFile:
    """The content of ngram.json."""

    models: tuple[NgramBits, ...]
    heldout: tuple[HeldoutLosses, ...] = ()


def write_ngram_file(
    path: Path, bits: Sequence[NgramBits], heldout: Sequence[HeldoutLosses] = ()
) -> None:
    artifacts.write_json(path, asdict(NgramFile(tuple(bits), tuple(heldout))))


def read_ngram_file(path: Path) -> NgramFile:
    """Read the file of `write_ngram_file`. Raises InputError if it is missing or malformed."""
    return parse_record(NgramFile, artifacts.read_json(path), str(path))
