"""Metrics against scikit-learn's numbers, and bits per byte against counts made by hand."""

import json
from typing import Any

import numpy as np
import pytest

from lineage.metrics import matthews
from lineage.objectives import measures
from tests.golden import golden


def cases(name: str) -> dict[str, Any]:
    return json.loads((golden("metrics") / f"{name}.json").read_text(encoding="utf-8"))


def test_matthews_correlation_is_scikit_learns() -> None:
    found = [case for name, case in cases("correlation").items() if name.startswith("mcc")]
    assert len(found) >= 3
    for case in found:
        assert matthews(np.array(case["y_true"]), np.array(case["y_pred"])) == pytest.approx(case["mcc"], abs=1e-9)


def test_bits_per_byte_counts_bytes_of_utf8_and_is_a_ratio_of_sums() -> None:
    said = cases("bits_per_byte")
    texts = [text for text in said["texts"] if text["utf8_bytes"]]
    for text in texts:
        assert len(text["text"].encode()) == text["utf8_bytes"]
        nats, count = sum(text["token_nll_nats"]), len(text["token_nll_nats"])
        assert measures({"causal": nats}, {"causal": count}, text["utf8_bytes"])["bits_per_byte"] == pytest.approx(text["bits_per_byte"], abs=1e-9)
    nats, size = sum(sum(text["token_nll_nats"]) for text in texts), sum(text["utf8_bytes"] for text in texts)
    found = measures({"forward": nats}, {"forward": said["corpus"]["tokens"]}, size)
    assert found["bits_per_byte_forward"] == pytest.approx(said["corpus"]["bits_per_byte"], abs=1e-9)
