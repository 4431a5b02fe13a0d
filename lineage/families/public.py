"""Public checkpoints: models pretrained elsewhere, shown with the families of the budget.

They are never matched to the budget. They are run by transformers' own classes; MODEL_TYPES of
`public_folders` lists the types and how they differ.
Shapes: B items, T positions, N predicted positions, V vocabulary, D width.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_positive
from lineage.errors import InputError
from lineage.networks import weights
from lineage.networks.base import Encoder, LossOutput, Public, build_linear_head, finetune_defaults
from lineage.networks.batch import Batch, BatchSampler, gather_last, masked_mean
from lineage.networks.layers.softmax import SoftmaxInputs
from lineage.networks.layers.transformer import sinusoidal_positions
from lineage.networks.public_folders import (
    ACTIVATION_KEYS,
    DENSE_WEIGHTS_FILE,
    DROPOUT_KEYS,
    TRANSFORMERS_MISSING,
    CheckpointInfo,
    DenseLayer,
    HFConfig,
    LmHeadLayout,
    PoolingMode,
    inspect_checkpoint,
)
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.masked_lm_batches import MaskedWindows
from lineage.training.objectives import (
    causal_lm_loss,
    cross_entropy_nats,
    masked_lm_loss,
    mean_loss,
    select_targets,
)
from lineage.training.samplers import CausalWindows
from lineage.training.sentence_scores import score_causal_lm, score_pseudo_log_likelihood
from lineage.training.settings import (
    MaskReplacement,
    PretrainSettings,
    SettingsPhase,
    check_min_seq_len,
)

DEFAULT_SEQ_LEN = 128
# Copies of the embedding and of the head's bias, which the softmax shares.
TIED_COPIES = (
    "lm_head",
    "lm_head.decoder",
    "cls.predictions.decoder",
    "predictions.decoder",
    "vocab_projector",
    "decoder",
)
# Attention masks and position ids, heads of other tasks (next sentence, classifiers), and copies.
IGNORED_TENSORS = re.compile(
    r".*\.attn\.(masked_)?bias|.*position_ids|.*token_type_ids"
    r"|cls\.seq_relationship\..*|.*\b(classifier|score|qa_outputs)\..*"
    r"|(lm_head|vocab_projector|decoder)\.weight"
    r"|(lm_head\.|cls\.predictions\.|predictions\.)decoder\.(weight|bias)"
)
DETOUR = 1  # `Batch.lm_index` of a masked model's causal batches
# With these keys the library would look for other code, on the Hub too.
CODE_LOADING_KEYS = re.compile("attn_implementation|experts_implementation")


@dataclass(frozen=True)
class PublicConfig:
    """The block `architecture`."""

    # default: [CLS] (through the pooler, if there is one), the last piece, or what a sentence
    # encoder's modules.json and 1_Pooling/config.json say. mean: the mean over all pieces, without
    # the further modules of a sentence encoder.
    pooling: Literal["default", "mean"] = "default"
    dropout: float | None = None  # None: the checkpoint's
    checkpoint_info: CheckpointInfo | None = None  # set by the stage pretrain, not by you

    def __post_init__(self) -> None:
        check_fraction(self, "dropout")

    @property
    def max_positions(self) -> int | None:
        """The number of positions it can read, once the folder is known."""
        return self.checkpoint_info.max_positions if self.checkpoint_info else None


@dataclass(frozen=True, kw_only=True)
class ContinuedPretrainSettings(PretrainSettings):
    """The block `pretrain`: how the language model continues on the corpus, or in adaptation.

    Adaptation uses the windows and masks alone; its optimizer is that of the block `adapt`.
    """

    # Continue on the study's corpus, up to budget.text_bytes, before the model is adapted or
    # evaluated (Gururangan et al. 2020). false: the checkpoint is used as it is.
    continue_on_corpus: bool = False
    learning_rate: float = 5e-05  # the highest; with continue_on_corpus
    # Positions of a window, special tokens included. None: 128, or the model's positions if fewer.
    seq_len: int | None = None  # type: ignore[assignment]
    mlm_probability: float = 0.15  # share of a window's positions; masked models only
    mask_replacement: MaskReplacement = field(default_factory=MaskReplacement)
    # With continue_on_corpus, a masked model reads the first part of the text, this share, left to
    # right, and its head predicts the next piece; the rest it reads as before. This detour can help
    # (Touchent and de la Clergerie 2026, arXiv 2605.12438).
    causal_share: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "mlm_probability")
        check_fraction(self, "mlm_probability", "causal_share")
        check_min_seq_len("seq_len", self.seq_len)
        if self.causal_share and (self.nt_asgd or not self.continue_on_corpus):
            raise ValueError(
                f"causal_share is {self.causal_share:g}, which needs continue_on_corpus: true and "
                "does not go with nt_asgd, which compares losses of one kind; set it to 0"
            )

    @property
    def phases(self) -> list[SettingsPhase]:
        """The causal part of the text, if there is one, and the masked part."""
        masked = SettingsPhase(1.0, replace(self, causal_share=0.0))
        if not self.causal_share:
            return [masked]
        return [SettingsPhase(self.causal_share, replace(self, causal_share=1.0)), masked]

    def with_default_seq_len(self, max_positions: int) -> Self:
        if self.seq_len is not None:
            return self
        return replace(self, seq_len=min(DEFAULT_SEQ_LEN, max_positions))


def import_transformers() -> Any:
    """Import transformers. Raises InputError if it is not installed."""
    try:
        import transformers  # takes seconds, and only this family needs it
    except ImportError:
        raise InputError(TRANSFORMERS_MISSING) from None
    return transformers


class MaskedLMHead(nn.Module):
    """Dense, activation, norm; then the tied table and a bias (Devlin et al. 2019)."""

    def __init__(
        self, layout: LmHeadLayout, config: Any, *, embedding_size: int, transformers_module: Any
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(
            config.hidden_size, embedding_size, bias=getattr(config, "classifier_bias", True)
        )
        self.norm = nn.LayerNorm(
            embedding_size,
            eps=getattr(config, layout.norm_eps_key) if layout.norm_eps_key else 1e-12,
            bias=getattr(config, "norm_bias", True),
        )
        self.bias = nn.Parameter(torch.empty(config.vocab_size))
        self.activation = F.gelu
        if layout.activation_key:
            name = getattr(config, layout.activation_key)
            self.activation = transformers_module.activations.ACT2FN[name]

    def forward(self, x_ND: torch.Tensor) -> torch.Tensor:
        return self.norm(self.activation(self.dense(x_ND)))


class SentenceDense(nn.Module):
    """The layer of a sentence encoder over its pooled vector; tensors have its file's names."""

    def __init__(self, layer: DenseLayer) -> None:
        super().__init__()
        self.linear = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias)
        self.activation: nn.Module = getattr(nn, layer.activation)()

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(x_BD))


class PublicModel(Encoder):
    """The library's body, its pooler and its language model's head, if the folder has them."""

    def __init__(self, config: PublicConfig, *, vocab_size: int) -> None:
        """Build the model; the checkpoint's table may have more rows than `vocab_size`."""
        super().__init__()
        assert config.checkpoint_info is not None, "the stage pretrain has read the folder"
        self.config = config
        self.checkpoint_info = config.checkpoint_info
        self.causal = config.checkpoint_info.causal
        self.word_pooling = "last" if self.causal else "mean"
        transformers = import_transformers()
        self.hf_config = _build_hf_config(
            transformers, self.checkpoint_info.hf_config, config.dropout
        )
        model_type = self.checkpoint_info.model_type
        options = {}
        if model_type.pooler_tensor:
            options["add_pooling_layer"] = self.checkpoint_info.has_pooler
        try:
            # Never from_pretrained: no network, no pickle, no foreign code.
            model_class = transformers.MODEL_MAPPING[type(self.hf_config)]
            self.hf_model = model_class(self.hf_config, **options)
        except KeyError as error:
            key = next(key for key in ACTIVATION_KEYS if hasattr(self.hf_config, key))
            raise InputError(
                f"{key} is {error}, which transformers has no activation of; correct it"
            ) from None
        self.mlm_head: MaskedLMHead | None = None
        if self.checkpoint_info.has_lm_head and model_type.lm_head is not None:
            self.mlm_head = MaskedLMHead(
                model_type.lm_head,
                self.hf_config,
                embedding_size=self.softmax_weight().shape[1],
                transformers_module=transformers,
            )
        self.sentence_dense: SentenceDense | None = None
        if self.checkpoint_info.dense is not None:
            self.sentence_dense = SentenceDense(self.checkpoint_info.dense)

    def to_empty(self, *, device: str | torch.device | int | None, recurse: bool = True) -> Self:
        """Move to a device; also fill the library's buffers, whose values are in no file."""
        super().to_empty(device=device, recurse=recurse)
        for name, buffer in self.hf_model.named_buffers():
            match name.rsplit(".", 1)[-1]:
                case "position_ids":
                    buffer.copy_(torch.arange(buffer.shape[-1]).expand_as(buffer))
                case "token_type_ids":
                    buffer.zero_()
                case "bias":  # of GPT-1: the causal mask
                    buffer.copy_(torch.ones(buffer.shape[-2:]).tril().expand_as(buffer))
                case rotary if rotary.endswith("inv_freq"):
                    pass  # below
                case _:
                    raise AssertionError(name)
        if hasattr(self.hf_model, "rotary_emb"):
            self.hf_model._init_weights(self.hf_model.rotary_emb)
        return self

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the embedding layer and each block's output, all (B, T, D)."""
        return self._run_hf_model(batch, attention_mask=batch.mask_BT.long())

    def encode_left_to_right(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Encode as `encode` does, but no position of a masked model sees one after it."""
        T = batch.mask_BT.shape[1]
        causal_TT = torch.ones(T, T, dtype=torch.bool, device=batch.mask_BT.device).tril()
        mask_B1TT = causal_TT & batch.mask_BT[:, None, None, :]
        window = getattr(self.hf_config, "sliding_window", None)
        if window is None:
            return self._run_hf_model(batch, attention_mask=mask_B1TT)
        masks = {  # ModernBERT's, by the type of a layer
            "full_attention": mask_B1TT,
            "sliding_attention": mask_B1TT & causal_TT.triu(-window),
        }
        return self._run_hf_model(batch, attention_mask=masks)

    def _run_hf_model(
        self, batch: Batch, *, attention_mask: torch.Tensor | dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        ids_BT = batch.ids_BT
        mask_BT = batch.mask_BT
        inputs = {
            "input_ids": ids_BT,
            "attention_mask": attention_mask,
            "position_ids": torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT),
        }
        model_type = self.checkpoint_info.model_type
        if model_type.counts_from_padding:
            # The library's positions, but correct even if a random piece has the padding's id.
            inputs["position_ids"] = mask_BT.long().cumsum(1) * mask_BT
            inputs["position_ids"] += self.hf_config.pad_token_id
        if model_type.min_token_types is not None:
            segment_ids_BT = torch.zeros_like(ids_BT)
            if batch.segment_ids_BT is not None and self.hf_config.type_vocab_size > 1:
                segment_ids_BT = batch.segment_ids_BT
            inputs["token_type_ids"] = segment_ids_BT * batch.second_token_type_id
        outputs = self.hf_model(**inputs, output_hidden_states=True, return_dict=True)
        return tuple(outputs.hidden_states)

    def softmax_weight(self) -> torch.Tensor:
        return self.hf_model.get_input_embeddings().weight

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        if self.mlm_head is None:
            return x_ND, self.softmax_weight(), None
        return self.mlm_head(x_ND), self.softmax_weight(), self.mlm_head.bias

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """Return (B, D): [CLS], the last position, the mean or the maximum, with special tokens.

        [CLS] goes through the pooler if there is one. A sentence encoder's vector also goes through
        the further modules of its folder, unless `pooling` is mean.
        """
        pooled_BD = self._pool_top(layers[-1], batch.mask_BT)
        if self.config.pooling == "mean":
            return pooled_BD
        if self.sentence_dense is not None:
            pooled_BD = self.sentence_dense(pooled_BD)
        return F.normalize(pooled_BD, dim=-1) if self.checkpoint_info.normalize else pooled_BD

    def _pool_top(self, top_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        mode = _pooling_mode(self.config, self.checkpoint_info)
        if mode == "mean":
            return masked_mean(top_BTD, mask_BT)
        if mode == "max":
            return top_BTD.masked_fill(~mask_BT[..., None], float("-inf")).amax(1)
        if mode == "last":
            return gather_last(top_BTD, mask_BT)
        if mode == "cls" or not self.checkpoint_info.has_pooler:
            return top_BTD[:, 0]
        pooler = self.hf_model.pooler
        if isinstance(pooler, nn.Linear):  # ALBERT's
            return torch.tanh(pooler(top_BTD[:, 0]))
        return pooler(top_BTD)

    def build_head(
        self, num_classes: int, *, dropout: float, hidden_dropout: float | None = None
    ) -> nn.Module:
        width = self.hf_config.hidden_size
        if self.sentence_dense is not None and self.config.pooling != "mean":
            width = self.sentence_dense.linear.out_features
        return build_linear_head(width, num_classes, dropout=dropout)

    def modules_by_role(self) -> dict[str, nn.Module]:
        names = self.checkpoint_info.model_type.embeddings
        embeddings = [getattr(self.hf_model, name) for name in names]
        modules: dict[str, nn.Module] = {
            "embedding": embeddings[0] if len(embeddings) == 1 else nn.ModuleList(embeddings)
        }
        others = (*names, "pooler")
        body = [module for name, module in self.hf_model.named_children() if name not in others]
        modules["body"] = nn.ModuleList(body)
        poolers = [self.hf_model.pooler] if self.checkpoint_info.has_pooler else []
        if self.sentence_dense is not None:
            poolers.append(self.sentence_dense)
        if poolers:
            modules["pooler"] = nn.ModuleList(poolers)
        if self.mlm_head is not None:
            modules["head"] = self.mlm_head
        return modules

    def tied_parameters(self) -> list[nn.Parameter]:
        if not self.checkpoint_info.has_lm_head:
            return []
        return [self.hf_model.get_input_embeddings().weight]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the embeddings, then each block, or each group of ALBERT's that share weights.

        A module that all blocks use belongs to the embeddings; the last norm, and the layers over
        the pooled vector if they are used, to the last block.
        """
        modules = self.modules_by_role()
        model_type = self.checkpoint_info.model_type
        blocks = self.hf_model.get_submodule(model_type.blocks)
        groups = [[*block.parameters()] for block in blocks]
        top: list[nn.Module] = []
        if model_type.final_norm:
            top.append(self.hf_model.get_submodule(model_type.final_norm))
        mode = _pooling_mode(self.config, self.checkpoint_info)
        if self.checkpoint_info.has_pooler and mode == "first":
            top.append(self.hf_model.pooler)
        if self.sentence_dense is not None and self.config.pooling != "mean":
            top.append(self.sentence_dense)
        for module in top:
            groups[-1] += [*module.parameters()]
        grouped = {id(parameter) for group in groups for parameter in group}
        bottom = [*modules["embedding"].parameters(), *modules["body"].parameters()]
        return [[p for p in bottom if id(p) not in grouped], *groups]

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize as the library does."""
        std = self.hf_config.initializer_range
        cutoff = getattr(self.hf_config, "initializer_cutoff_factor", None)  # ModernBERT's
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if isinstance(module, nn.LayerNorm) or name == "bias":
                    parameter.fill_(float(name == "weight"))
                elif cutoff is None:
                    nn.init.normal_(parameter, std=std, generator=generator)
                else:
                    limit = cutoff * std
                    nn.init.trunc_normal_(
                        parameter, std=std, a=-limit, b=limit, generator=generator
                    )
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
        output_projections = self.checkpoint_info.model_type.output_projections
        for name, tensor in self.tensor_views().items():
            if name.endswith(output_projections):
                tensor.div_((2 * self.hf_config.num_hidden_layers) ** 0.5)
        if getattr(self.hf_config, "sinusoidal_pos_embds", False):  # of some DistilBERTs
            positions = self.hf_model.embeddings.position_embeddings.weight
            positions.copy_(sinusoidal_positions(*positions.shape, device=positions.device))

    def hidden_sizes(self) -> tuple[int, ...]:
        return (self.hf_config.hidden_size,) * (self.hf_config.num_hidden_layers + 1)

    def tensor_views(self) -> weights.TensorViews:
        """Return the tensors by their names in the folder's file."""
        prefix = self.checkpoint_info.model_type.tensor_prefix
        views = {f"{prefix}{name}": value for name, value in self.hf_model.named_parameters()}
        layout = self.checkpoint_info.model_type.lm_head
        if self.mlm_head is None or layout is None:
            return views
        for name, value in self.mlm_head.dense.named_parameters():
            views[f"{layout.dense}.{name}"] = value
        for name, value in self.mlm_head.norm.named_parameters():
            views[f"{layout.norm}.{name}"] = value
        views[layout.bias] = self.mlm_head.bias
        return views


def _build_hf_config(transformers: Any, hf_config: HFConfig, dropout: float | None) -> Any:
    """Build the library's config with another dropout, if given. Raises InputError."""
    kept = {key: value for key, value in hf_config.items() if not CODE_LOADING_KEYS.search(key)}
    try:
        config_class = transformers.CONFIG_MAPPING[hf_config["model_type"]]
        config = config_class.from_dict(copy.deepcopy(kept))
        if dropout is not None:
            for key in DROPOUT_KEYS:
                if hasattr(config, key):
                    setattr(config, key, dropout)
    except Exception as error:  # the library's checks raise their own classes, which name the key
        raise InputError(
            f"transformers refuses it: {' '.join(str(error).split())}; correct it"
        ) from error
    return config


def _pooling_mode(config: PublicConfig, info: CheckpointInfo) -> PoolingMode:
    return "mean" if config.pooling == "mean" else info.pooling


@torch.no_grad()
def load_pretrained(
    folder: Path, config: PublicConfig, *, head_generator: torch.Generator | None = None
) -> tuple[PublicConfig, PublicModel]:
    """Read a folder: return the config with the folder's contents, and the model with its weights.

    With `head_generator`, a masked model that lacks the language model's head gets a new one.
    Raises InputError if the weights do not fit config.json.
    """
    info = inspect_checkpoint(folder)
    if head_generator is not None:
        info = info.with_lm_head()
    config = replace(config, checkpoint_info=info)
    model = weights.build_on_meta(
        lambda: PublicModel(config, vocab_size=info.hf_config["vocab_size"]),
        where=str(folder / "config.json"),
    )
    path = weights.find_weights_file(folder)
    model_type = info.model_type
    tensors = weights.read_tensors(
        path,
        prefix=model_type.tensor_prefix,
        head_prefixes=model_type.lm_head.prefixes if model_type.lm_head else (),
    )
    _restore_tied_table(tensors, model)
    if info.new_lm_head:
        assert head_generator is not None
        tensors |= _draw_lm_head(model, head_generator)
    ignored = IGNORED_TENSORS
    if model_type.ignored_tensors:
        ignored = re.compile(f"{IGNORED_TENSORS.pattern}|{model_type.ignored_tensors}")
    weights.load_into_model(model, PublicModel.tensor_views, tensors, path, ignored=ignored)
    if model.sentence_dense is not None:
        dense_path = folder / DENSE_WEIGHTS_FILE
        weights.load_into_model(
            model.sentence_dense,
            lambda dense: dict(dense.named_parameters()),
            weights.read_tensors(dense_path),
            dense_path,
        )
    copies = {f"{name}.weight": model.softmax_weight() for name in TIED_COPIES}
    if model.mlm_head is not None:
        copies |= {f"{name}.bias": model.mlm_head.bias for name in TIED_COPIES}
    weights.check_tied_copies(tensors, copies, path)
    return config, model.eval()


def _draw_lm_head(model: PublicModel, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return the tensors of a new masked head by their names, initialized as the library does."""
    layout = model.checkpoint_info.model_type.lm_head
    assert layout is not None
    tensors = {}
    for name, view in model.tensor_views().items():
        if not name.startswith((f"{layout.dense}.", f"{layout.norm}.")) and name != layout.bias:
            continue
        tensors[name] = torch.zeros(view.shape)
        if name == f"{layout.dense}.weight":
            tensors[name].normal_(std=model.hf_config.initializer_range, generator=generator)
        elif name == f"{layout.norm}.weight":
            tensors[name].fill_(1.0)
    return tensors


def _restore_tied_table(tensors: dict[str, torch.Tensor], model: PublicModel) -> None:
    """Add the embedding if the file holds it only under a head's name."""
    weight = model.softmax_weight()
    table = next(name for name, view in model.tensor_views().items() if view is weight)
    if table in tensors:
        return
    for name in TIED_COPIES:
        if f"{name}.weight" in tensors:
            tensors[table] = tensors[f"{name}.weight"]
            return


class DetourWindows(MaskedWindows):
    """The windows of a masked model that predicts the next piece for a while."""

    def get_batch(self, index: int) -> Batch:
        return replace(self.get_causal_batch(index), lm_index=DETOUR)


def build_batch_sampler(
    tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: ContinuedPretrainSettings, *, seed: int
) -> BatchSampler:
    if tokenizer.special_token_template.mask_token_id is None:
        return CausalWindows(tokens, tokenizer, settings, seed=seed)
    if settings.causal_share == 1:  # of the first part
        return DetourWindows(tokens, tokenizer, settings, seed=seed)
    return MaskedWindows(tokens, tokenizer, settings, seed=seed)


def pretraining_loss(
    model: PublicModel, batch: Batch, recurrent_state: object = None
) -> LossOutput:
    if model.causal:
        return causal_lm_loss(model, batch, recurrent_state)
    if batch.lm_index == DETOUR:
        top_BTD = model.encode_left_to_right(batch)[-1]
        top_ND, targets_N = select_targets(top_BTD, batch)
        nats = cross_entropy_nats(model.softmax_inputs(top_ND), targets_N)
        return mean_loss("next_token", nats, len(targets_N), recurrent_state)
    return masked_lm_loss(model, batch, recurrent_state)


def public_scores(
    model: PublicModel, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """Score texts, (N, 2): log-probabilities, or a masked model's pseudo-log-likelihoods.

    GPT-1 has no special token before a text, and so no probability of its first piece.
    """
    if model.causal:
        return score_causal_lm(model, tokenizer, texts, limit=limit)
    return score_pseudo_log_likelihood(model, tokenizer, texts, limit=limit)


def lacks_lm_head(config: PublicConfig) -> bool:
    return config.checkpoint_info is not None and not config.checkpoint_info.has_lm_head


FAMILY = Public(
    name="public",
    tokenizer_type="pretrained",
    architecture_class=PublicConfig,
    pretrain_class=ContinuedPretrainSettings,
    build=PublicModel,
    batch_sampler=build_batch_sampler,
    objective=pretraining_loss,
    score_texts=public_scores,
    load_pretrained=load_pretrained,
    lacks_lm_head=lacks_lm_head,
    defaults={
        "tokenizer": "pretrained",
        "pretrain": {"batch_size": 16},
        "adapt": {"learning_rate": 2e-05, "layer_lr_decay": 1.0},
        "evaluate": {"finetune": finetune_defaults(1e-05, 2e-05, 5e-05, 0.0001, batch_size=32)},
    },
)
