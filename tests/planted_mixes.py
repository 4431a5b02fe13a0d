"""More bugs to plant, as in tests/planted.py: which layers are read, how they are mixed, and what the report says of it."""

from tests.planted import Bug

TOLD = "test_mixes.py::test_the_table_of_mechanisms_follows_how_a_variant_is_read"
BUGS = {
    "nothing pulls the mix of a linear reader": Bug(
        "lineage/evaluation/linear_probe.py",
        "(weight_DK.square().sum() + settings.mix_share * mix.penalty())",
        "weight_DK.square().sum()",
        "test_mixes.py::test_the_l2_of_a_linear_reader_pulls_the_mix_to_the_mean_of_the_layers",
    ),
    "a linear reader's own L2 is no default of the mix's": Bug(
        "lineage/evaluation/settings.py",
        "return 1.0 if self.mix_l2 is None",
        "return 0.0 if self.mix_l2 is None",
        "test_mixes.py::test_the_l2_of_a_linear_reader_pulls_the_mix_to_the_mean_of_the_layers",
    ),
    "nothing pulls the mix of a network": Bug(
        "lineage/evaluation/bilstm_probe.py",
        "total / count + model.mix_l2 * model.mix.penalty() if",
        "total / count if",
        "test_mixes.py::test_the_l2_of_a_network_pulls_the_mix_to_the_mean_of_the_layers",
    ),
    "the shares are pulled, not the raw weights": Bug(
        "lineage/models/layers/scalar_mix.py",
        "return self.weights.square().sum()",
        "return torch.softmax(self.weights, 0).square().sum()",
        "test_mixes.py::test_the_l2_of_a_network_is_added_to_the_mean_loss_and_is_of_the_raw_weights",
    ),
    "a network always scales its mix": Bug(
        "lineage/evaluation/bilstm_probe.py",
        "gamma=settings.gamma, ",
        "",
        "test_mixes.py::test_a_network_has_a_scale_of_the_mix_where_one_is_asked_for",
    ),
    "layer norm takes a static vector for a part of a layer": Bug(
        "lineage/evaluation/bilstm_probe.py",
        "[mean.shape[-1] - self.static]",
        "[mean.shape[-1]]",
        "test_mixes.py::test_layer_norm_of_a_network_is_one_number_a_layer_of_the_training_items",
    ),
    "what fills up a narrow layer counts in its norm": Bug(
        "lineage/evaluation/linear_probe.py",
        "real = _real(deviation_LD, least=least)",
        "real = np.ones_like(deviation_LD, dtype=bool)",
        "test_mixes.py::test_layer_norm_of_a_network_is_one_number_a_layer_of_the_training_items",
    ),
    "a network reads all layers, whatever is named": Bug(
        "lineage/evaluation/systems.py",
        "**how).read(network) for",
        "**how) for",
        "test_mixes.py::test_a_network_reads_the_layers_that_are_named_and_the_same_static_vector_behind_them",
    ),
    "a network's row says mix, whatever was read": Bug(
        "lineage/evaluation/result_rows.py",
        'settings.network.features if cell.head == "bilstm"',
        '"mix" if cell.head == "bilstm"',
        "test_mixes.py::test_rows_of_networks_say_what_was_read",
    ),
    "an ensemble's networks may read other layers": Bug(
        "lineage/config/checks.py",
        "how.frozen.features, how.network.features, how.tuned.pool",
        "how.frozen.features, how.tuned.pool",
        "test_mixes.py::test_members_of_an_ensemble_are_read_alike_under_networks_too",
    ),
    "mechanisms are told as the family's, whatever is read": Bug(
        "stages/publish.py", 'said | {"transfer": transfer}', "said", TOLD
    ),
    "networks are told of where there are none": Bug(
        "lineage/evaluation/settings.py", "if networks and self.network", "if self.network", TOLD
    ),
    "a switch of a reading makes trainings stale": Bug(
        "lineage/config/study.py",
        "found = self.family.mechanism(self.model, self.pretrain) |",
        'found = self.family.mechanism(self.model, self.pretrain) | {"pool": self.evaluate.tuned.pool} |',
        TOLD,
    ),
}
