"""``import FOLDER``: all files that train, and a table of what became of them."""

import shutil
from pathlib import Path

import pytest

from runner.__main__ import main

SAMPLES = Path(__file__).parent / "importers"


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """A folder with two files of one name, one that trains nothing, and one that is no text."""
    folder = tmp_path / "recipes"
    for part in ("small", "large"):
        (folder / part).mkdir(parents=True)
        shutil.copy(SAMPLES / "swift_grpo.yaml", folder / part / "config.yaml")
    shutil.copy(SAMPLES / "llama_factory_ppo.sh", folder)
    (folder / "notes.yaml").write_text("lerning: 1\n")
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00")
    (folder / ".git").mkdir()
    (folder / ".git" / "config.yaml").write_text("base_model: x\n")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.slow
def test_all_files_of_a_folder_become_experiments_and_a_table(recipes, capsys):
    assert main(["import", "recipes"]) == 0
    out = capsys.readouterr().out
    written = sorted(path.stem for path in Path("conf/experiment").iterdir())
    assert written == ["large_config", "llama_factory_ppo", "small_config"]
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["llama_factory_ppo"][1:4] == ["dry", "run", "ppo"]
    assert "written   3 of 5 files to conf/experiment/" in out
    assert "notes.yaml: no key that one of them has" in out
    assert "binary.json: " in out
    assert main(["experiment=large_config", "--dry-run"]) == 0


@pytest.mark.slow
def test_a_second_import_replaces_nothing_without_force(recipes, capsys):
    assert main(["import", "recipes"]) == 0
    target = Path("conf/experiment/llama_factory_ppo.yaml")
    target.write_text("# mine\n")
    assert main(["import", "."]) == 2
    assert "force=true" in capsys.readouterr().err
    assert target.read_text() == "# mine\n"
    assert main(["import", "recipes", "force=true"]) == 0
    assert target.read_text() != "# mine\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipes", "name=mine"], "leave name out"),
        (["recipes", "to=none"], "leave to out"),
        (["recipes/.git"], "none of its 0 files"),
    ],
)
def test_a_folder_that_cannot_be_imported_is_a_fault(recipes, capsys, words, message):
    if words == ["recipes/.git"]:
        (recipes / ".git" / "config.yaml").unlink()
    assert main(["import", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("conf").exists()
