"""What the shell offers at a press of the key: verbs, options, keys, values and run folders, without anything heavy."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from laid import lay_run

from runner.__main__ import main
from runner.command.completion import complete

ROOT = Path(__file__).parent.parent
BREAKS = "\"'@><=;|&(: \t\n"


def offered(text, shell="fish"):
    return complete(text, len(text), shell, BREAKS)


@pytest.mark.parametrize(
    ("text", "there", "absent"),
    [
        ("runner ", ["train", "diff", "trainer=", "trainer.", "experiment=", "seed="], ["dpo", "experiment."]),
        ("runner trainer=d", ["trainer=dpo", "trainer=distillation"], ["trainer=sft"]),
        ("runner trainer=sft,d", ["trainer=sft,dpo"], ["dpo"]),
        ("runner trainer=dpo trainer.", ["trainer.args.", "trainer.form="], ["trainer._target_"]),
        ("runner trainer=dpo trainer.args.lo", ["trainer.args.loss_type=", "trainer.args.logging_steps="], []),
        ("runner trainer=dpo trainer.args.loss_type=", ["trainer.args.loss_type=sigmoid"], ["true"]),
        ("runner trainer.args.bf16=", ["trainer.args.bf16=true", "trainer.args.bf16=null"], []),
        ("runner experiment=toy_dpo trainer.args.be", ["trainer.args.beta="], []),
        ("runner peft=lora peft.lora_a", ["peft.lora_alpha="], []),
        ("runner metric.", ["metric.exact."], []),
        ("runner why seed trainer=g", ["trainer=grpo"], []),
        ("runner why trainer.args.max_s", ["trainer.args.max_steps"], ["trainer.args.max_steps="]),
        ("runner options pe", ["peft"], ["predict", "peft="]),
        ("runner completion ", ["bash", "zsh", "fish"], ["trainer="]),
        ("runner export x d", ["dtype="], ["diff", "dataset="]),
        ("runner --d", ["--debug", "--dry-run"], ["--help"]),
        ("runner trainer='dp", [], ["trainer=dpo"]),
        ("runner nonsense=", [], ["nonsense="]),
    ],
)
def test_what_fits_is_offered(text, there, absent):
    found = offered(text)
    assert set(there) <= set(found) and not set(absent) & set(found)


def test_bash_is_given_what_follows_its_last_break_and_the_space_after_a_finished_word():
    assert offered("runner trainer=dp", "bash") == ["dpo "]
    assert offered("runner trainer.arg", "bash") == ["trainer.args."]
    assert offered("runner model=tiny dataset.limit.tr", "bash") == ["dataset.limit.train="]
    assert complete("runner trainer=dp and more", 17, "bash", BREAKS) == ["dpo "]


def test_runs_are_offered_name_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        lay_run(tmp_path / "outputs" / name / "run-1")
    assert {"outputs/one/", "outputs/two/"} <= set(offered("runner report "))
    assert offered("runner diff outputs/one/run-1 outputs/t") == ["outputs/two/"]
    assert offered("runner diff outputs/two/") == ["outputs/two/run-1"]
    assert offered("runner diff outputs/two/", "bash") == ["outputs/two/run-1 "]
    assert "outputs/one/" in offered("runner why seed o")
    assert offered("runner model.path=outputs/o") == ["model.path=outputs/one/"]


def test_groups_of_the_users_own_are_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "my_model.yaml").write_text("# Mine.\npath: x\n")
    assert offered("runner --config-dir m") == ["mine/"]
    assert offered("runner --config-dir mine model=my") == ["model=my_model"]


def test_words_that_compose_nothing_leave_the_groups(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "torn.yaml").write_text("path: [x\n")
    found = offered("runner --config-dir mine model=torn ")
    assert "trainer=" in found and "trainer." not in found
    assert "trainer." in offered("runner trainer=dop ")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
def test_bash_completes_through_the_printed_script(capsys, tmp_path):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    press = 'COMP_LINE="runner trainer=dpo trainer.args.loss_ty"; COMP_POINT=${#COMP_LINE}; _runner_complete'
    done = subprocess.run(
        ["bash", "-c", f'{script}\n{press}; printf "%s|" "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout == "trainer.args.loss_type=|" and not done.stderr


@pytest.mark.slow
def test_nothing_heavy_is_imported():
    heavy = ["torch", "transformers", "trl", "datasets", "matplotlib"]
    words = "runner trainer=dpo trainer.args.loss_type="
    code = f"import sys; from runner.command.completion import complete; print(len(complete({words!r}, {len(words)})))"
    code += f"; print(set({heavy}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    count, imported = done.stdout.splitlines()
    assert int(count) > 5 and imported == "set()"


def test_another_shell_is_refused_and_every_known_one_has_a_script(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        text = capsys.readouterr().out
        assert sys.executable in text and "runner" in text and "{" not in text.replace("${(@f)", "").replace("() {", "")
