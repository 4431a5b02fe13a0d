"""The training of a head begins with weights, an order and random draws of its own seed."""

import dataclasses
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pytest

from lineage.methods import bilstm_probe, finetuning
from lineage.methods.cached_features import cache_features
from lineage.methods.encoding import encode_items
from tests.helpers import tiny
from tests.helpers.first_word import FINETUNE
from tests.helpers.fitting import finetune, fit_bilstm_probe

TABLE = pd.DataFrame(
    {
        "id": [*map(str, range(9))],
        "text": [" ".join(document.split()[:9]) for document in tiny.documents()[:9]],
    }
)
LABELS = (TABLE.index % 2).to_numpy()


@pytest.mark.parametrize("method", ["finetuned", "network"])
def test_each_seed_has_its_own_start_order_and_random_state(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for fine-tuning and the BiLSTM probe.

    Batch size, clipping and weight decay are those of the settings.
    """
    tokenizer = tiny.tokenizer("bert")
    recorded: dict[str, Any] = {}
    items = encode_items(TABLE, tokenizer, max_length=None, language="en")
    overrides = {"batch_size": 2, "max_grad_norm": 0.7, "weight_decay": 0.3}

    def record_start(
        state: Any, model: Any, objective: Any, sampler: Any, settings: Any, **_: Any
    ) -> MagicMock:
        sampler.set_epoch(0)
        trained = model.head if method == "finetuned" else model
        decay = {
            group["weight_decay"]
            for group in state.optimizer.param_groups
            if any(p.dim() > 1 for p in group["params"])
        }
        recorded.update(start=[p.tolist() for p in trained.parameters()], order=[group.tolist() for group in sampler.batch_indices],
                     draws=state.rng_state.state.tolist(), clip=settings.max_grad_norm, decay=decay)  # fmt: skip
        return MagicMock(model=model)

    def start_training(seed: int) -> dict[str, Any]:
        if method == "finetuned":
            finetune(
                tiny.model("bert"),
                tokenizer,
                items,
                LABELS,
                tiny.label_answer(2),
                dataclasses.replace(FINETUNE, **overrides),
                seed=seed,
                precision="fp32",
            )
        else:
            cached = cache_features(tiny.model("bert"), tokenizer, items, precision="fp32")
            fit_bilstm_probe(
                cached,
                LABELS,
                tiny.label_answer(2),
                dataclasses.replace(tiny.BILSTM_PROBE, **overrides),
                seed=seed,
                device=tiny.CPU,
            )
        return dict(recorded)

    monkeypatch.setattr(
        finetuning if method == "finetuned" else bilstm_probe, "ValidatedTraining", record_start
    )
    one, same, other = map(start_training, (3, 3, 4))
    for key in ("start", "order", "draws"):
        assert one[key] == same[key] and one[key] != other[key], key
    assert one["clip"] == 0.7 and one["decay"] == {0.3}
