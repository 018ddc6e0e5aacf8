"""All verbs have help, and import nothing heavy if they only look."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner import command
from runner.__main__ import main


@pytest.mark.slow
def test_verbs_that_look_need_nothing_heavy(tmp_path):
    from laid import lay_run

    for name in "ab":
        lay_run(tmp_path / "outputs" / name / "run", after={"eval_x": 1.0})
    heavy = [
        "torch",
        "transformers",
        "datasets",
        "trl",
        "peft",
        "safetensors",
        "tokenizers",
        "psutil",
    ]
    blocked = f"sys.modules |= dict.fromkeys({heavy})"
    verbs = [
        ["diff", "a", "b"],
        ["why", "learning_rate"],
        ["export", "--help"],
        ["reproduce", "--help"],
    ]
    calls = f"print([main(verb) for verb in {json.dumps(verbs)}])"
    code = f"import sys; {blocked}; from runner.__main__ import main; {calls}"
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0]", done.stdout + done.stderr


def test_a_help_needs_no_library(tmp_path):
    blocked = "sys.modules |= dict.fromkeys(['hydra', 'omegaconf', 'yaml'])"
    calls = "print(main(['--help']), main(['report', '-h']))"
    code = f"import sys; {blocked}; from runner.__main__ import main; {calls}"
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.splitlines()[-1] == "0 0", done.stderr


def test_a_help_beside_a_menu_of_the_users_own_says_so(tmp_path, monkeypatch, capsys):
    (tmp_path / "conf" / "peft").mkdir(parents=True)
    (tmp_path / "conf" / "peft" / "mine.yaml").write_text("r: 4\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--help"]) == 0
    assert "conf/ here is used" in capsys.readouterr().err


def test_every_verb_has_its_two_files_and_no_other_file_is_called_like_one():
    files = {path.stem for path in Path(command.__file__).parent.glob("[a-z]*.py")}
    assert files == {*command.VERBS, *(f"{verb}_options" for verb in command.VERBS)}


@pytest.mark.parametrize("verb", ["export", "diff", "why", "reproduce", "report", "preview"])
def test_every_verb_has_its_help(verb, capsys):
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"python -m runner {verb}" in text
    assert len(text.splitlines()) < 40
