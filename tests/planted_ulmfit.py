"""Bugs to plant in what the released code of ULMFiT and AWD-LSTM does beside the papers."""

from tests.planted import Bug

BUGS = {
    "the classifier has one dropout": Bug(
        "lineage/families/ulmfit.py",
        "dropouts=(dropout, inner))",
        "dropouts=(dropout, dropout))",
        "test_ulmfit.py::test_the_classifier_s_hidden_layer_has_a_dropout_of_its_own_where_one_is_given",
    ),
    "the classifier's dropouts are exchanged": Bug(
        "lineage/families/ulmfit.py",
        "dropouts=(dropout, inner))",
        "dropouts=(inner, dropout))",
        "test_ulmfit.py::test_the_classifier_s_hidden_layer_has_a_dropout_of_its_own_where_one_is_given",
    ),
}
