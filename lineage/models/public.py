"""A public checkpoint: what others trained on text of their own, as a row beside the families of this budget. It is never matched with them.

BERT, RoBERTa and its like, GPT-1, GPT-2, and encoders of sentences, run by transformers' own classes. Shapes: N predicted positions, V vocabulary.
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
from lineage.models.base import Encoder, Family, LossOutput
from lineage.models.batch import Batch, gather_last, masked_mean
from lineage.models.layers.softmax import SoftmaxInputs
from lineage.models.public_folders import (
    ACTIVATION_KEYS,
    DROPOUT_KEYS,
    ROBERTA,
    TRANSFORMERS_MISSING,
    CheckpointInfo,
    inspect_checkpoint,
)
from lineage.tokenizers.token_ids import TokenizedCorpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.masked_lm_batches import MaskedWindows, MaskedWindowSettings
from lineage.training.objectives import causal_lm_loss, masked_lm_loss
from lineage.training.samplers import BatchSampler, CausalWindows
from lineage.training.sentence_scores import score_causal_lm, score_pseudo_log_likelihood
from lineage.training.settings import MaskReplacement, check_min_seq_len

DEFAULT_SEQ_LEN = 128  # of a window, where nobody says another
# Masks and numbers, and heads of tasks that nothing here reads: the next sentence's, a classifier's.
IGNORED_TENSORS = r".*\.attn\.(masked_)?bias|.*position_ids|.*token_type_ids|cls\.seq_relationship\..*|.*\b(classifier|score|qa_outputs)\..*"
CODE_LOADING_KEYS = re.compile(
    "attn_implementation|experts_implementation"
)  # keys by which the library would look for other code, on the Hub too
TIED_COPIES = (
    "lm_head",
    "lm_head.decoder",
    "cls.predictions.decoder",
)  # of the embedding and the head's bias, which the softmax shares
IGNORED_TENSORS += r"|lm_head\.weight|(lm_head|cls\.predictions)\.decoder\.(weight|bias)"


@dataclass(frozen=True)
class PublicConfig:
    """The block `model`."""

    pooling: Literal["default", "mean"] = (
        "default"  # default: [CLS] (through its pooler, if it is there), the last piece, or as 1_Pooling/config.json says
    )
    dropout: float | None = None  # in place of the checkpoint's own
    checkpoint_info: CheckpointInfo | None = (
        None  # what the folder holds: written by the stage pretrain, not by you
    )

    def __post_init__(self) -> None:
        check_fraction(self, "dropout")

    @property
    def max_positions(self) -> int | None:
        """That it can read; all of them have been trained."""
        return self.checkpoint_info.max_positions if self.checkpoint_info else None


@dataclass(frozen=True)
class ContinuedPretrainSettings:
    """The block `pretrain`: nothing is pretrained here, so this is how its language model goes on with a target's text in adaptation."""

    batch_size: int
    grad_accum_steps: int = 1  # batches a step
    seq_len: int | None = (
        None  # of a window, marks included; none: 128, or all positions of a model that has fewer
    )
    mlm_probability: float = 0.15  # of a window's positions, of a masked model
    mask_replacement: MaskReplacement = field(
        default_factory=MaskReplacement
    )  # of these: the shares that become the mask, and a random piece; the rest stays

    def __post_init__(self) -> None:
        check_positive(self, "batch_size", "grad_accum_steps", "seq_len", "mlm_probability")
        check_fraction(self, "mlm_probability")
        check_min_seq_len("seq_len", self.seq_len)

    def with_default_seq_len(self, max_positions: int) -> Self:
        """The same for a model that reads so many."""
        return (
            self
            if self.seq_len is not None
            else replace(self, seq_len=min(DEFAULT_SEQ_LEN, max_positions))
        )


def import_transformers() -> Any:
    """The transformers library. Raises InputError where it is not installed."""
    try:
        import transformers  # takes seconds, which only this family pays
    except ImportError:
        raise InputError(TRANSFORMERS_MISSING) from None
    return transformers


class MaskedLMHead(nn.Module):
    """Dense, activation, norm; then the tied table and a bias (Devlin et al. 2019, and RoBERTa's, whose activation is the exact GELU)."""

    def __init__(self, config: Any, *, exact_gelu: bool, transformers_module: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.empty(config.vocab_size))
        self.activation = (
            F.gelu if exact_gelu else transformers_module.activations.ACT2FN[config.hidden_act]
        )

    def forward(self, x_ND: torch.Tensor) -> torch.Tensor:
        """What the softmax reads."""
        return self.norm(self.activation(self.dense(x_ND)))


class PublicModel(Encoder):
    """The library's body, its pooler and the head of its language model, as far as the folder holds them."""

    def __init__(self, config: PublicConfig, *, vocab_size: int) -> None:
        """`vocabulary`, the tokenizer's, may be smaller than the table of the checkpoint."""
        super().__init__()
        assert config.checkpoint_info is not None, "the stage pretrain has read the folder"
        self.config, self.checkpoint_info, self.causal = (
            config,
            config.checkpoint_info,
            config.checkpoint_info.causal,
        )
        self.word_pooling = "last" if self.causal else "mean"
        found, theirs = (
            import_transformers(),
            {
                key: value
                for key, value in copy.deepcopy(self.checkpoint_info.hf_config).items()
                if not CODE_LOADING_KEYS.search(key)
            },
        )
        try:
            self.hf_config = found.CONFIG_MAPPING[theirs["model_type"]].from_dict(theirs)
            for name in DROPOUT_KEYS if config.dropout is not None else ():
                if hasattr(self.hf_config, name):
                    setattr(self.hf_config, name, config.dropout)
        except (
            Exception
        ) as error:  # its checks raise classes of their own, each with the key's name
            raise InputError(
                f"transformers refuses it: {' '.join(str(error).split())}; correct it"
            ) from error
        more = {} if self.causal else {"add_pooling_layer": self.checkpoint_info.has_pooler}
        try:
            self.hf_model = found.MODEL_MAPPING[type(self.hf_config)](
                self.hf_config, **more
            )  # never from_pretrained: no network, no pickle, no foreign code
        except KeyError as error:
            key = next(key for key in ACTIVATION_KEYS if hasattr(self.hf_config, key))
            raise InputError(
                f"{key} is {error}, which transformers has no activation of; correct it"
            ) from None
        masked = self.checkpoint_info.has_lm_head and not self.causal
        self.mlm_head = (
            MaskedLMHead(
                self.hf_config,
                exact_gelu=self.checkpoint_info.model_type is ROBERTA,
                transformers_module=found,
            )
            if masked
            else None
        )

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Also gives the library's buffers their numbers, which are in no file."""
        super().to_empty(device=device, recurse=recurse)
        for name, buffer in self.hf_model.named_buffers():
            last = name.rsplit(".", 1)[-1]
            assert last in ("position_ids", "token_type_ids", "bias"), name
            values = (
                torch.arange(buffer.shape[-1])
                if last == "position_ids"
                else torch.zeros(1)
                if last == "token_type_ids"
                else None
            )
            ones = (
                torch.ones(buffer.shape[-2:]).tril() if values is None else values
            )  # of GPT-1: the mask of what stands to the right
            buffer.copy_(ones.expand_as(buffer))
        return self

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding layer and the output of each block, all (B, T, D)."""
        ids, mask = batch.ids_BT, batch.mask_BT
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        given: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": mask.long(),
            "output_hidden_states": True,
            "return_dict": True,
        }
        if not self.causal:
            segments = (
                batch.segment_ids_BT
                if batch.segment_ids_BT is not None and self.hf_config.type_vocab_size > 1
                else torch.zeros_like(ids)
            )
            given["token_type_ids"] = segments * batch.second_token_type_id
        if (
            self.checkpoint_info.model_type is ROBERTA
        ):  # as the library counts them, but also where a random piece is the padding's
            places = mask.long().cumsum(1) * mask + self.hf_config.pad_token_id
        return tuple(self.hf_model(**given, position_ids=places).hidden_states)

    def softmax_weight(self) -> torch.Tensor:
        """(V, D) of the tied softmax."""
        return self.hf_model.get_input_embeddings().weight

    def softmax_inputs(self, x_ND: torch.Tensor) -> SoftmaxInputs:
        """Top vectors of the next piece or of the masked one, the table, and the bias of a masked one."""
        if self.mlm_head is None:
            return x_ND, self.softmax_weight(), None
        return self.mlm_head(x_ND), self.softmax_weight(), self.mlm_head.bias

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """[CLS], through the pooler if it is there; the last position, the only one that has read the whole text; or the mean, marks included."""
        top_BTD, reads = (
            layers[-1],
            "mean" if self.config.pooling == "mean" else self.checkpoint_info.pooling,
        )
        if reads == "mean":
            return masked_mean(top_BTD, batch.mask_BT)
        if reads == "last":
            return gather_last(top_BTD, batch.mask_BT)
        return (
            self.hf_model.pooler(top_BTD)
            if self.checkpoint_info.has_pooler and reads == "first"
            else top_BTD[:, 0]
        )

    def modules_by_role(self) -> dict[str, nn.Module]:
        """Modules by role."""
        core = self.hf_model
        if not self.causal:
            more = {"pooler": core.pooler} if self.checkpoint_info.has_pooler else {}
            return (
                {"embedding": core.embeddings, "body": core.encoder}
                | more
                | ({"head": self.mlm_head} if self.mlm_head is not None else {})
            )
        first = self.checkpoint_info.hf_config["model_type"] == "openai-gpt"
        inputs = [core.tokens_embed, core.positions_embed] if first else [core.wte, core.wpe]
        return {
            "embedding": nn.ModuleList(inputs),
            "body": nn.ModuleList([core.h] if first else [core.h, core.ln_f]),
        }

    def tied_parameters(self) -> list[nn.Parameter]:
        """The embedding is the softmax, where there is one."""
        return (
            [self.hf_model.get_input_embeddings().weight]
            if self.checkpoint_info.has_lm_head
            else []
        )

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The embeddings, each block, and with the last one the last norm and the pooler that is read."""
        parts = self.modules_by_role()
        blocks = self.hf_model.h if self.causal else self.hf_model.encoder.layer
        groups = [[*parts["embedding"].parameters()], *([*block.parameters()] for block in blocks)]
        inside = {id(p) for group in groups for p in group}
        pooled = (
            "pooler" in parts
            and self.config.pooling == "default"
            and self.checkpoint_info.pooling == "first"
        )
        groups[-1] += [p for p in parts["body"].parameters() if id(p) not in inside] + (
            [*parts["pooler"].parameters()] if pooled else []
        )
        return groups

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator) -> None:
        """As its library starts it: normal, norms at one, biases and the row of padding at zero; GPT-2's outputs smaller the deeper it is."""
        deviation, second = (
            self.hf_config.initializer_range,
            self.checkpoint_info.hf_config["model_type"] == "gpt2",
        )
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if isinstance(module, nn.LayerNorm) or name == "bias":
                    parameter.fill_(float(name == "weight"))
                else:
                    nn.init.normal_(parameter, std=deviation, generator=generator)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
        if second:
            for name, parameter in self.hf_model.named_parameters():
                if name.endswith("c_proj.weight"):
                    parameter.div_((2 * self.hf_config.n_layer) ** 0.5)

    def hidden_sizes(self) -> tuple[int, ...]:
        """D for the embeddings and each block."""
        return (self.hf_config.hidden_size,) * (self.hf_config.num_hidden_layers + 1)

    def tensor_views(self) -> weights.TensorViews:
        """The tensors by their names in the folder's file."""
        found = {
            f"{self.checkpoint_info.model_type.tensor_prefix}{name}": value
            for name, value in self.hf_model.named_parameters()
        }
        if self.mlm_head is not None:
            bert = self.checkpoint_info.model_type is not ROBERTA
            where, norm = (
                ("cls.predictions.transform.", "LayerNorm") if bert else ("lm_head.", "layer_norm")
            )
            found |= {
                f"{where}dense.{name}": value
                for name, value in self.mlm_head.dense.named_parameters()
            }
            found |= {
                f"{where}{norm}.{name}": value
                for name, value in self.mlm_head.norm.named_parameters()
            }
            found["cls.predictions.bias" if bert else "lm_head.bias"] = self.mlm_head.bias
        return found


@torch.no_grad()
def load_pretrained(folder: Path, config: PublicConfig) -> tuple[PublicConfig, PublicModel]:
    """The block with what the folder holds in it, and the model with the folder's weights. Raises InputError where they do not fit."""
    found = replace(config, checkpoint_info=inspect_checkpoint(folder))
    assert found.checkpoint_info is not None
    rows = found.checkpoint_info.hf_config["vocab_size"]
    model = weights.build_on_meta(
        lambda: PublicModel(found, vocab_size=rows), where=str(folder / "config.json")
    )
    path = weights.find_weights_file(folder)
    tensors = dict(
        weights.read_tensors(path, prefix=found.checkpoint_info.model_type.tensor_prefix)
    )
    (table,) = (
        name for name, value in model.tensor_views().items() if value is model.softmax_weight()
    )
    if kept := [
        name for name in TIED_COPIES if f"{name}.weight" in tensors and table not in tensors
    ]:  # tied tables are saved once, by either name
        tensors[table] = tensors[f"{kept[0]}.weight"]
    weights.load_into_model(
        model, PublicModel.tensor_views, tensors, path, ignored=re.compile(IGNORED_TENSORS)
    )
    shared = {"weight": model.softmax_weight()} | (
        {} if model.mlm_head is None else {"bias": model.mlm_head.bias}
    )
    weights.check_tied_copies(
        tensors,
        {f"{name}.{part}": value for name in TIED_COPIES for part, value in shared.items()},
        path,
    )
    return found, model.eval()


def build_batch_sampler(
    tokens: TokenizedCorpus, tokenizer: Tokenizer, settings: ContinuedPretrainSettings, *, seed: int
) -> BatchSampler:
    """Windows of the target's text, masked where the model is a masked one."""
    # `with_default_seq_len` has set seq_len.
    resolved = cast(MaskedWindowSettings, settings)
    if tokenizer.special_token_template.mask_token_id is None:
        return CausalWindows(tokens, tokenizer, resolved, seed=seed)
    return MaskedWindows(tokens, tokenizer, resolved, seed=seed)


def pretraining_loss(model: PublicModel, batch: Batch, recurrent_state: Any = None) -> LossOutput:
    """The next piece, or the masked ones."""
    return (causal_lm_loss if model.causal else masked_lm_loss)(model, batch, recurrent_state)


def public_scores(
    model: PublicModel, tokenizer: Tokenizer, texts: Sequence[str], *, limit: int | None
) -> np.ndarray:
    """(N, 2) `text_scores`, without the first piece's where no mark stands before it (GPT-1); of a masked model pseudo-log-likelihoods."""
    return (score_causal_lm if model.causal else score_pseudo_log_likelihood)(
        model, tokenizer, texts, limit=limit
    )


def lacks_lm_head(config: PublicConfig) -> bool:
    """Whether the folder has no head of a language model."""
    return config.checkpoint_info is not None and not config.checkpoint_info.has_lm_head


def describe_mechanism(
    architecture: PublicConfig, pretrain: ContinuedPretrainSettings
) -> dict[str, str]:
    """What is known of a folder's mechanism."""
    about = architecture.checkpoint_info
    if about is None:
        return {}
    reads = "mean" if architecture.pooling == "mean" else about.pooling
    vector = {"first": "[CLS]", "cls": "[CLS]", "last": "last piece", "mean": "mean of the pieces"}[
        reads
    ]
    goal = (
        "next token"
        if about.causal
        else "masked LM"
        if about.has_lm_head
        else "unknown: no head is there"
    )
    return {
        "extractor": f"Transformer ({about.hf_config['model_type']})",
        "direction": "left to right" if about.causal else "both sides at once",
        "objective": f"{goal}, on text of its own",
        "transfer": f"whole network, {vector}",
    }


FAMILY = Family(
    name="public",
    input_unit="its own tokenizer",
    contextualizer="Transformer",
    direction="as it was pretrained",
    objective_description="as it was pretrained, on text of its own",
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
)
