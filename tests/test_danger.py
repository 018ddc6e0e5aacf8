"""A stranger's files run nothing, write nowhere and send nothing.

A part of ``tests/fault/danger.py``.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from danger import (
    is_behind,
    misses_of_bombs,
    misses_of_files,
    misses_of_network,
    misses_of_pickles,
    misses_of_targets,
    misses_of_words,
    train_one,
    warmly,
)
from danger_cases import FILES, REFERENCES, WORDS

from runner.config.limits import check_growth, read_yaml
from runner.errors import ConfigError


@pytest.mark.slow
def test_no_dangerous_target_is_allowed_anywhere():
    assert list(misses_of_targets()) == []


def test_a_users_own_yaml_is_read_unchanged(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {x: 1}\nb: {<<: *a, y: [2, '&c', \"!d\"]}\nc: " + "x" * 5000 + "\n")
    assert read_yaml(file) == {"a": {"x": 1}, "b": {"x": 1, "y": [2, "&c", "!d"]}, "c": "x" * 5000}
    check_growth(
        {
            "a": "x" * 1000,
            "b": ["${a}"] * 100,
            "c": "${b}",
            "d": "${nothing}",
            "e": "${.a}",
            "f": "${f}",
        }
    )
    check_growth({"a": [1], "b": "${a.²}", "c": f"${{a.{'9' * 5000}}}"})  # no index of a list


@pytest.mark.parametrize(
    "config",
    [
        {"a": ["x" * 100, *(f"${{a.0_{index}}}${{a.+{index}}}" for index in range(40))]},
        {f"a.{index}": "x" for index in range(41)}
        | {"a": {"0": "x" * 100, **{str(index + 1): 2 * f"${{a.{index}}}" for index in range(40)}}},
    ],
    ids=["an index as Python alone writes it", "a key with a dot beside what it looks like"],
)
def test_references_that_grow_are_refused_however_they_are_spelt(config):
    with pytest.raises(ConfigError, match="with all that it refers to"):
        check_growth(config)


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: [1, 2\nb: 3\n", 2), ("a:\n  - !!python/name:os.system\n", 2), ("a: &b [*b]\n", 1)],
)
def test_broken_yaml_is_reported_with_its_line(tmp_path, text, line):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    assert caught.value.faults[0].where == f"{file}:{line}"


@pytest.mark.slow
def test_dangerous_words_are_refused(tmp_path):
    names = [name for name, words in WORDS.items() if not is_behind(words)]
    assert list(misses_of_words(tmp_path, names[::4])) == []


@pytest.mark.slow
def test_faults_found_behind_the_door_are_refused_there(tmp_path, warm):
    names = [
        "a folder of pickles",
        "weights in a pickle",
        "code with the model",
        "a template that escapes",
    ]
    assert list(misses_of_words(tmp_path, names, warmly(warm))) == []


@pytest.mark.slow
def test_files_of_strangers_are_refused(tmp_path):
    assert list(misses_of_files(tmp_path, list(FILES)[::26])) == []


@pytest.mark.slow
def test_bombs_end_at_once(tmp_path):
    plain = ["aliases", "a long number"]
    assert (
        list(misses_of_bombs(tmp_path / "a", [*sorted(REFERENCES), *plain], ["--config-dir"])) == []
    )
    assert list(misses_of_bombs(tmp_path / "b", plain[:1], ["import", "report"])) == []


@pytest.mark.slow
def test_no_pickle_in_a_run_folder_runs(tmp_path, warm):
    run = warmly(warm)
    verbs = ["train", "predict a checkpoint", "export"]
    assert (
        list(misses_of_pickles(tmp_path / "verbs", train_one(tmp_path / "one", run), run, verbs))
        == []
    )


@pytest.mark.dear("a Python of its own, whose first import is heard already")
@pytest.mark.slow
def test_nothing_leaves_the_machine_unasked(tmp_path):
    assert list(misses_of_network(tmp_path / "net", ["sft"])) == []
