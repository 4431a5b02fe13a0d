"""The answers of a task by label: F1 of each class, confusions and calibration, as figures."""

from collections.abc import Collection, Iterator, Sequence

from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis, AnswerDetails, Calibration, ClassScore
from lineage.report import charts
from lineage.report.figures import LineSeries
from lineage.report.formatting import format_model, format_percent
from lineage.report.section import Figure
from lineage.report.styles import model_style

MIN_CLASSES_FOR_FINDING = 2
MAX_SHOWN_CLASSES = 20
MIN_NAMED_ITEMS = 5  # of a label in the test set; sentences name no rarer one
SMALL_CALIBRATION_ERROR = 0.03
SMALL_SPREAD = 0.02  # of F1 over the labels
SMALLEST_CONFUSION = 0.005  # it would be printed as 0 %


def list_answer_figures(analysis: Analysis, decision: Decision) -> list[Figure]:
    """Return the figures of a task, at its most labels: classes, confusions and calibration."""
    found: list[Figure] = []
    for details in analysis.answer_details:
        places = choose_systems(details, decision)
        if details.task == decision.task and places:
            found = [
                *_draw_classes(analysis, details, places),
                *_draw_confusions(details, places[0]),
                *_draw_calibrations(analysis, details, places),
            ]
    return found


def _draw_classes(
    analysis: Analysis, details: AnswerDetails, places: Sequence[int]
) -> Iterator[Figure]:
    if len(details.classes) < MIN_CLASSES_FOR_FINDING:
        return
    classes = details.classes[:MAX_SHOWN_CLASSES]
    places_of_classes = range(len(classes))
    series = []
    for place in places:
        model = details.systems[place].model
        f1 = [one.f1[place] for one in classes]
        series.append(
            LineSeries(format_model(model), model_style(analysis, model), places_of_classes, f1)
        )
    svg = charts.draw_class_scores(
        series,
        [charts.shorten(one.label, 15) for one in classes],
        [f"{one.count:,.0f}" for one in classes],
        title="F1 by label",
        subtitle=f"{details.counted} in test",
    )
    sentence = describe_classes(details.classes, place=places[0], name=series[0].name)
    yield Figure(svg, sentence, details.task)


def _draw_confusions(details: AnswerDetails, place: int) -> Iterator[Figure]:
    labels = details.confusion_labels
    if labels:
        shares = details.confusions[place]
        name = format_model(details.systems[place].model)
        svg = charts.draw_confusion(
            labels, shares, title=f"Answers of {name}", subtitle="% of each label (rows)"
        )
        rare = {one.label for one in details.classes if one.count < MIN_NAMED_ITEMS}
        counted = "items" if details.counted == "items" else "words"  # confusions are of tags
        sentence = describe_confusions(labels, shares, rare, counted=counted)
        yield Figure(svg, sentence, details.task)


def _draw_calibrations(
    analysis: Analysis, details: AnswerDetails, places: Sequence[int]
) -> Iterator[Figure]:
    first = details.calibrations[places[0]]
    if first is None:
        return
    series = []
    for place in places:
        model = details.systems[place].model
        calibration = details.calibrations[place]
        if calibration is not None:
            series.append(
                LineSeries(
                    format_model(model),
                    model_style(analysis, model),
                    [one.confidence for one in calibration.bins],
                    [one.accuracy for one in calibration.bins],
                    bold=place == places[0],
                )
            )
    svg = charts.draw_calibration(
        series, title="Calibration", subtitle="% right over confidence, %"
    )
    yield Figure(svg, describe_calibration(first, name=series[0].name), details.task)


def choose_systems(details: AnswerDetails, decision: Decision) -> list[int]:
    """Return the places of the system to use, of the best other model, and of TF-IDF."""
    used: list[int] = []
    others: list[int] = []
    tfidf: list[int] = []
    for place, system in enumerate(details.systems):
        if system == decision.use.standing.system:
            used.append(place)
        elif system.family == "tfidf":
            tfidf.append(place)
        else:
            others.append(place)
    return [*used, *others[:1], *tfidf] if used else []


def describe_classes(classes: Sequence[ClassScore], *, place: int, name: str) -> str:
    """Name the label that a system finds worst, of those that are not rare."""
    common = [one for one in classes if one.count >= MIN_NAMED_ITEMS] or classes
    worst = min(common, key=lambda one: one.f1[place])
    best = max(common, key=lambda one: one.f1[place])
    if best.f1[place] - worst.f1[place] < SMALL_SPREAD:
        return f"{name} finds all labels about equally well."
    return (
        f"{name} is weakest on label {worst.label}: F1 {format_percent(worst.f1[place])}, "
        f"with {worst.count:,.0f} in the test set."
    )


def describe_confusions(
    labels: Sequence[str],
    shares: Sequence[Sequence[float]],
    rare: Collection[str] = (),
    *,
    counted: str = "items",
) -> str:
    """Name the labels, not rare ones, of which the largest share is called something else."""
    confusions = [
        (share, label, answer)
        for label, own in zip(labels, shares, strict=True)
        for answer, share in zip(labels, own, strict=True)
        if label != answer and label not in rare
    ]
    share, label, answer = max(confusions, default=(0.0, "", ""))
    if share < SMALLEST_CONFUSION:
        named = f" with at least {MIN_NAMED_ITEMS} items" if rare else ""
        return f"No label{named} is read as another."
    percent = f"{100 * share:.0f} %"
    return f"{percent} of the {counted} of {label} are called {answer}, the largest such share."


def describe_calibration(calibration: Calibration, *, name: str) -> str:
    """Tell how far confidence and accuracy are apart, and on which side."""
    gap = sum(one.share * (one.confidence - one.accuracy) for one in calibration.bins)
    points = f"{100 * calibration.error:.1f} points"
    if calibration.error < SMALL_CALIBRATION_ERROR:
        return f"The confidence of {name} can be read as a probability: it is off by {points}."
    side = "too high" if gap > 0 else "too low"
    return f"The confidence of {name} is {side}: it is off by {points} on average."
