"""A public checkpoint: what others trained on text of their own, as a row beside the families of this budget. It is never matched with them.

BERT, RoBERTa and its like, GPT-1, GPT-2, and encoders of sentences, run by transformers' own classes. Shapes: N predicted positions, V vocabulary.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lineage import weights
from lineage.batch import Batch, at_last, mean_over
from lineage.errors import InputError
from lineage.family import Encoder, Family, LossOut
from lineage.layers.softmax import ReadOut
from lineage.loading.public import ACTIVATIONS, DROPOUTS, NEEDS_LIBRARY, ROBERTA, About, describe
from lineage.records import positive, share, two_shares
from lineage.text.tokenization import Reader
from lineage.text.tokens import Tokens
from lineage.training.objectives import causal_lm, masked_lm
from lineage.training.pairs import MaskedWindows, enough
from lineage.training.sentences import causal_scores, pseudo_log_likelihoods
from lineage.training.streams import Stream, Windows

LENGTH = 128  # of a window, where nobody says another
# Masks and numbers, and heads of tasks that nothing here reads: the next sentence's, a classifier's.
IDLE = r".*\.attn\.(masked_)?bias|.*position_ids|.*token_type_ids|cls\.seq_relationship\..*|.*\b(classifier|score|qa_outputs)\..*"
CODE = re.compile("attn_implementation|experts_implementation")  # keys by which the library would look for other code, on the Hub too
COPIES = ("lm_head", "lm_head.decoder", "cls.predictions.decoder")  # of the embedding and the head's bias, which the softmax shares
IDLE += r"|lm_head\.weight|(lm_head|cls\.predictions)\.decoder\.(weight|bias)"


@dataclass(frozen=True)
class Config:
    """The block `model`."""

    pooling: Literal["own", "mean"] = "own"  # own: [CLS] (through its pooler, if it is there), the last piece, or as 1_Pooling/config.json says
    dropout: float | None = None  # in place of the checkpoint's own
    about: About | None = None  # what the folder holds: written by the stage pretrain, not by you

    def __post_init__(self) -> None:
        share(self, "dropout")

    @property
    def positions(self) -> int | None:
        """That it can read; all of them have been trained."""
        return self.about.positions if self.about else None


@dataclass(frozen=True)
class GoingOn:
    """The block `pretrain`: nothing is pretrained here, so this is how its language model goes on with a target's text in adaptation."""

    batch: int
    accumulation: int = 1  # batches a step
    length: int | None = None  # of a window, marks included; none: 128, or all positions of a model that has fewer
    mask_share: float = 0.15  # of a window's positions, of a masked model
    become: tuple[float, ...] = (0.8, 0.1)  # of these: the shares that become the mask, and a random piece; the rest stays

    def __post_init__(self) -> None:
        positive(self, "batch", "accumulation", "length", "mask_share")
        share(self, "mask_share")
        enough("length", self.length)
        two_shares(self, "become")

    def within(self, positions: int) -> Self:
        """The same for a model that reads so many."""
        return self if self.length is not None else replace(self, length=min(LENGTH, positions))


def library() -> Any:
    """The transformers library. Raises InputError where it is not installed."""
    try:
        import transformers  # takes seconds, which only this family pays
    except ImportError:
        raise InputError(NEEDS_LIBRARY) from None
    return transformers


class MaskedHead(nn.Module):
    """Dense, activation, norm; then the tied table and a bias (Devlin et al. 2019, and RoBERTa's, whose activation is the exact GELU)."""

    def __init__(self, config: Any, *, exact: bool, library: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.empty(config.vocab_size))
        self.activation = F.gelu if exact else library.activations.ACT2FN[config.hidden_act]

    def forward(self, x_ND: torch.Tensor) -> torch.Tensor:
        """What the softmax reads."""
        return self.norm(self.activation(self.dense(x_ND)))


class Model(Encoder):
    """The library's body, its pooler and the head of its language model, as far as the folder holds them."""

    def __init__(self, config: Config, *, vocabulary: int) -> None:
        """`vocabulary`, the tokenizer's, may be smaller than the table of the checkpoint."""
        super().__init__()
        assert config.about is not None, "the stage pretrain has read the folder"
        self.config, self.about, self.causal = config, config.about, config.about.causal
        self.read_word = "last" if self.causal else "mean"
        found, theirs = library(), {key: value for key, value in copy.deepcopy(self.about.config).items() if not CODE.search(key)}
        try:
            self.theirs = found.CONFIG_MAPPING[theirs["model_type"]].from_dict(theirs)
            for name in DROPOUTS if config.dropout is not None else ():
                if hasattr(self.theirs, name):
                    setattr(self.theirs, name, config.dropout)
        except Exception as error:  # its checks raise classes of their own, each with the key's name
            raise InputError(f"transformers refuses it: {' '.join(str(error).split())}; correct it") from error
        more = {} if self.causal else {"add_pooling_layer": self.about.pooler}
        try:
            self.core = found.MODEL_MAPPING[type(self.theirs)](self.theirs, **more)  # never from_pretrained: no network, no pickle, no foreign code
        except KeyError as error:
            key = next(key for key in ACTIVATIONS if hasattr(self.theirs, key))
            raise InputError(f"{key} is {error}, which transformers has no activation of; correct it") from None
        masked = self.about.head and not self.causal
        self.masked = MaskedHead(self.theirs, exact=self.about.kind is ROBERTA, library=found) if masked else None

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Also gives the library's buffers their numbers, which are in no file."""
        super().to_empty(device=device, recurse=recurse)
        for name, buffer in self.core.named_buffers():
            last = name.rsplit(".", 1)[-1]
            assert last in ("position_ids", "token_type_ids", "bias"), name
            values = torch.arange(buffer.shape[-1]) if last == "position_ids" else torch.zeros(1) if last == "token_type_ids" else None
            ones = torch.ones(buffer.shape[-2:]).tril() if values is None else values  # of GPT-1: the mask of what stands to the right
            buffer.copy_(ones.expand_as(buffer))
        return self

    def encode(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The embedding layer and the output of each block, all (B, T, D)."""
        ids, mask = batch.ids_BT, batch.mask_BT
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask.long(), "output_hidden_states": True, "return_dict": True}
        if not self.causal:
            segments = batch.segments_BT if batch.segments_BT is not None and self.theirs.type_vocab_size > 1 else torch.zeros_like(ids)
            given["token_type_ids"] = segments * batch.second_type
        if self.about.kind is ROBERTA:  # as the library counts them, but also where a random piece is the padding's
            places = mask.long().cumsum(1) * mask + self.theirs.pad_token_id
        return tuple(self.core(**given, position_ids=places).hidden_states)

    def table(self) -> torch.Tensor:
        """(V, D) of the tied softmax."""
        return self.core.get_input_embeddings().weight

    def read_out(self, x_ND: torch.Tensor) -> ReadOut:
        """Top vectors of the next piece or of the masked one, the table, and the bias of a masked one."""
        if self.masked is None:
            return x_ND, self.table(), None
        return self.masked(x_ND), self.table(), self.masked.bias

    def pool(self, layers: tuple[torch.Tensor, ...], batch: Batch) -> torch.Tensor:
        """[CLS], through the pooler if it is there; the last position, the only one that has read the whole text; or the mean, marks included."""
        top_BTD, reads = layers[-1], "mean" if self.config.pooling == "mean" else self.about.reads
        if reads == "mean":
            return mean_over(top_BTD, batch.mask_BT)
        if reads == "last":
            return at_last(top_BTD, batch.mask_BT)
        return self.core.pooler(top_BTD) if self.about.pooler and reads == "first" else top_BTD[:, 0]

    def parts(self) -> dict[str, nn.Module]:
        """Modules by role."""
        core = self.core
        if not self.causal:
            more = {"pooler": core.pooler} if self.about.pooler else {}
            return {"embedding": core.embeddings, "body": core.encoder} | more | ({"head": self.masked} if self.masked is not None else {})
        first = self.about.config["model_type"] == "openai-gpt"
        inputs = [core.tokens_embed, core.positions_embed] if first else [core.wte, core.wpe]
        return {"embedding": nn.ModuleList(inputs), "body": nn.ModuleList([core.h] if first else [core.h, core.ln_f])}

    def tied(self) -> list[nn.Parameter]:
        """The embedding is the softmax, where there is one."""
        return [self.core.get_input_embeddings().weight] if self.about.head else []

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The embeddings, each block, and with the last one the last norm and the pooler that is read."""
        parts = self.parts()
        blocks = self.core.h if self.causal else self.core.encoder.layer
        groups = [[*parts["embedding"].parameters()], *([*block.parameters()] for block in blocks)]
        inside = {id(p) for group in groups for p in group}
        pooled = "pooler" in parts and self.config.pooling == "own" and self.about.reads == "first"
        groups[-1] += [p for p in parts["body"].parameters() if id(p) not in inside] + ([*parts["pooler"].parameters()] if pooled else [])
        return groups

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """As its library starts it: normal, norms at one, biases and the row of padding at zero; GPT-2's outputs smaller the deeper it is."""
        deviation, second = self.theirs.initializer_range, self.about.config["model_type"] == "gpt2"
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if isinstance(module, nn.LayerNorm) or name == "bias":
                    parameter.fill_(float(name == "weight"))
                else:
                    nn.init.normal_(parameter, std=deviation, generator=generator)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
        if second:
            for name, parameter in self.core.named_parameters():
                if name.endswith("c_proj.weight"):
                    parameter.div_((2 * self.theirs.n_layer) ** 0.5)

    def widths(self) -> tuple[int, ...]:
        """D for the embeddings and each block."""
        return (self.theirs.hidden_size,) * (self.theirs.num_hidden_layers + 1)

    def views(self) -> weights.Views:
        """The tensors by their names in the folder's file."""
        found = {f"{self.about.kind.prefix}{name}": value for name, value in self.core.named_parameters()}
        if self.masked is not None:
            bert = self.about.kind is not ROBERTA
            where, norm = ("cls.predictions.transform.", "LayerNorm") if bert else ("lm_head.", "layer_norm")
            found |= {f"{where}dense.{name}": value for name, value in self.masked.dense.named_parameters()}
            found |= {f"{where}{norm}.{name}": value for name, value in self.masked.norm.named_parameters()}
            found["cls.predictions.bias" if bert else "lm_head.bias"] = self.masked.bias
        return found


@torch.no_grad()
def adopt(folder: Path, config: Config) -> tuple[Config, Model]:
    """The block with what the folder holds in it, and the model with the folder's weights. Raises InputError where they do not fit."""
    found = replace(config, about=describe(folder))
    assert found.about is not None
    rows = found.about.config["vocab_size"]
    model = weights.outlined(lambda: Model(found, vocabulary=rows), where=str(folder / "config.json"))
    path = weights.place(folder)
    tensors = dict(weights.read(path, prefix=found.about.kind.prefix))
    (table,) = (name for name, value in model.views().items() if value is model.table())
    if kept := [name for name in COPIES if f"{name}.weight" in tensors and table not in tensors]:  # tied tables are saved once, by either name
        tensors[table] = tensors[f"{kept[0]}.weight"]
    weights.fill(model, Model.views, tensors, path, idle=re.compile(IDLE))
    shared = {"weight": model.table()} | ({} if model.masked is None else {"bias": model.masked.bias})
    weights.check_copies(tensors, {f"{name}.{part}": value for name in COPIES for part, value in shared.items()}, path)
    return found, model.eval()


def stream(tokens: Tokens, reader: Reader, settings: GoingOn, *, seed: int) -> Stream:
    """Windows of the target's text, masked where the model is a masked one."""
    return (Windows if reader.frame.mask is None else MaskedWindows)(tokens, reader, settings, seed=seed)


def objective(model: Model, batch: Batch, carry: Any = None) -> LossOut:
    """The next piece, or the masked ones."""
    return (causal_lm if model.causal else masked_lm)(model, batch, carry)


def score(model: Model, reader: Reader, texts: Sequence[str], *, limit: int | None) -> np.ndarray:
    """(N, 2) `text_scores`, without the first piece's where no mark stands before it (GPT-1); of a masked model pseudo-log-likelihoods."""
    return (causal_scores if model.causal else pseudo_log_likelihoods)(model, reader, texts, limit=limit)


def headless(config: Config) -> bool:
    """Whether the folder has no head of a language model."""
    return config.about is not None and not config.about.head


def switched(model: Config, pretrain: GoingOn) -> dict[str, str]:
    """What is known of a folder's mechanism."""
    about = model.about
    if about is None:
        return {}
    reads = "mean" if model.pooling == "mean" else about.reads
    vector = {"first": "[CLS]", "cls": "[CLS]", "last": "last piece", "mean": "mean of the pieces"}[reads]
    goal = "next token" if about.causal else "masked LM" if about.head else "unknown: no head is there"
    return {"extractor": f"Transformer ({about.config['model_type']})", "direction": "left to right" if about.causal else "both sides at once",
            "objective": f"{goal}, on text of its own", "transfer": f"whole network, {vector}"}  # fmt: skip


FAMILY = Family(
    name="public",
    unit="its own tokenizer",
    extractor="Transformer",
    direction="as it was pretrained",
    objective_text="as it was pretrained, on text of its own",
    transfer_text="whole network",
    tokenizer="own",
    model=Config,
    pretrain=GoingOn,
    build=Model,
    stream=stream,
    objective=objective,
    score=score,
    switched=switched,
    adopt=adopt,
    headless=headless,
)
