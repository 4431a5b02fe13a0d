"""Keep a model as it was when a share of its training budget had been read."""

from collections.abc import Sequence
from pathlib import Path

from lineage.artifacts import create_artifact, is_intact, write_json
from lineage.networks.base import Encoder
from lineage.networks.checkpoint import INTERMEDIATE_PREFIX, Checkpoint
from lineage.training.optimizers import swap_averaged_weights
from lineage.training.state import TrainState


class IntermediateCheckpoints:
    """The intermediate checkpoints of one training, which wait in its resume folder.

    Each one is written after the first step that reaches its share, before a resume point of that
    step, so that a resumed training finds those of earlier shares.
    """

    def __init__(self, checkpoint: Checkpoint, shares: Sequence[float], folder: Path) -> None:
        """`shares` are shares of the budget; `folder` is that of the resume points."""
        self.checkpoint = checkpoint
        self.folders = {share: folder / f"{INTERMEDIATE_PREFIX}{share}" for share in sorted(shares)}
        self.reached = 0.0  # the shares up to this progress have their checkpoints

    def has_all_until(self, progress: float) -> bool:
        """Tell whether the checkpoints of all shares up to this progress are here, undamaged."""
        return all(
            is_intact(folder, "model")
            for share, folder in self.folders.items()
            if share <= progress
        )

    def update(self, state: TrainState, progress: float) -> None:
        """Save the model, with averaged weights if there are any, for each share just reached.

        Raises EvaluationError if a loss or gradient was not finite.
        """
        for share, folder in self.folders.items():
            if self.reached < share <= progress:
                self._save(state, share, folder)
        self.reached = progress

    def _save(self, state: TrainState, share: float, folder: Path) -> None:
        model = state.model
        assert isinstance(model, Encoder)
        state.run_finite_checks()
        swap_averaged_weights(state.optimizer)
        with create_artifact(folder, "model", status="ok", reason="") as draft:
            self.checkpoint.save(draft, model)
            spent = {"text_share": share, "text_bytes": state.counters.text_bytes}
            write_json(draft / "spent.json", spent)
        swap_averaged_weights(state.optimizer)
