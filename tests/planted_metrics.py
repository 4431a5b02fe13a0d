"""Bugs to plant in what ways are compared by."""

from tests.planted import Bug

REPORT = "test_compared_metrics.py::test_the_report_compares_by_it_and_has_the_others_in_the_rows"
SHARES = "test_compared_metrics.py::test_shares_of_labels_are_the_jackknifes_and_their_mean_is_the_metric"
BUGS = {
    "readers are judged by the kind's own metric": Bug(
        "lineage/evaluation/evaluate.py",
        'best_M), task.facts["metric"][0])',
        'best_M), task.facts["metric"][-1])',
        REPORT,
    ),
    "controls are judged by the kind's own metric": Bug(
        "lineage/evaluation/baselines.py",
        'penalty=penalty), facts["metric"][0])',
        'penalty=penalty), facts["metric"][-1])',
        REPORT,
    ),
    "the report does not know what a task names": Bug(
        "lineage/analysis/cells.py",
        "order = [*((task and task.metric) or ()), *COMPARED]",
        "order = [*COMPARED]",
        REPORT,
    ),
    "an example left out stays in the table": Bug(
        "lineage/evaluation/metrics.py", "counts_LL[place] -= 1", "counts_LL[place] -= 0", SHARES
    ),
    "examples of the same kind are left out together": Bug(
        "lineage/evaluation/metrics.py", "        counts_LL[place] += 1\n", "", SHARES
    ),
    "an ensemble is judged by accuracy": Bug(
        "lineage/analysis/ensembles.py",
        "SHARES[metric](gold_N",
        'SHARES["accuracy"](gold_N',
        "test_compared_metrics.py::test_an_ensemble_s_examples_add_up_to_it",
    ),
}
