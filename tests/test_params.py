"""A file of parameters that no parser or library takes is refused in one sentence."""

from pathlib import Path

import pytest

from flows.study import create_study
from lineage.config.params import parse_params
from lineage.config.records import parse_yaml
from lineage.errors import InputError
from tests.helpers.checkout import ROOT, run_command


@pytest.mark.parametrize(("text", "message"), [
    ("seed: " + 6000 * "9", "a number cannot be read"),
    ("a: " + 5000 * "[" + 5000 * "]", "nested"),
    ("a: " + 60 * "[" + 60 * "]", "nested more than 50 levels deep"),
    ("seed: 1\ngrid:\n  models: [gpt, bert\n  tasks: [queue]\n", r"the '\[' at line 3, column 11, has no '\]' before line 4, column 8; add it, or the comma"),
    ("seed: 1\nbudget: {text_bytes: 5\n", "the '{' at line 2, column 9, has no '}' before line 3, column 1; add it, or the comma"),
    ("defaults: {}\nseed: 1\ndefaults: {tokenizer: {vocab_size: 800}}\n", "the key 'defaults' at line 3 stands twice in its block; join both, or remove one"),
])  # fmt: skip
def test_a_file_of_parameters_that_no_parser_takes_is_refused_in_one_sentence(
    text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_yaml(text, Path("params.yaml"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("budget", "key"),
    [
        ("{corpus: general, text_bytes: 580,000}", "0"),
        ("{corpus: general, max_epochs: 4,5}", "5"),
        ("{corpus: general, max_epochs: 4,5e-3}", "0.005"),
    ],
)
def test_a_key_that_is_a_number_may_follow_a_decimal_comma(budget: str, key: str) -> None:
    tree = parse_yaml(
        f"budget: {budget}\ncorpora: {{}}\ntasks: {{}}\ngrid: {{}}\nmodels: {{}}\n",
        Path("params.yaml"),
    )
    message = f"budget: unknown key '{key}'; if it follows a comma in a number, write 0.002 with"
    with pytest.raises(InputError, match=message):
        parse_params(tree)


# Nine lines each: DVC would make a billion values of the first, and the parser of the second.
ALIAS_BOMBS = {
    "a list of lists": "a{n}: &a{n} [{aliases}]",
    "merged blocks": "a{n}: &a{n} {{<<: [{aliases}], key{n}: 1}}",
}


def write_alias_bomb(line: str) -> str:
    text = "a0: &a0 {key: 1}\n"
    for number in range(1, 10):
        text += line.format(n=number, aliases=", ".join([f"*a{number - 1}"] * 9)) + "\n"
    return text


@pytest.mark.parametrize("bomb", ALIAS_BOMBS)
def test_aliases_of_yaml_are_refused_before_they_fill_the_memory(bomb: str) -> None:
    text = write_alias_bomb(ALIAS_BOMBS[bomb])
    message = r"^params\.yaml: line 2: '\*a0' is an alias, .* write out what it stands for"
    with pytest.raises(InputError, match=message):
        parse_yaml(text, Path("params.yaml"))
    assert parse_yaml("text: '*a0'  # *a0\n", Path("params.yaml")) == {"text": "*a0"}


@pytest.mark.parametrize("name", ["params.yaml", "dvc.yaml"])
def test_a_plan_refuses_aliases_before_dvc_reads_them(name: str, tmp_path: Path) -> None:
    create_study(tmp_path / "study", (ROOT / "params.yaml").read_text())
    with (tmp_path / "study" / name).open("a") as stream:
        stream.write(write_alias_bomb(ALIAS_BOMBS["a list of lists"]))
    printed = run_command(tmp_path / "study", "lineage", "plan", code=2)
    assert f"{name}: line " in printed and "is an alias" in printed
    assert len(printed.splitlines()) == 1


def test_a_whole_number_of_hundreds_of_digits_is_refused_with_its_key() -> None:
    tree = parse_yaml((ROOT / "params.yaml").read_text(), Path("params.yaml"))
    tree["budget"]["text_bytes"] = int("9" * 400)
    message = r"budget\.text_bytes: expected a whole number from -9,223.* to 9,223.*, found 9999"
    with pytest.raises(InputError, match=message) as caught:
        parse_params(tree)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("seed", [-1, 2**40])
def test_a_seed_that_a_library_cannot_take_is_refused(seed: int) -> None:
    tree = parse_yaml((ROOT / "params.yaml").read_text(), Path("params.yaml"))
    for key in ("pretrain_seeds", "finetune_seeds"):
        with pytest.raises(InputError, match="a seed is zero or more, and at most 2,147,483,647"):
            parse_params(tree | {"grid": tree["grid"] | {key: [seed]}})


def test_a_name_that_makes_no_file_name_is_refused() -> None:
    tree = parse_yaml((ROOT / "params.yaml").read_text(), Path("params.yaml"))
    for name in ("a" * 300, "a\nb", "../a"):
        tasks = {**tree["tasks"], name: tree["tasks"]["sense"]}
        with pytest.raises(InputError, match=r"tasks: the name .* must match") as caught:
            parse_params(tree | {"tasks": tasks})
        assert len(str(caught.value)) < 200
