"""Compare pretraining steps of BERT, GPT and AWD-LSTM with transformers and fastai.

Both sides have the same weights, tokens and dropout. A step is forward, backward and update.
Shapes: B items, T positions, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F

from benchmarks.contest import Contest, SpeedTarget, TimedCall
from lineage.families import ulmfit
from lineage.formats import huggingface
from lineage.networks.batch import IGNORE_INDEX, Batch
from lineage.networks.layers.awd_lstm import AwdDropouts
from lineage.training.devices import autocast
from lineage.training.loop import TrainPlan, train
from lineage.training.objectives import causal_lm_loss, masked_lm_loss, regularized_lm_loss
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.state import RngState, TrainState

CPU = torch.device("cpu")
# The names of the sides that use transformers.
PLAIN = "plain fp32 loop"
BEST = "fused AdamW, bf16, compile"
BEST_FP32 = "fused AdamW, fp32, compile"  # the fastest on a CPU without bf16 products
UNCOMPILED_BF16 = "fused AdamW, bf16"
TRAINER = "Trainer"
DROPOUT = 0.1
NUM_TRAINER_STEPS = 2
# Without these instructions, bf16 products are emulated, much slower than fp32, and torch's own
# LSTM fails. So the sides in bf16 are left out.
HAS_BF16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
PRECISIONS = ("fp32", "bf16") if HAS_BF16 else ("fp32",)

LossFunction = Callable[[], torch.Tensor]


def make_training_step(
    model: nn.Module, compute_loss: LossFunction, *, fused: bool = True, precision: str = "fp32"
) -> TimedCall:
    """Return a training step: loss, gradients, gradient clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused)

    def step() -> None:
        with autocast(CPU, precision):
            loss = compute_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def check_same_function(
    contest: Contest,
    our_model: nn.Module,
    our_loss: LossFunction,
    their_model: nn.Module,
    their_loss: LossFunction,
) -> None:
    """Check that loss, gradient norm and number of parameters are equal, without dropout."""
    our_value, our_norm = _loss_and_gradient_norm(our_model, our_loss)
    their_value, their_norm = _loss_and_gradient_norm(their_model, their_loss)
    contest.check_equal("loss", our_value, their_value)
    contest.check_equal("gradient norm", our_norm, their_norm)
    contest.check_equal(
        "parameters", _count_parameters(our_model), _count_parameters(their_model), tolerance=0
    )


def _loss_and_gradient_norm(model: nn.Module, compute_loss: LossFunction) -> tuple[float, float]:
    model.eval()
    loss = compute_loss()
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    model.zero_grad()
    model.train()
    return float(loss.detach()), float(norm)


def _count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def check_compiled(contest: Contest, model: nn.Module, compute_loss: LossFunction) -> None:
    """Check that the loss of a compiled model equals ours, without dropout.

    Gradients are not checked, because they would be compiled a second time.
    """
    our_loss = contest.equal_values["loss"][0]
    model.eval()
    with torch.no_grad():
        contest.check_equal("loss, compiled", our_loss, float(compute_loss()))
    model.train()


def transformer_config(model_type: str, *, num_layers: int, width: int, max_positions: int) -> Any:
    """Return our configuration of a model type of transformers: bert, openai-gpt or gpt2."""
    return huggingface.LAYOUTS[model_type].family.architecture_class(
        num_layers=num_layers,
        num_heads=max(2, width // 64),
        max_positions=max_positions,
        dropout=DROPOUT,
        layer_norm_eps=1e-5,
        activation="gelu" if model_type == "bert" else "gelu_tanh",
        norm_first=model_type == "gpt2",
        init_std=0.02,
        hidden_size=width,
        ffn_size=4 * width,
    )


def build_lineage_model(model_type: str, config: Any, vocab_size: int) -> Any:
    """Build our model, always with the same weights."""
    model = huggingface.LAYOUTS[model_type].family.build(config, vocab_size=vocab_size)
    model.init_weights(torch.Generator().manual_seed(1))
    return model.train()


def build_transformers_model(model_type: str, config: Any, vocab_size: int) -> Any:
    """Build the model of transformers, with the weights of ours."""
    layout = huggingface.LAYOUTS[model_type]
    our_model = build_lineage_model(model_type, config, vocab_size)
    weights = {name: view.detach().clone() for name, view in layout.tensor_views(our_model).items()}
    keys = {key: getattr(config, name) for name, key in layout.keys.items()}
    hf_config = transformers.AutoConfig.for_model(
        model_type, vocab_size=vocab_size, **keys, **layout.other_keys_to_hf(config)
    )
    model = getattr(transformers, layout.hf_class_name)(hf_config)
    loaded = model.load_state_dict(weights, strict=False)
    assert not loaded.unexpected_keys
    model.tie_weights()
    return model.train()


def compile_unless(quick: bool, model: Any) -> Any:
    """Return the compiled model, or the model itself for a quick run."""
    return model if quick else torch.compile(model)


def bert_contest(*, quick: bool) -> Contest:
    """Train BERT with masked LM and next-sentence prediction.

    19 of 128 positions are masked. The library projects every position to the vocabulary, and we
    project only the masked ones.
    """
    (B, T, V) = (2, 16, 97) if quick else (16, 128, 30_522)
    config = transformer_config(
        "bert", num_layers=1 if quick else 4, width=32 if quick else 256, max_positions=128
    )
    batch = _bert_batch(B, T, V)
    hf_inputs = {
        "input_ids": batch.ids_BT,
        "attention_mask": batch.mask_BT.long(),
        "token_type_ids": batch.segment_ids_BT,
        "labels": batch.targets_BT,
        "next_sentence_label": batch.next_sentence_labels_B,
    }

    def our_loss(model: Any) -> LossFunction:
        return lambda: masked_lm_loss(model, batch).loss

    def their_loss(model: Any) -> LossFunction:
        return lambda: model(**hf_inputs).loss

    plain_model = build_transformers_model("bert", config, V)
    best_model = build_transformers_model("bert", config, V)
    best_loss = their_loss(compile_unless(quick, best_model))
    sides = {
        PLAIN: make_training_step(plain_model, their_loss(plain_model), fused=False),
        BEST_FP32: make_training_step(best_model, best_loss),
    }
    if HAS_BF16:
        bf16_model = build_transformers_model("bert", config, V)
        bf16_loss = their_loss(compile_unless(quick, bf16_model))
        sides[BEST] = make_training_step(bf16_model, bf16_loss, precision="bf16")
    for precision in PRECISIONS:
        model = build_lineage_model("bert", config, V)
        sides[f"ours {precision}"] = make_training_step(model, our_loss(model), precision=precision)
    contest = Contest(
        "BERT",
        _describe_transformer(config, B, T, V),
        units_per_step=B * T,
        unit="tokens",
        sides=sides,
        targets=[
            SpeedTarget("ours fp32", PLAIN, 2.5, 3.0),
            SpeedTarget("ours bf16", PLAIN, 3.0, 4.5, needs_amx=True),
            SpeedTarget("ours bf16", BEST, 1.5, 2.2, needs_amx=True),
            SpeedTarget("ours fp32", BEST_FP32),
        ],
    )
    our_model = build_lineage_model("bert", config, V)
    check_same_function(
        contest, our_model, our_loss(our_model), plain_model, their_loss(plain_model)
    )
    check_compiled(contest, best_model, best_loss)
    add_trainer(contest, build_transformers_model("bert", config, V), hf_inputs)
    return contest


def _bert_batch(B: int, T: int, V: int) -> Batch:
    generator = torch.Generator().manual_seed(3)
    ids_BT = torch.randint(5, V, (B, T), generator=generator)
    mask_BT = torch.ones(B, T, dtype=torch.bool)
    random_order_BT = torch.rand(B, T, generator=generator).argsort(1)
    is_masked_BT = random_order_BT < max(1, round(0.15 * T))
    return Batch(
        ids_BT,
        mask_BT,
        mask_BT,
        segment_ids_BT=(torch.arange(T) >= T // 2).long().expand(B, T),
        targets_BT=ids_BT.masked_fill(~is_masked_BT, IGNORE_INDEX),
        next_sentence_labels_B=torch.randint(2, (B,), generator=generator),
    )


def _describe_transformer(config: Any, B: int, T: int, V: int) -> str:
    size = f"{config.num_layers} x {config.hidden_size}"
    return f"{size}, V {V:,}, T {T}, B {B}, dropout {DROPOUT}"


def build_trainer(model: Any, items: list[dict[str, torch.Tensor]], **settings: Any) -> Any:
    """Build transformers' Trainer with these settings, which neither saves nor prints."""
    arguments = transformers.TrainingArguments(
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
        output_dir=".lineage/trainer",
        **settings,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=items)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def add_trainer(contest: Contest, model: Any, hf_inputs: dict[str, Any]) -> None:
    """Add transformers' Trainer around the plain model, if `accelerate` is installed."""
    try:
        import accelerate  # noqa: F401
    except ImportError:
        return
    batch_size = len(hf_inputs["input_ids"])
    items = [{key: value[index] for key, value in hf_inputs.items()} for index in range(batch_size)]
    trainer = build_trainer(
        model,
        items * NUM_TRAINER_STEPS,
        per_device_train_batch_size=batch_size,
        max_steps=NUM_TRAINER_STEPS,
    )
    contest.sides[TRAINER] = trainer.train
    contest.steps_per_call[TRAINER] = NUM_TRAINER_STEPS
    contest.targets += [SpeedTarget("ours fp32", TRAINER), SpeedTarget(PLAIN, TRAINER)]


def gpt_contest(*, quick: bool) -> Contest:
    """Train GPT-1 to predict the next token, also against compiled models of transformers."""
    config = transformer_config(
        "openai-gpt",
        num_layers=1 if quick else 4,
        width=32 if quick else 256,
        max_positions=16 if quick else 128,
    )
    sides = _GptSides("openai-gpt", config, quick=quick)
    best = UNCOMPILED_BF16 if quick else BEST
    sides.add_transformers(PLAIN, "fp32", fused=False)
    if HAS_BF16:
        sides.add_transformers(best, "bf16", compiled=not quick)
    compiled_model, compiled_loss = sides.add_transformers(BEST_FP32, "fp32", compiled=not quick)
    sides.add_lineage()
    targets = [
        SpeedTarget("ours bf16", PLAIN, 2.0, 2.9, needs_amx=True),
        SpeedTarget("ours fp32", PLAIN),
        SpeedTarget("ours bf16", best),
        SpeedTarget("ours fp32", BEST_FP32),
    ]
    contest = sides.build_contest("GPT-1", targets)
    check_compiled(contest, compiled_model, compiled_loss)
    return contest


def gpt2_contest(*, quick: bool) -> Contest:
    """Train GPT-2 to predict the next token, against uncompiled models of transformers."""
    config = transformer_config(
        "gpt2",
        num_layers=1 if quick else 4,
        width=32 if quick else 256,
        max_positions=16 if quick else 128,
    )
    sides = _GptSides("gpt2", config, quick=quick)
    sides.add_transformers(PLAIN, "fp32", fused=False)
    if HAS_BF16:
        sides.add_transformers(UNCOMPILED_BF16, "bf16")
    sides.add_lineage()
    targets = [
        SpeedTarget("ours bf16", PLAIN, needs_amx=True),
        SpeedTarget("ours fp32", PLAIN),
        SpeedTarget("ours bf16", UNCOMPILED_BF16),
    ]
    return sides.build_contest("GPT-2", targets)


class _GptSides:
    """Builds the sides of a contest of a GPT model, on one batch."""

    def __init__(self, model_type: str, config: Any, *, quick: bool) -> None:
        self.model_type = model_type
        self.config = config
        self.sides: dict[str, TimedCall] = {}
        self.vocab_size = 97 if quick else 40_478
        B = 2 if quick else 8
        T = config.max_positions
        generator = torch.Generator().manual_seed(3)
        self.ids_BT = torch.randint(self.vocab_size, (B, T), generator=generator)
        mask_BT = torch.ones(B, T, dtype=torch.bool)
        no_target_B1 = torch.full((B, 1), IGNORE_INDEX)
        targets_BT = torch.cat([self.ids_BT[:, 1:], no_target_B1], 1)
        self.batch = Batch(self.ids_BT, mask_BT, mask_BT, targets_BT=targets_BT)

    def our_loss(self, model: Any) -> LossFunction:
        return lambda: causal_lm_loss(model, self.batch).loss

    def their_loss(self, model: Any) -> LossFunction:
        return lambda: model(input_ids=self.ids_BT, labels=self.ids_BT).loss

    def add_transformers(
        self, side: str, precision: str, *, fused: bool = True, compiled: bool = False
    ) -> tuple[Any, LossFunction]:
        """Add a side, and return its model and loss function."""
        model = build_transformers_model(self.model_type, self.config, self.vocab_size)
        compute_loss = self.their_loss(torch.compile(model) if compiled else model)
        self.sides[side] = make_training_step(model, compute_loss, fused=fused, precision=precision)
        return model, compute_loss

    def add_lineage(self) -> None:
        """Add our sides, one per precision."""
        for precision in PRECISIONS:
            model = build_lineage_model(self.model_type, self.config, self.vocab_size)
            self.sides[f"ours {precision}"] = make_training_step(
                model, self.our_loss(model), precision=precision
            )

    def build_contest(self, name: str, targets: list[SpeedTarget]) -> Contest:
        """Return the contest, after checking that both implementations compute the same."""
        B, T = self.ids_BT.shape
        contest = Contest(
            name,
            _describe_transformer(self.config, B, T, self.vocab_size),
            units_per_step=B * T,
            unit="tokens",
            sides=self.sides,
            targets=targets,
        )
        our_model = build_lineage_model(self.model_type, self.config, self.vocab_size)
        their_model = build_transformers_model(self.model_type, self.config, self.vocab_size)
        check_same_function(
            contest,
            our_model,
            self.our_loss(our_model),
            their_model,
            self.their_loss(their_model),
        )
        return contest


def awd_contest(*, quick: bool) -> Contest:
    """Train AWD-LSTM to predict the next word, with its five dropouts and its two penalties.

    It is compared with fastai's model if fastai is installed.
    """
    (B, T, V) = (2, 7, 97) if quick else (32, 35, 30_000)
    width = 16 if quick else 400
    config = ulmfit.ULMFiTConfig(
        num_layers=3,
        hidden_to_embedding_ratio=1.0,
        dropouts=AwdDropouts(
            embedding=DROPOUT, input=DROPOUT, weight=DROPOUT, hidden=DROPOUT, output=DROPOUT
        ),
        activation_penalty=2.0,
        temporal_activation_penalty=1.0,
        classifier_hidden_size=50,
        embedding_size=width,
        hidden_size=width,
    )
    ids = torch.randint(1, V, (B, T + 1), generator=torch.Generator().manual_seed(3))
    mask_BT = torch.ones(B, T, dtype=torch.bool)
    batch = Batch(ids[:, :-1], mask_BT, mask_BT, targets_BT=ids[:, 1:])

    def build_model() -> ulmfit.ULMFiTModel:
        model = ulmfit.ULMFiTModel(config, vocab_size=V)
        model.init_weights(torch.Generator().manual_seed(1))
        return model

    def our_loss(model: ulmfit.ULMFiTModel) -> LossFunction:
        return lambda: regularized_lm_loss(model, batch).loss

    sides: dict[str, TimedCall] = {}
    for precision in PRECISIONS:
        model = build_model()
        sides[f"ours {precision}"] = make_training_step(model, our_loss(model), precision=precision)
    contest = Contest(
        "AWD-LSTM",
        f"3 x {width}, V {V:,}, T {T}, B {B}, dropouts {DROPOUT}",
        units_per_step=B * T,
        unit="tokens",
        sides=sides,
        targets=[
            SpeedTarget("ours bf16", "fastai plain fp32", 2.0, 3.2, needs_amx=True),
            SpeedTarget("ours fp32", "fastai plain fp32"),
            SpeedTarget("ours bf16", "fastai fused, bf16"),
            SpeedTarget("ours fp32", "fastai fused, fp32"),
        ],
    )
    try:
        import fastai.text.models.core  # noqa: F401
    except ImportError:
        return contest

    def add_fastai(side: str, *, fused: bool, precision: str) -> None:
        model = _build_fastai_model(build_model())
        compute_loss = _fastai_loss_function(model, batch)
        contest.sides[side] = make_training_step(
            model, compute_loss, fused=fused, precision=precision
        )

    add_fastai("fastai plain fp32", fused=False, precision="fp32")
    for precision in PRECISIONS:
        add_fastai(f"fastai fused, {precision}", fused=True, precision=precision)
    our_model = build_model()
    their_model = _build_fastai_model(build_model())
    check_same_function(
        contest,
        our_model,
        our_loss(our_model),
        their_model,
        _fastai_loss_function(their_model, batch),
    )
    return contest


def _build_fastai_model(our_model: ulmfit.ULMFiTModel) -> nn.Module:
    """Build fastai's language model with the weights of ours."""
    from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_lm_config
    from fastai.text.models.core import get_language_model

    vocab_size, width = our_model.body.embedding_weight.shape
    config = awd_lstm_lm_config | {
        "output_p": DROPOUT,
        "hidden_p": DROPOUT,
        "input_p": DROPOUT,
        "embed_p": DROPOUT,
        "weight_p": DROPOUT,
        "emb_sz": width,
        "n_hid": width,
        "n_layers": 3,
        "pad_token": 0,
    }
    model = get_language_model(AWD_LSTM, vocab_size, config=config)
    model.reset()
    with torch.no_grad():
        model[0].encoder.weight.copy_(our_model.body.embedding_weight)
        model[1].decoder.bias.copy_(our_model.softmax_bias)
        for their_layer, our_layer in zip(model[0].rnns, our_model.body.layers, strict=True):
            their_layer.weight_hh_l0_raw.copy_(our_layer.weight_hh)
            their_layer.module.weight_ih_l0.copy_(our_layer.weight_ih)
            their_layer.module.bias_ih_l0.copy_(our_layer.bias_ih)
            their_layer.module.bias_hh_l0.copy_(our_layer.bias_hh)
    return model.train()


def _fastai_loss_function(model: Any, batch: Batch) -> LossFunction:
    """Return the loss of fastai's learner, in training with the penalties of RNNRegularizer."""
    targets_BT = batch.targets_BT
    assert targets_BT is not None

    def compute_loss() -> torch.Tensor:
        model.reset()
        logits, raw_output, dropped_output = model(batch.ids_BT)
        loss = F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())
        if model.training:
            activation_penalty = dropped_output.float().pow(2).mean()
            differences = raw_output[:, 1:] - raw_output[:, :-1]
            temporal_penalty = differences.float().pow(2).mean()
            loss = loss + 2.0 * activation_penalty + 1.0 * temporal_penalty
        return loss

    return compute_loss


class RepeatedBatch:
    """A batch sampler whose epoch is the same batch, `num_batches` times."""

    carries_state = False

    def __init__(self, batch: Batch, num_batches: int) -> None:
        self.batch = batch
        self.num_batches = num_batches

    def set_epoch(self, epoch: int) -> int:
        return self.num_batches

    def get_batch(self, index: int) -> Batch:
        return self.batch


def loop_contest(*, quick: bool) -> Contest:
    """Train a small model with our loop, and with a minimal loop around the same step.

    The model has the size of the demo: it is small, so that the cost of the loop can be seen.
    """
    (B, T, V) = (2, 16, 97) if quick else (4, 136, 2_000)
    width = 32 if quick else 104
    num_steps = 3 if quick else 80
    config = transformer_config("openai-gpt", num_layers=3, width=width, max_positions=T)
    ids = torch.randint(V, (B, T + 1), generator=torch.Generator().manual_seed(3))
    mask_BT = torch.ones(B, T, dtype=torch.bool)
    batch = Batch(
        ids[:, :-1],
        mask_BT,
        mask_BT,
        targets_BT=ids[:, 1:],
        text_bytes=5 * B * T,
        num_tokens=B * T,
    )
    loop_model = build_lineage_model("openai-gpt", config, V)
    bare_model = build_lineage_model("openai-gpt", config, V)
    param_groups = build_param_groups([[*loop_model.parameters()]], weight_decay=0.01)
    state = TrainState(loop_model, build_adamw(param_groups), RngState(1))
    plan = TrainPlan(
        progress=lambda counters: 0.0,
        lr_schedule=lambda progress: 1.0,
        learning_rate=1e-5,
        max_grad_norm=1.0,
        precision="fp32",
        max_epochs=1,
    )
    sampler = RepeatedBatch(batch, num_steps)

    def run_train() -> None:
        state.epoch = 0
        state.batch_index = 0
        num_done = sum(1 for _ in train(state, causal_lm_loss, sampler, plan))
        assert num_done == num_steps

    def loss_function(model: Any) -> LossFunction:
        return lambda: causal_lm_loss(model, batch).loss

    bare_step = make_training_step(bare_model, loss_function(bare_model))

    def run_bare_loop() -> None:
        for _ in range(num_steps):
            bare_step()

    size = f"GPT 3 x {width}, V {V:,}, T {T}, B {B}"
    contest = Contest(
        "our loop",
        f"{size}, {num_steps} steps; a ratio of 0.98 is 2 % more",
        units_per_step=num_steps * B * T,
        unit="tokens",
        sides={"train": run_train, "bare loop": run_bare_loop},
        targets=[SpeedTarget("train", "bare loop", 1 / 1.05, 1 / 1.02)],
    )
    check_same_function(
        contest, loop_model, loss_function(loop_model), bare_model, loss_function(bare_model)
    )
    return contest


CONTESTS: dict[str, Callable[..., Contest]] = {
    "bert": bert_contest,
    "gpt": gpt_contest,
    "gpt2": gpt2_contest,
    "awd": awd_contest,
    "loop": loop_contest,
}
