"""Pretraining steps of BERT, GPT and AWD-LSTM beside transformers and fastai: the same weights, tokens and dropout, forward, backward and update."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F

from benchmarks.contest import Bar, Contest, Turn
from lineage.formats import huggingface
from lineage.models import gpt, ulmfit
from lineage.models.batch import IGNORE_INDEX, Batch
from lineage.models.layers.awd_lstm import AwdDropouts
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train
from lineage.training.objectives import causal_lm_loss, masked_lm_loss, regularized_lm_loss
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.state import RngState, TrainState

CPU = torch.device("cpu")
PLAIN, BEST = "plain fp32 loop", "fused AdamW, bf16, compile"
BEST_FP32 = "fused AdamW, fp32, compile"  # the best where a processor does not multiply in bf16
DROPOUT, STEPS = 0.1, 2
# Elsewhere its products are emulated, many times slower than in fp32, and torch's own LSTM fails: sides in bf16 are left out.
MULTIPLIES_BF16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
PRECISIONS = ("fp32", "bf16") if MULTIPLIES_BF16 else ("fp32",)


def stepper(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    *,
    fused: bool = True,
    precision: str = "fp32",
) -> Turn:
    """One training step: loss, gradients, their norm clipped, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused)

    def turn() -> None:
        with autocast(CPU, precision):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return turn


def check(
    contest: Contest,
    ours: tuple[nn.Module, Callable[[], torch.Tensor]],
    theirs: tuple[nn.Module, Callable[[], torch.Tensor]],
) -> None:
    """As many parameters, and without dropout the loss and the norm of the gradients of the same function."""
    found = []
    for model, loss in (ours, theirs):
        model.eval()
        value = loss()
        value.backward()
        found.append(
            (
                float(value.detach()),
                float(
                    nn.utils.get_total_norm(
                        [p.grad for p in model.parameters() if p.grad is not None]
                    )
                ),
            )
        )
        model.zero_grad()
        model.train()
    for what, one, other in zip(("loss", "gradient norm"), *found, strict=True):
        contest.alike(what, one, other)
    contest.alike(
        "parameters",
        *(sum(p.numel() for p in model.parameters()) for model, _ in (ours, theirs)),
        tolerance=0,
    )


def check_compiled(contest: Contest, model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    """The loss of a compiled model, without dropout, beside ours. Without its gradients, which would be compiled a second time."""
    model.eval()
    with torch.no_grad():
        contest.alike("loss, compiled", contest.equal["loss"][0], float(loss()))
    model.train()


def transformer(kind: str, *, layers: int, width: int, positions: int) -> Any:
    """The configuration of the class of transformers with this name."""
    fields = {"num_layers": layers, "num_heads": max(2, width // 64), "max_positions": positions, "dropout": DROPOUT, "layer_norm_eps": 1e-5,
              "activation": "gelu" if kind == "bert" else "gelu_tanh", "norm_first": kind == "gpt2", "init_std": 0.02,
              "hidden_size": width, "ffn_size": 4 * width}  # fmt: skip
    return huggingface.LAYOUTS[kind].family.architecture_class(**fields)


def pair(kind: str, config: Any, vocabulary: int) -> tuple[Any, Any]:
    """Our model and the library's, with equal weights."""
    layout = huggingface.LAYOUTS[kind]
    ours = layout.family.build(config, vocab_size=vocabulary)
    ours.init_weights(torch.Generator().manual_seed(1))
    settings = transformers.AutoConfig.for_model(
        kind, vocab_size=vocabulary, **layout.config_to_hf(config)
    )
    theirs = getattr(transformers, layout.hf_class_name)(settings)
    missing = theirs.load_state_dict(
        {name: view.detach().clone() for name, view in layout.tensor_views(ours).items()},
        strict=False,
    )
    assert not missing.unexpected_keys
    theirs.tie_weights()
    return ours.train(), theirs.train()


def bert_contest(*, quick: bool) -> Contest:
    """Masked LM and next sentence, 19 of 128 positions masked; the library projects every position on the vocabulary."""
    B, T, V = (2, 16, 97) if quick else (16, 128, 30_522)
    config = transformer(
        "bert", layers=1 if quick else 4, width=32 if quick else 256, positions=128
    )
    draw = torch.Generator().manual_seed(3)
    ids, mask = torch.randint(5, V, (B, T), generator=draw), torch.ones(B, T, dtype=torch.bool)
    chosen = torch.rand(B, T, generator=draw).argsort(1) < max(1, round(0.15 * T))
    targets, following = (
        ids.masked_fill(~chosen, IGNORE_INDEX),
        torch.randint(2, (B,), generator=draw),
    )
    segments = (torch.arange(T) >= T // 2).long().expand(B, T)
    batch = Batch(ids, mask, mask, segments, targets_BT=targets, next_sentence_labels_B=following)
    given = {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "token_type_ids": segments,
        "labels": targets,
        "next_sentence_label": following,
    }

    def ours(precision: str) -> tuple[Any, Turn]:
        model = pair("bert", config, V)[0]
        return model, stepper(model, lambda: masked_lm_loss(model, batch).loss, precision=precision)

    def theirs(model: Any) -> Callable[[], torch.Tensor]:
        return lambda: model(**given).loss

    mine, plain, best = pair("bert", config, V)[0], *(pair("bert", config, V)[1] for _ in range(2))
    compiled = best if quick else torch.compile(best)
    turns = {
        PLAIN: stepper(plain, theirs(plain), fused=False),
        BEST_FP32: stepper(best, theirs(compiled)),
    }
    if MULTIPLIES_BF16:
        half = pair("bert", config, V)[1]
        turns[BEST] = stepper(
            half, theirs(half if quick else torch.compile(half)), precision="bf16"
        )
    turns |= {f"ours {precision}": ours(precision)[1] for precision in PRECISIONS}
    bars = [
        Bar("ours fp32", PLAIN, 2.5, 3.0),
        Bar("ours bf16", PLAIN, 3.0, 4.5, bf16=True),
        Bar("ours bf16", BEST, 1.5, 2.2, bf16=True),
    ]
    bars.append(Bar("ours fp32", BEST_FP32))
    contest = Contest(
        "BERT",
        f"{config.num_layers} x {config.hidden_size}, V {V:,}, T {T}, B {B}, dropout {DROPOUT}",
        B * T,
        "tokens",
        turns,
        bars,
    )
    check(contest, (mine, lambda: masked_lm_loss(mine, batch).loss), (plain, theirs(plain)))
    check_compiled(contest, best, theirs(compiled))
    trainer(contest, pair("bert", config, V)[1], given)
    return contest


def trainer(contest: Contest, model: Any, given: dict[str, torch.Tensor]) -> None:
    """transformers' Trainer around the plain model, where `accelerate` is installed."""
    try:
        import accelerate  # noqa: F401
    except ImportError:
        return
    rows = [
        {key: value[i] for key, value in given.items()} for i in range(len(given["input_ids"]))
    ] * STEPS
    settings = transformers.TrainingArguments(
        per_device_train_batch_size=len(given["input_ids"]), max_steps=STEPS, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        logging_strategy="no", dataloader_pin_memory=False, output_dir=".lineage/trainer",
    )  # fmt: skip
    found = transformers.Trainer(model=model, args=settings, train_dataset=rows)
    found.remove_callback(transformers.PrinterCallback)
    contest.turns["Trainer"], contest.steps["Trainer"] = found.train, STEPS
    contest.bars += [Bar("ours fp32", "Trainer"), Bar(PLAIN, "Trainer")]


def gpt_contest(*, quick: bool, kind: str = "openai-gpt") -> Contest:
    """The next token at every position."""
    (B, T, V), first = (2, 16, 97) if quick else (8, 128, 40_478), kind == "openai-gpt"
    config = transformer(kind, layers=1 if quick else 4, width=32 if quick else 256, positions=T)
    ids = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(3))
    targets = torch.cat([ids[:, 1:], torch.full((B, 1), IGNORE_INDEX)], 1)
    mask = torch.ones(B, T, dtype=torch.bool)
    batch = Batch(ids, mask, mask, targets_BT=targets)
    turns: dict[str, Turn] = {}
    compiled = first and not quick
    best = BEST if compiled else "fused AdamW, bf16"
    for side, precision in (
        (PLAIN, "fp32"),
        *([(best, "bf16")] if MULTIPLIES_BF16 else []),
        *([(BEST_FP32, "fp32")] if first else []),
    ):
        theirs = pair(kind, config, V)[1]
        called = torch.compile(theirs) if compiled and side != PLAIN else theirs
        last = (theirs, lambda model=called: model(input_ids=ids, labels=ids).loss)
        turns[side] = stepper(*last, fused=side != PLAIN, precision=precision)
    for precision in PRECISIONS:
        ours: gpt.GPTModel = pair(kind, config, V)[0]
        turns[f"ours {precision}"] = stepper(
            ours, lambda model=ours: causal_lm_loss(model, batch).loss, precision=precision
        )
    must, good = (2.0, 2.9) if first else (None, None)
    bars = [
        Bar("ours bf16", PLAIN, must, good, bf16=True),
        Bar("ours fp32", PLAIN),
        Bar("ours bf16", best),
        Bar("ours fp32", BEST_FP32),
    ]
    work = f"{config.num_layers} x {config.hidden_size}, V {V:,}, T {T}, B {B}, dropout {DROPOUT}"
    contest = Contest("GPT-1" if first else "GPT-2", work, B * T, "tokens", turns, bars)
    mine, other = pair(kind, config, V)
    check(
        contest,
        (mine, lambda: causal_lm_loss(mine, batch).loss),
        (other, lambda: other(input_ids=ids, labels=ids).loss),
    )
    if first:
        check_compiled(contest, *last)
    return contest


def awd_contest(*, quick: bool) -> Contest:
    """The next word with AWD-LSTM's five dropouts at a tenth and its two penalties; fastai's model where it is installed."""
    (B, T, V), width = (2, 7, 97) if quick else (32, 35, 30_000), 16 if quick else 400
    names = ("embedding", "input", "weight", "hidden", "output")
    config = ulmfit.ULMFiTConfig(num_layers=3, hidden_to_embedding_ratio=1.0, dropouts=AwdDropouts(**dict.fromkeys(names, DROPOUT)), activation_penalty=2.0, temporal_activation_penalty=1.0,
                           classifier_hidden_size=50, embedding_size=width, hidden_size=width)  # fmt: skip
    ids = torch.randint(1, V, (B, T + 1), generator=torch.Generator().manual_seed(3))
    mask = torch.ones(B, T, dtype=torch.bool)
    batch = Batch(ids[:, :-1], mask, mask, targets_BT=ids[:, 1:])

    def ours() -> ulmfit.ULMFiTModel:
        model = ulmfit.ULMFiTModel(config, vocab_size=V)
        model.init_weights(torch.Generator().manual_seed(1))
        return model

    turns: dict[str, Turn] = {}
    for precision in PRECISIONS:
        model = ours()
        turns[f"ours {precision}"] = stepper(
            model, lambda model=model: regularized_lm_loss(model, batch).loss, precision=precision
        )
    bars = [
        Bar("ours bf16", "fastai plain fp32", 2.0, 3.2, bf16=True),
        Bar("ours fp32", "fastai plain fp32"),
        Bar("ours bf16", "fastai fused, bf16"),
    ]
    bars.append(Bar("ours fp32", "fastai fused, fp32"))
    contest = Contest(
        "AWD-LSTM",
        f"3 x {width}, V {V:,}, T {T}, B {B}, dropouts {DROPOUT}",
        B * T,
        "tokens",
        turns,
        bars,
    )
    try:
        from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_lm_config
        from fastai.text.models.core import get_language_model
    except ImportError:
        return contest
    shares = {
        "output_p": DROPOUT,
        "hidden_p": DROPOUT,
        "input_p": DROPOUT,
        "embed_p": DROPOUT,
        "weight_p": DROPOUT,
    }
    settings = (
        awd_lstm_lm_config
        | shares
        | {"emb_sz": width, "n_hid": width, "n_layers": 3, "pad_token": 0}
    )

    def fastai() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
        model = _with_weights(get_language_model(AWD_LSTM, V, config=settings), ours())
        return model, lambda: _fastai_loss(model, batch)

    theirs = [
        ("fastai plain fp32", False, "fp32"),
        *((f"fastai fused, {precision}", True, precision) for precision in PRECISIONS),
    ]
    for side, fused, precision in theirs:
        contest.turns[side] = stepper(*fastai(), fused=fused, precision=precision)
    check(contest, (mine := ours(), lambda: regularized_lm_loss(mine, batch).loss), fastai())
    return contest


def _with_weights(model: Any, ours: ulmfit.ULMFiTModel) -> nn.Module:
    """fastai's language model with the weights of ours."""
    model.reset_state()
    with torch.no_grad():
        model[0].encoder.weight.copy_(ours.body.embedding_weight)
        model[1].decoder.bias.copy_(ours.softmax_bias)
        for theirs, layer in zip(model[0].rnns, ours.body.layers, strict=True):
            theirs.weight_hh_l0_raw.copy_(layer.weight_hh)
            theirs.module.weight_ih_l0.copy_(layer.weight_ih)
            theirs.module.bias_ih_l0.copy_(layer.bias_ih)
            theirs.module.bias_hh_l0.copy_(layer.bias_hh)
    return model.train()


def _fastai_loss(model: Any, batch: Batch) -> torch.Tensor:
    """As fastai's learner takes it, with its RNNRegularizer in training."""
    assert batch.targets_BT is not None
    model.reset_state()
    logits, raw, dropped = model(batch.ids_BT)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten())
    if model.training:
        loss = (
            loss
            + 2.0 * dropped.float().pow(2).mean()
            + 1.0 * (raw[:, 1:] - raw[:, :-1]).float().pow(2).mean()
        )
    return loss


class Fixed:
    """A stream of one batch, again and again."""

    carries_state = False

    def __init__(self, batch: Batch, count: int) -> None:
        self.only, self.count = batch, count

    def set_epoch(self, epoch: int) -> int:
        return self.count

    def get_batch(self, index: int) -> Batch:
        return self.only


def loop_contest(*, quick: bool) -> Contest:
    """Our loop around a small model, of the demo's size, against the same step in a bare loop; more than small enough to show a cost."""
    (B, T, V), width = (2, 16, 97) if quick else (4, 136, 2_000), 32 if quick else 104
    steps, config = (
        3 if quick else 80,
        transformer("openai-gpt", layers=3, width=width, positions=T),
    )
    ids, mask = (
        torch.randint(V, (B, T + 1), generator=torch.Generator().manual_seed(3)),
        torch.ones(B, T, dtype=torch.bool),
    )
    batch = Batch(
        ids[:, :-1], mask, mask, targets_BT=ids[:, 1:], text_bytes=5 * B * T, num_tokens=B * T
    )
    models = [pair("openai-gpt", config, V)[0] for _ in range(2)]
    run = TrainState(
        models[0],
        build_adamw(build_param_groups([[*models[0].parameters()]], weight_decay=0.01)),
        RngState(1),
    )
    course = TrainPlan(
        progress=lambda spent: 0.0,
        lr_schedule=lambda progress: 1.0,
        learning_rate=1e-5,
        max_grad_norm=1.0,
        precision="fp32",
        max_epochs=1,
    )

    def ours() -> None:
        run.epoch = run.batch_index = 0
        assert sum(1 for _ in train(run, causal_lm_loss, Fixed(batch, steps), course)) == steps

    one = stepper(models[1], lambda: causal_lm_loss(models[1], batch).loss)

    def bare() -> None:
        for _ in range(steps):
            one()

    bars = [Bar("train", "bare loop", 1 / 1.05, 1 / 1.02)]
    work = f"GPT 3 x {width}, V {V:,}, T {T}, B {B}, {steps} steps; a ratio of 0.98 is 2 % more"
    contest = Contest(
        "our loop", work, steps * B * T, "tokens", {"train": ours, "bare loop": bare}, bars
    )
    check(
        contest,
        *((model, lambda model=model: causal_lm_loss(model, batch).loss) for model in models),
    )
    return contest


CONTESTS: dict[str, Callable[..., Contest]] = {
    "bert": bert_contest,
    "gpt": gpt_contest,
    "gpt2": lambda *, quick: gpt_contest(quick=quick, kind="gpt2"),
    "awd": awd_contest,
    "loop": loop_contest,
}
