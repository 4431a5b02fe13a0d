"""The modern Transformer, its batches and its optimizer.

Shapes: B items, T positions, D width.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lineage.errors import InputError
from lineage.families.gpt_bert import CAUSAL, MASKED, MixedWindows, mixed_lm_loss
from lineage.families.modern_transformer import ModernConfig, ModernTransformer, rms_norm
from lineage.networks.batch import IGNORE_INDEX, Batch
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training.masked_lm_batches import MaskedWindows
from lineage.training.optimizers import (
    AdamW,
    Muon,
    build_pretraining_optimizer,
    orthogonalize,
    set_learning_rates,
)
from tests.helpers import tiny
from tests.helpers.trainings import pretrain_tiny_model

TEXT = "the small dog sees a big cat near the old house"


def hf_layers(reference: Any) -> dict[str, torch.Tensor]:
    """Return the weights of transformers' NanoChat by our names."""
    weights = {"token_embeddings.weight": reference.embed_tokens.weight}
    for index, layer in enumerate(reference.layers):
        attention = layer.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        weights |= {
            f"blocks.{index}.qkv_3DD": torch.stack([part.weight for part in projections]),
            f"blocks.{index}.out_DD": attention.o_proj.weight,
            f"blocks.{index}.ffn_in_FD": layer.mlp.fc1.weight,
            f"blocks.{index}.ffn_out_DF": layer.mlp.fc2.weight,
        }
    return weights


def test_the_block_agrees_with_nanochat_in_transformers() -> None:
    config = transformers.NanoChatConfig(vocab_size=53, hidden_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, intermediate_size=36,
                                         max_position_embeddings=64, initializer_range=0.2, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})  # fmt: skip
    torch.manual_seed(5)
    reference = transformers.NanoChatModel(config).double().eval()
    ours = ModernTransformer(
        ModernConfig(num_layers=3, num_heads=2, max_positions=64, hidden_size=24, ffn_size=36),
        vocab_size=53,
        causal=True,
    ).double()
    ours.load_state_dict(hf_layers(reference))
    ids_BT = torch.randint(0, 53, (3, 17))
    batch = Batch(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))
    expected = reference(input_ids=ids_BT).last_hidden_state
    torch.testing.assert_close(ours.eval().encode(batch)[-1], expected, atol=1e-6, rtol=1e-6)


def test_gpt_bert_reads_a_causal_batch_from_left_to_right() -> None:
    model = tiny.model("gpt_bert").eval()
    batch = tiny.tokenizer("gpt_bert").collate([tiny.tokenizer("gpt_bert").encode(TEXT)])
    changed_BT = batch.ids_BT.clone()
    changed_BT[0, 6] += 1
    changed = dataclasses.replace(batch, ids_BT=changed_BT)
    before, after = (model.run_blocks(one, causal=True)[-1][0] for one in (batch, changed))
    assert torch.equal(before[:6], after[:6])
    assert not torch.allclose(before[6], after[6])


def test_a_new_block_is_the_identity() -> None:
    model = tiny.checkpoint("gpt_modern").build(tiny.CPU, load_weights=False)
    layers = model.encode(tiny.batch("gpt_modern", 0))
    torch.testing.assert_close(layers[-1], rms_norm(layers[0]))


def mixed_windows(**overrides: Any) -> MixedWindows:
    sampler: MixedWindows = tiny.sampler(
        "gpt_bert", pretrain={"batch_size": 3, "seq_len": 23} | overrides
    )
    return sampler


def test_gpt_bert_predicts_every_token_at_the_position_before_it() -> None:
    """The next tokens of a causal batch, and the masked ones of another."""
    causal, masked = (mixed_windows(causal_share=share) for share in (1.0, 0.0))
    windows = causal.read_windows(0)
    text_BT = windows.text_mask_BT
    batch = causal.get_batch(0)
    assert batch.lm_index == CAUSAL and batch.targets_BT is not None
    assert torch.equal(batch.ids_BT, windows.ids_BT)
    has_target = batch.targets_BT != IGNORE_INDEX
    assert torch.equal(has_target[:, :-1], text_BT[:, 1:]) and not has_target[:, -1].any()
    assert torch.equal(batch.targets_BT[has_target], windows.ids_BT[text_BT])

    batch = masked.get_batch(0)
    assert batch.lm_index == MASKED and batch.targets_BT is not None
    rows, places = (batch.targets_BT != IGNORE_INDEX).nonzero(as_tuple=True)
    assert torch.equal(batch.targets_BT[rows, places], windows.ids_BT[rows, places + 1])
    mask_id = tiny.tokenizer("gpt_bert").special_token_ids["[MASK]"]
    masked_rows, masked_places = (batch.ids_BT == mask_id).nonzero(as_tuple=True)
    assert len(masked_rows) > 0
    assert {*zip(masked_rows.tolist(), (masked_places - 1).tolist(), strict=True)} <= {
        *zip(rows.tolist(), places.tolist(), strict=True)
    }


def test_half_of_the_batches_are_causal_and_each_loss_has_its_name() -> None:
    sampler = mixed_windows(causal_share=0.5, seq_len=9)
    batches = [sampler.get_batch(index) for index in range(60)]
    num_causal = sum(batch.lm_index == CAUSAL for batch in batches)
    assert 18 <= num_causal <= 42  # 30, and three deviations
    model = tiny.model("gpt_bert")
    for kind, name in ((CAUSAL, "next_token"), (MASKED, "masked")):
        batch = next(batch for batch in batches if batch.lm_index == kind)
        assert [*mixed_lm_loss(model, batch).nats] == [name]


def test_scores_of_gpt_bert_mask_each_token_and_read_the_position_before_it() -> None:
    config, model = tiny.model_config("gpt_bert"), tiny.model("gpt_bert").eval()
    tokenizer = tiny.tokenizer("gpt_bert")
    encoded = tokenizer.encode(TEXT)
    total = 0.0
    for place in range(1, len(encoded.ids) - 1):
        ids = encoded.ids.copy()
        ids[place] = tokenizer.special_token_ids["[MASK]"]
        top_BTD = model.encode(tokenizer.collate([dataclasses.replace(encoded, ids=ids)]))[-1]
        log_probs = model.logits(top_BTD[0, place - 1 : place]).log_softmax(-1)
        total += float(log_probs[0, encoded.ids[place]].detach())
    ((score, count),) = config.family.score_texts(model, tokenizer, [TEXT], limit=None)
    assert count == len(encoded.ids) - 2
    np.testing.assert_allclose(score, total, atol=1e-4)


def pretrain_block(name: str, **overrides: Any) -> Any:
    return tiny.model_config(name, pretrain=overrides).pretrain


def test_sequences_grow_masks_get_rarer_and_batches_keep_their_tokens() -> None:
    settings = pretrain_block(
        "bert_modern", batch_size=8, seq_len=256, initial_seq_len=64, num_parts=3
    )
    parts = [phase.settings for phase in settings.phases]
    assert [phase.end_progress for phase in settings.phases] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert [(part.seq_len, part.batch_size) for part in parts] == [(64, 32), (128, 16), (256, 8)]
    assert [part.mlm_probability for part in parts] == pytest.approx([0.4, 0.275, 0.15])
    (only,) = pretrain_block("bert_modern", num_parts=1).phases
    assert only.settings.mlm_probability == pytest.approx(0.15), "a single part is the last"
    assert len(pretrain_block("gpt_modern").phases) == 1, "nothing changes"


@pytest.mark.parametrize(
    ("name", "pretrain"), [("bert_modern", {}), ("gpt_bert", {"objective": "causal_then_masked"})]
)
def test_parts_of_one_length_are_one_reading_of_the_text(
    name: str, pretrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = MaskedWindows.read_windows

    def record(sampler: MaskedWindows, index: int) -> Batch:
        if sampler.seed != 0:  # validation has the seed 0
            size = sampler.settings.batch_size
            read.extend(sampler.order[index * size : (index + 1) * size].tolist())
        return original(sampler, index)

    text = encode_corpus(tiny.documents()[:20], tiny.tokenizer(name))
    monkeypatch.setattr(tiny, "corpus", lambda _: text)
    monkeypatch.setattr(MaskedWindows, "read_windows", record)
    settings = pretrain | {"num_parts": 3, "batch_size": 4, "seq_len": 23}
    output, _ = pretrain_tiny_model(name, tmp_path, 2 * text.text_bytes, pretrain=settings)
    assert output.status == "ok"
    counts = np.bincount(read, minlength=len(text.ids) // 21)
    assert counts.min() == 2, "some text is read less often than other text"
    # FLOPs are counted on the first batch of each part, and the last words fill no window.
    assert counts.sum() - 2 * len(counts) < 8 * settings["batch_size"]


def test_causal_batches_come_first_in_whole_parts() -> None:
    settings = pretrain_block(
        "gpt_bert", objective="causal_then_masked", causal_share=0.5, num_parts=4
    )
    assert [phase.settings.causal_share for phase in settings.phases] == [1.0, 1.0, 0.0, 0.0]
    mixed = pretrain_block("gpt_bert", causal_share=0.3, num_parts=2)
    assert [phase.settings.causal_share for phase in mixed.phases] == [0.3, 0.3], "masks differ"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"initial_seq_len": 64, "seq_len": 32}, "must not be greater"),
        ({"num_parts": 0}, "num_parts"),
        ({"bias_correction": False}, "optimizer is muon"),
        ({"causal_share": 1.5}, "causal_share"),
    ],
)
def test_settings_that_do_not_fit_are_refused(block: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pretrain_block("gpt_bert", **block)


def test_heads_that_cannot_turn_pairs_of_units_are_refused() -> None:
    with pytest.raises(InputError, match="twice num_heads"):
        tiny.model_config("gpt_modern", architecture={"hidden_size": 18, "num_heads": 6})


@pytest.mark.parametrize("shape", [(7, 7), (5, 12), (12, 5), (3, 6, 6)])
def test_newton_schulz_changes_singular_values_only(shape: tuple[int, ...]) -> None:
    """U p(S) V^T, where p is Jordan's polynomial, five times applied to S over its norm."""
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    u, s, vh = torch.linalg.svd(matrices.double(), full_matrices=False)
    values = s / s.norm(dim=-1, keepdim=True)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    expected = u * values.unsqueeze(-2) @ vh
    torch.testing.assert_close(orthogonalize(matrices).double(), expected, atol=1e-5, rtol=1e-5)


def test_muon_updates_matrices_of_the_body_and_adamw_the_rest() -> None:
    model, twin = (tiny.model("gpt_modern") for _ in range(2))
    settings = pretrain_block("gpt_modern", weight_decay=0.3)
    optimizer = build_pretraining_optimizer(model, settings)
    assert isinstance(optimizer, Muon)
    beta1, beta2 = settings.betas
    reference = AdamW([twin.token_embeddings.weight], lr=0.01, betas=(beta1, beta2), weight_decay=0.3, fused=True)  # fmt: skip
    body = {name for name, _ in model.named_parameters() if name.startswith("blocks.")}
    for index in range(3):
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        for one in (model, twin):
            one.zero_grad()
            loss = tiny.model_config("gpt_modern").family.objective(
                one, tiny.batch("gpt_modern", index), None
            )
            loss.loss.backward()
        set_learning_rates(optimizer, 0.01)
        optimizer.step()
        reference.step()
        torch.testing.assert_close(
            model.token_embeddings.weight, twin.token_embeddings.weight, atol=0.0, rtol=0.0
        )
        for name, value in model.named_parameters():
            if name in body:
                decayed = before[name] * (1 - 0.01 * 0.3)
                step = (value.detach() - decayed).square().mean().sqrt()
                # 0.2 of AdamW's rate for a full rank, singular values being 0.7 to 1.2
                assert 0.01 * 0.2 * 0.6 < step < 0.01 * 0.2 * 1.25, name
        twin.load_state_dict(model.state_dict())
