"""Public checkpoints: models pretrained elsewhere, shown beside the families of the budget.

They are never matched to the budget. BERT, RoBERTa and its relatives, GPT-1, GPT-2, and sentence
encoders are run by transformers' own classes.
Shapes: B items, T positions, N predicted positions, V vocabulary, D width.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage.config.records import check_fraction, check_positive
from lineage.errors import InputError
from lineage.models import weights
from lineage.models.base import Encoder, LossOutput, Public
from lineage.models.batch import Batch, gather_last, masked_mean
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.models.public_folders import (
    ACTIVATION_KEYS,
    DROPOUT_KEYS,
    ROBERTA,
    TRANSFORMERS_MISSING,
    CheckpointInfo,
    HFConfig,
    PoolingMode,
    inspect_checkpoint,
)
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.masked_lm_batches import MaskedWindows, MaskedWindowSettings
from lineage.training.objectives import causal_lm_loss, masked_lm_loss
from lineage.training.samplers import BatchSampler, CausalWindows
from lineage.training.sentence_scores import score_causal_lm, score_pseudo_log_likelihood
from lineage.training.settings import MaskReplacement, check_min_seq_len

DEFAULT_SEQ_LEN = 128
# Copies of the embedding and of the head's bias, which the softmax shares.
TIED_COPIES = ("lm_head", "lm_head.decoder", "cls.predictions.decoder")
# Attention masks and position ids, heads of other tasks (next sentence, classifiers), and copies.
IGNORED_TENSORS = re.compile(
    r".*\.attn\.(masked_)?bias|.*position_ids|.*token_type_ids"
    r"|cls\.seq_relationship\..*|.*\b(classifier|score|qa_outputs)\..*"
    r"|lm_head\.weight|(lm_head|cls\.predictions)\.decoder\.(weight|bias)"
)
# With these keys the library would look for other code, on the Hub too.
CODE_LOADING_KEYS = re.compile("attn_implementation|experts_implementation")


@dataclass(frozen=True)
class PublicConfig:
    """The block `architecture`."""

    # default: [CLS] (through the pooler, if there is one), the last piece, or what
    # 1_Pooling/config.json says
    pooling: Literal["default", "mean"] = "default"
    dropout: float | None = None  # None: the checkpoint's
    checkpoint_info: CheckpointInfo | None = None  # set by the stage pretrain, not by you

    def __post_init__(self) -> None:
        check_fraction(self, "dropout")

    @property
    def max_positions(self) -> int | None:
        """The number of positions it can read, once the folder is known."""
        return self.checkpoint_info.max_positions if self.checkpoint_info else None


@dataclass(frozen=True)
class ContinuedPretrainSettings:
    """The block `pretrain`: how the language model continues on a target's text in adaptation."""

    batch_size: int
    grad_accum_steps: int = 1  # batches per optimizer step
    # Positions of a window, special tokens included. None: 128, or the model's positions if fewer.
    seq_len: int | None = None
    mlm_probability: float = 0.15  # share of a window's positions; masked models only
    mask_replacement: MaskReplacement = field(default_factory=MaskReplacement)

    def __post_init__(self) -> None:
        check_positive(self, "batch_size", "grad_accum_steps", "seq_len", "mlm_probability")
        check_fraction(self, "mlm_probability")
        check_min_seq_len("seq_len", self.seq_len)

    def with_default_seq_len(self, max_positions: int) -> Self:
        """Set `seq_len` if it is not given."""
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
    """Dense, activation, norm; then the tied table and a bias (Devlin et al. 2019).

    RoBERTa's head always has the exact GELU.
    """

    def __init__(self, config: Any, *, exact_gelu: bool, transformers_module: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.empty(config.vocab_size))
        self.activation = F.gelu
        if not exact_gelu:
            self.activation = transformers_module.activations.ACT2FN[config.hidden_act]

    def forward(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the softmax's input."""
        return self.norm(self.activation(self.dense(x_ND)))


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
        options = {} if self.causal else {"add_pooling_layer": self.checkpoint_info.has_pooler}
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
        if self.checkpoint_info.has_lm_head and not self.causal:
            self.mlm_head = MaskedLMHead(
                self.hf_config,
                exact_gelu=self.checkpoint_info.model_type is ROBERTA,
                transformers_module=transformers,
            )

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
                case _:
                    raise AssertionError(name)
        return self

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the embedding layer and each block's output, all (B, T, D)."""
        ids_BT = batch.ids_BT
        mask_BT = batch.mask_BT
        inputs = {
            "input_ids": ids_BT,
            "attention_mask": mask_BT.long(),
            "position_ids": torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT),
        }
        if self.checkpoint_info.model_type is ROBERTA:
            # The library's positions, but correct even if a random piece has the padding's id.
            inputs["position_ids"] = mask_BT.long().cumsum(1) * mask_BT
            inputs["position_ids"] += self.hf_config.pad_token_id
        if not self.causal:
            segment_ids_BT = torch.zeros_like(ids_BT)
            if batch.segment_ids_BT is not None and self.hf_config.type_vocab_size > 1:
                segment_ids_BT = batch.segment_ids_BT
            inputs["token_type_ids"] = segment_ids_BT * batch.second_token_type_id
        outputs = self.hf_model(**inputs, output_hidden_states=True, return_dict=True)
        return tuple(outputs.hidden_states)

    def softmax_weight(self) -> torch.Tensor:
        """Return the (V, D) weight of the tied softmax."""
        return self.hf_model.get_input_embeddings().weight

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Return the softmax's input, the table, and a masked model's bias."""
        if self.mlm_head is None:
            return x_ND, self.softmax_weight(), None
        return self.mlm_head(x_ND), self.softmax_weight(), self.mlm_head.bias

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """Return [CLS], the last position, or the mean, special tokens included.

        [CLS] goes through the pooler if there is one. A causal model has read the whole text only
        at the last position.
        """
        top_BTD = layers[-1]
        mode = _pooling_mode(self.config, self.checkpoint_info)
        if mode == "mean":
            return masked_mean(top_BTD, batch.mask_BT)
        if mode == "last":
            return gather_last(top_BTD, batch.mask_BT)
        if mode == "first" and self.checkpoint_info.has_pooler:
            return self.hf_model.pooler(top_BTD)
        return top_BTD[:, 0]

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Return the modules by role."""
        model = self.hf_model
        model_type = self.checkpoint_info.hf_config["model_type"]
        if model_type == "openai-gpt":
            embedding = nn.ModuleList([model.tokens_embed, model.positions_embed])
            return {"embedding": embedding, "body": nn.ModuleList([model.h])}
        if model_type == "gpt2":
            embedding = nn.ModuleList([model.wte, model.wpe])
            return {"embedding": embedding, "body": nn.ModuleList([model.h, model.ln_f])}
        modules: dict[str, nn.Module] = {"embedding": model.embeddings, "body": model.encoder}
        if self.checkpoint_info.has_pooler:
            modules["pooler"] = model.pooler
        if self.mlm_head is not None:
            modules["head"] = self.mlm_head
        return modules

    def tied_parameters(self) -> list[nn.Parameter]:
        """Return the embedding if it is also a softmax."""
        if not self.checkpoint_info.has_lm_head:
            return []
        return [self.hf_model.get_input_embeddings().weight]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Return the embeddings, then each block.

        The last norm belongs to the last block, and so does the pooler if it is used.
        """
        modules = self.modules_by_role()
        blocks = self.hf_model.h if self.causal else self.hf_model.encoder.layer
        groups = [[*modules["embedding"].parameters()]]
        groups += [[*block.parameters()] for block in blocks]
        grouped = {id(parameter) for group in groups for parameter in group}
        groups[-1] += [p for p in modules["body"].parameters() if id(p) not in grouped]
        if "pooler" in modules and _pooling_mode(self.config, self.checkpoint_info) == "first":
            groups[-1] += [*modules["pooler"].parameters()]
        return groups

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator) -> None:
        """Initialize as the library does.

        Normal weights, norms at one, biases and the padding's row at zero. GPT-2's output
        projections shrink with the number of layers.
        """
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if isinstance(module, nn.LayerNorm) or name == "bias":
                    parameter.fill_(float(name == "weight"))
                else:
                    std = self.hf_config.initializer_range
                    nn.init.normal_(parameter, std=std, generator=generator)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
        if self.checkpoint_info.hf_config["model_type"] == "gpt2":
            for name, parameter in self.hf_model.named_parameters():
                if name.endswith("c_proj.weight"):
                    parameter.div_((2 * self.hf_config.n_layer) ** 0.5)

    def hidden_sizes(self) -> tuple[int, ...]:
        """Return D for the embeddings and each block."""
        return (self.hf_config.hidden_size,) * (self.hf_config.num_hidden_layers + 1)

    def tensor_views(self) -> weights.TensorViews:
        """Return the tensors by their names in the folder's file."""
        prefix = self.checkpoint_info.model_type.tensor_prefix
        views = {f"{prefix}{name}": value for name, value in self.hf_model.named_parameters()}
        if self.mlm_head is None:
            return views
        if self.checkpoint_info.model_type is ROBERTA:
            dense, norm, bias = "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"
        else:
            dense = "cls.predictions.transform.dense"
            norm = "cls.predictions.transform.LayerNorm"
            bias = "cls.predictions.bias"
        for name, value in self.mlm_head.dense.named_parameters():
            views[f"{dense}.{name}"] = value
        for name, value in self.mlm_head.norm.named_parameters():
            views[f"{norm}.{name}"] = value
        views[bias] = self.mlm_head.bias
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
def load_pretrained(folder: Path, config: PublicConfig) -> tuple[PublicConfig, PublicModel]:
    """Read a folder: return the config with the folder's contents, and the model with its weights.

    Raises InputError if the weights do not fit config.json.
    """
    info = inspect_checkpoint(folder)
    config = replace(config, checkpoint_info=info)
    model = weights.build_on_meta(
        lambda: PublicModel(config, vocab_size=info.hf_config["vocab_size"]),
        where=str(folder / "config.json"),
    )
    path = weights.find_weights_file(folder)
    tensors = weights.read_tensors(path, prefix=info.model_type.tensor_prefix)
    _restore_tied_table(tensors, model)
    weights.load_into_model(model, PublicModel.tensor_views, tensors, path, ignored=IGNORED_TENSORS)
    copies = {f"{name}.weight": model.softmax_weight() for name in TIED_COPIES}
    if model.mlm_head is not None:
        copies |= {f"{name}.bias": model.mlm_head.bias for name in TIED_COPIES}
    weights.check_tied_copies(tensors, copies, path)
    return config, model.eval()


def _restore_tied_table(tensors: dict[str, torch.Tensor], model: PublicModel) -> None:
    """Add the embedding if the file holds it only under a head's name.

    Tied tables are saved once.
    """
    weight = model.softmax_weight()
    table = next(name for name, view in model.tensor_views().items() if view is weight)
    if table in tensors:
        return
    for name in TIED_COPIES:
        if f"{name}.weight" in tensors:
            tensors[table] = tensors[f"{name}.weight"]
            return


def build_batch_sampler(
    tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: ContinuedPretrainSettings, *, seed: int
) -> BatchSampler:
    """Build windows of the target's text, masked for a masked model."""
    resolved = cast(MaskedWindowSettings, settings)  # `with_default_seq_len` has set seq_len
    if tokenizer.special_token_template.mask_token_id is None:
        return CausalWindows(tokens, tokenizer, resolved, seed=seed)
    return MaskedWindows(tokens, tokenizer, resolved, seed=seed)


def pretraining_loss(
    model: PublicModel, batch: Batch, recurrent_state: object = None
) -> LossOutput:
    """Predict the next piece, or the masked ones."""
    if model.causal:
        return causal_lm_loss(model, batch, recurrent_state)
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
    """Return True if the folder is known to have no language model's head."""
    return config.checkpoint_info is not None and not config.checkpoint_info.has_lm_head


def describe_mechanism(
    architecture: PublicConfig, pretrain: ContinuedPretrainSettings
) -> dict[str, str]:
    """Describe what is known of a folder's model."""
    info = architecture.checkpoint_info
    if info is None:
        return {}
    pooled = {"first": "[CLS]", "cls": "[CLS]", "last": "last piece", "mean": "mean of the pieces"}
    objective = "masked LM"
    if info.causal:
        objective = "next token"
    elif not info.has_lm_head:
        objective = "unknown: no head is there"
    return {
        "contextualizer": f"Transformer ({info.hf_config['model_type']})",
        "direction": "left to right" if info.causal else "both sides at once",
        "objective": f"{objective}, on its own text",
        "transfer": f"whole network, {pooled[_pooling_mode(architecture, info)]}",
    }


FAMILY = Public(
    name="public",
    input_unit="its own tokenizer",
    contextualizer="Transformer",
    direction="as it was pretrained",
    objective_description="as it was pretrained, on its own text",
    transfer_description="whole network",
    tokenizer_type="pretrained",
    architecture_class=PublicConfig,
    pretrain_class=ContinuedPretrainSettings,
    build=PublicModel,
    batch_sampler=build_batch_sampler,
    objective=pretraining_loss,
    score_texts=public_scores,
    describe=describe_mechanism,
    load_pretrained=load_pretrained,
    lacks_lm_head=lacks_lm_head,
    defaults={
        "tokenizer": "pretrained",
        "pretrain": {
            "batch_size": 16,
        },
        "adapt": {
            "learning_rate": 2e-05,
            "layer_lr_decay": 1.0,
        },
        "evaluate": {
            "finetune": {
                "learning_rate": 2e-05,
                "trials": [
                    {"learning_rate": 1e-05},
                    {"learning_rate": 2e-05},
                    {"learning_rate": 5e-05},
                ],
                "batch_size": 32,
            },
        },
    },
)
