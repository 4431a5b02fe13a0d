"""Bugs to plant in who runs a stage's process, and in who writes down what it tells."""

from tests.planted import Bug

BUGS = {
    "two stages share one GPU": Bug(
        "flows/scheduler.py",
        'busy = busy or (one_gpu and node.pool == "gpu")',
        "busy = False",
        "test_machine.py::test_on_one_gpu_stages_take_turns_and_others_do_not_wait",
    ),
    "evaluations of adapted models run any code": Bug(
        "lineage/runtime/stage.py",
        "self.verb.partition('_')[0]",
        "self.verb",
        "test_stage.py::test_evaluations_that_go_by_other_names_are_held_to_the_same_code",
    ),
    "a run that was given up made what is here": Bug(
        "lineage/runtime/provenance.py",
        'side.get("lock_before") != entry or',
        "True or",
        "test_provenance.py::test_a_change_that_was_given_up_before_it_was_published_is_not_what_made_the_older_result",
    ),
    "a password is printed": Bug(
        "lineage/runtime/tracking.py",
        'rpartition("@")  # a password',
        'partition("@")  # a password',
        "test_stores.py::test_no_address_stops_a_stage",
    ),
    "who asked ends well whatever happened": Bug(
        "lineage/runtime/forkserver.py",
        "    sys.exit(code)\n",
        "    sys.exit(0)\n",
        "test_forkserver.py::test_one_ends_as_a_child_ended",
    ),
    "a killed child's end is a number": Bug(
        "lineage/runtime/forkserver.py",
        "    if code < 0:",
        "    if False:",
        "test_forkserver.py::test_one_ends_as_a_child_ended",
    ),
    "a forked stage keeps the server's variables": Bug(
        "lineage/runtime/forkserver.py",
        "    os.environ.clear()\n",
        "",
        "test_forkserver.py::test_a_child_has_all_that_the_one_who_asked_has",
    ),
    "a forked stage is in the server's group": Bug(
        "lineage/runtime/forkserver.py",
        '        os.setpgid(0, about["group"])',
        "        pass",
        "test_forkserver.py::test_ending_a_group_ends_the_child_in_order",
    ),
    "an orphan loses its server": Bug(
        "lineage/runtime/forkserver.py",
        "while os.getppid() == self._parent or self._asking:",
        "while os.getppid() == self._parent:",
        "test_forkserver.py::test_a_server_ends_after_its_run_and_its_children",
    ),
    "a fork server outlives its run": Bug(
        "lineage/runtime/forkserver.py",
        "while os.getppid() == self._parent or self._asking:",
        "while True:",
        "test_forkserver.py::test_a_server_ends_after_its_run_and_its_children",
    ),
    "what an earlier process took is forgotten": Bug(
        "stages/evaluate.py",
        "    stage.count_earlier(keep)\n",
        "",
        "test_joined_stages.py::test_the_stages_put_static_vectors_beside_a_contextual_model",
    ),
    "what a cell took is not written down": Bug(
        "stages/evaluate.py",
        "stage.keep_count(keep)",
        "pass",
        "test_joined_stages.py::test_the_stages_put_static_vectors_beside_a_contextual_model",
    ),
    "work that was lost counts": Bug(
        "lineage/runtime/stage.py",
        "time.monotonic() - self.began + self.earlier_seconds",
        "time.monotonic() - self.began + 2 * self.earlier_seconds",
        "test_stage.py::test_what_was_kept_of_processes_that_were_stopped_counts_and_what_was_lost_does_not",
    ),
    "stages are not handed over": Bug(
        "stages/__init__.py",
        "\nhand_over()\n",
        "\n",
        "test_flows.py::test_an_edited_file_and_a_changed_number_run_what_depends_on_them",
    ),
    "a stage that ran stands in dvc.lock as it was": Bug(
        "flows/quick_dvc.py",
        "entry if isinstance(entry, str) else _written(name, entry)",
        'entry if isinstance(entry, str) else ""',
        "test_quick_dvc.py::test_dvc_lock_has_the_bytes_that_dvc_writes",
    ),
    "a name of a node is cut off from what it names": Bug(
        "flows/quick_dvc.py",
        " or not ENTRIES.fullmatch(below) or ANCHOR.search(text)",
        " or not ENTRIES.fullmatch(below)",
        "test_quick_dvc.py::test_a_dvc_lock_of_another_form_is_dvcs_own_affair",
    ),
    "dvc.lock is written over": Bug(
        "flows/quick_dvc.py",
        "    draft.replace(place)\n",
        "    place.write_text(draft.read_text())\n    draft.unlink()\n",
        "test_quick_dvc.py::test_whoever_is_killed_while_writing_leaves_the_old_file",
    ),
    "parameters are read once for good": Bug(
        "flows/quick_dvc.py",
        "_parsed(path, state.st_ino, state.st_mtime_ns, state.st_size)",
        "_parsed(path)",
        "test_quick_dvc.py::test_parameters_are_those_that_dvc_reads_and_a_changed_file_is_read_again",
    ),
    "two stages name a node alike": Bug(
        "flows/quick_dvc.py",
        '{"schema", "stages"} or ANCHOR.search(text)',
        '{"schema", "stages"}',
        "test_quick_dvc.py::test_what_shares_a_node_or_is_no_stage_is_written_by_dvc",
    ),
    "what is no stage is lost from dvc.lock": Bug(
        "flows/quick_dvc.py",
        'if data.keys() != {"schema", "stages"} or ',
        "if ",
        "test_quick_dvc.py::test_what_shares_a_node_or_is_no_stage_is_written_by_dvc",
    ),
    "what was edited meanwhile is a result": Bug(
        "lineage/runtime/stage.py",
        "            work(stage)\n            stage.expect_unchanged()\n",
        "            work(stage)\n",
        "test_stage.py::test_what_was_edited_while_a_stage_ran_is_no_result_of_it",
    ),
    "a stage that died has finished": Bug(
        "lineage/runtime/recorder.py",
        '            raise _StageError if values["status"] == "FAILED" else _Killed\n        raise _Killed\n',
        '            raise _StageError if values["status"] == "FAILED" else _Killed\n',
        "test_tracking.py::test_a_stage_that_dies_is_killed_in_mlflow",
    ),
    "an error is an interruption": Bug(
        "lineage/runtime/recorder.py",
        'raise _StageError if values["status"] == "FAILED" else _Killed',
        "raise _Killed",
        "test_tracking.py::test_a_recorder_tells_how_a_stage_ended",
    ),
    "stages share their variables": Bug(
        "lineage/runtime/recorder.py",
        '        os.environ.update(about["environment"])\n',
        "",
        "test_tracking.py::test_stages_that_a_recorder_writes_down",
    ),
    "a lost recorder is told each time": Bug(
        "lineage/runtime/recorder.py",
        "            self._connection = None\n            print(",
        "            print(",
        "test_tracking.py::test_a_recorder_that_dies_costs_one_line",
    ),
    "a recorder outlives its run": Bug(
        "lineage/runtime/recorder.py",
        "if os.getppid() != self._parent:",
        "if False:",
        "test_tracking.py::test_a_recorder_ends_with_the_run_that_started_it",
    ),
}
