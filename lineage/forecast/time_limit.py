"""Fit a study into a number of minutes: fewer models, or less text for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lineage.config.params import Params
from lineage.forecast.counts import StageName
from lineage.forecast.records import StudyForecast

# Stages whose time grows with the text that a model reads.
READING_VERBS = ("pretrain", "recipe")
SHARE_STEPS = 50  # of the text, tried from all of it downwards
# The seconds of a run of some stages, by their names.
Simulation = Callable[[Sequence[str], StudyForecast], float]


@dataclass(frozen=True)
class Proposal:
    """Changes of params.yaml that fit into the time, each with the seconds that it takes."""

    models: Mapping[str, float]  # those that fit; the seconds of a run of each and those before it
    text_bytes: int = 0  # for each of all models; 0 if none fits
    text_seconds: float = 0.0


def propose(
    stages: Sequence[str],
    forecast: StudyForecast,
    params: Params,
    *,
    limit_seconds: float,
    simulate: Simulation,
) -> Proposal:
    """Return the most models, and the most text, with which a run takes no longer."""
    models = _fit_models(stages, forecast, params, limit_seconds, simulate)
    passes = params.budget.max_epochs
    for step in range(SHARE_STEPS, 0, -1):
        share = step / SHARE_STEPS
        if share * passes < 1:
            break
        seconds = simulate(stages, _shorten_reading(forecast, share))
        if seconds <= limit_seconds:
            return Proposal(models, int(share * params.budget.text_bytes), seconds)
    return Proposal(models)


def _fit_models(
    stages: Sequence[str],
    forecast: StudyForecast,
    params: Params,
    limit_seconds: float,
    simulate: Simulation,
) -> dict[str, float]:
    model_of = {name: StageName.parse(name, params).model for name in stages}
    costs = dict.fromkeys(params.grid.models, 0.0)
    for name, model in model_of.items():
        if model:
            costs[model] += forecast.stages[name].seconds
    fitting: dict[str, float] = {}
    for model in sorted(costs, key=lambda one: costs[one]):
        kept = [name for name in stages if model_of[name] in ("", model, *fitting)]
        seconds = simulate(kept, forecast)
        if seconds > limit_seconds:
            break
        fitting[model] = seconds
    return fitting


def _shorten_reading(forecast: StudyForecast, share: float) -> StudyForecast:
    stages = {
        name: replace(stage, seconds=share * stage.seconds)
        if name.partition("@")[0] in READING_VERBS
        else stage
        for name, stage in forecast.stages.items()
    }
    return replace(forecast, stages=stages)


def describe_proposal(proposal: Proposal, params: Params) -> list[str]:
    """Return a line for each change that fits into the minutes."""
    lines = []
    if proposal.models:
        names = [name for name in params.grid.models if name in proposal.models]
        seconds = max(proposal.models.values())
        lines.append(f"grid.models: [{', '.join(names)}] takes about {seconds / 60:.0f} min")
    if proposal.text_bytes:
        lines.append(
            f"budget.text_bytes: {proposal.text_bytes:,} with all models takes about "
            f"{proposal.text_seconds / 60:.0f} min"
        )
    if not lines:
        lines.append(
            "nothing does: even the cheapest model takes longer; use fewer tasks, label counts or "
            "seeds, or smaller bodies (budget.body_parameters)"
        )
    return lines
