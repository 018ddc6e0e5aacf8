"""The page that says how one more tool is imported: its table makes of its file what it shows."""

import re
from pathlib import Path

import pytest
import yaml

from runner.config import dialect
from runner.importers.experiment_content import content_of
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate

PAGE = (Path(dialect.__file__).parents[1] / "importers" / "README.md").read_text(encoding="utf-8")


def blocks():
    """The blocks of YAML, by the comment that opens each."""
    texts = {}
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        title = block.strip().partition("\n")[0]
        texts[title.lstrip("# ")] = yaml.safe_load(block)
    return texts


@pytest.fixture
def lab(monkeypatch):
    """The table of the page, among those that are there."""
    table = blocks()["runner/config/dialects/lab.yaml"]
    sections = dialect.read_sections() | {"lab": table}
    monkeypatch.setattr(dialect, "read_sections", lambda: sections)
    yield table
    dialect.read_table.cache_clear()


def imported(folder, keys):
    path = folder / "theirs.yaml"
    path.write_text(yaml.safe_dump(keys))
    dialect.read_table.cache_clear()
    return translate(read_file(path), "theirs")


def test_the_table_of_the_page_makes_what_it_shows(lab, tmp_path):
    texts = blocks()
    draft = imported(tmp_path, texts["theirs.yaml"])
    assert content_of(draft) == texts["conf/experiment/theirs.yaml"]
    assert {note.key: note.kind for note in draft.notes}["fast_mode"] == "no equivalent"


def test_the_row_of_the_page_maps_a_key_that_was_not_known(lab, tmp_path):
    texts = blocks()
    keys = texts["theirs.yaml"] | {"dropout": 0.1}
    before = imported(tmp_path, keys)
    assert any(note.key == "dropout" and "not a key" in note.why for note in before.notes)
    lab["keys"] |= texts["a row"]
    after = imported(tmp_path, keys)
    assert after.values["peft"]["lora_dropout"] == 0.1


@pytest.mark.parametrize("command", ["lab tune --weights a/b", "python lab_tune.py --speed 1"])
def test_the_commands_of_the_page_are_known(lab, tmp_path, command):
    path = tmp_path / "run.sh"
    path.write_text(f"{command}\n")
    assert read_file(path).dialect == "lab"


def test_the_fields_of_a_rule_are_on_the_page():
    names = re.findall(r"`(\w+)`", PAGE)
    fields = set(dialect.Rule.__dataclass_fields__) - {
        "when",
        "kind",
        "reason",
        "rest",
        "typed",
        "why",
    }
    assert fields | set(dialect.CONDITIONS) | set(dialect.KINDS) <= set(names)
