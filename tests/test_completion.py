"""Completion in a shell: the words that are offered, and the scripts in the shells themselves."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

from runner.__main__ import main
from runner.command import VERBS
from runner.command._completion import complete
from runner.config.menu import read_menu
from runner.schema.read import read_signature

OFFERED = {
    # Verbs, their options and the values of these.
    "eval": ["evaluate"],
    "predict engi": ["engine="],
    "predict engine=g": ["engine=graph", "engine=generate"],
    "predict logits=": ["logits=true", "logits=false"],
    "clean keep=": ["keep=last", "keep=model", "keep=runs"],
    "predict dataset=toy_s": ["dataset=toy_sort"],
    # Groups and options, of a list or a sweep the next one.
    "trainer=dp": ["trainer=dpo"],
    "-m trainer=dpo,kt": ["trainer=dpo,kto"],
    "reward=[length,senti": ["reward=[length,sentiment"],
    "rehearse -m experiment=toy_dp": ["experiment=toy_dpo"],
    "options trai": ["trainer"],
    # Keys, those of the options that are chosen, with their values.
    "on_si": ["on_sick="],
    "on_sick=": ["on_sick=stop", "on_sick=rollback"],
    "trainer.a": ["trainer.args."],
    "trainer.args.assistant": ["trainer.args.assistant_only_loss="],
    "trainer=dpo trainer.args.assistant": [],
    "trainer=dpo trainer.args.ld_": ["trainer.args.ld_alpha="],
    "experiment=toy_dpo trainer.args.ld_": ["trainer.args.ld_alpha="],
    "trainer=dpo trainer.args.loss_type=e": ["trainer.args.loss_type=exo_pair"],
    "trainer.args.bf16=": ["trainer.args.bf16=true", "trainer.args.bf16=false"],
    "peft=lora peft.bi": ["peft.bias="],
    "peft=lora peft.bias=l": ["peft.bias=lora_only"],
    "model.tokenizer.ch": ["model.tokenizer.chat_template="],
    "model=org/name model.dtype=b": ["model.dtype=bfloat16"],
    "reward=length reward.length.we": ["reward.length.weight="],
    "tolerate.trun": ["tolerate.truncated="],
    "why trainer.args.learning_r": ["trainer.args.learning_rate"],
    # Stages.
    "experiment=toy_rlhf pp": ["ppo."],
    "experiment=toy_rlhf ppo.trainer.args.kl_e": ["ppo.trainer.args.kl_estimator="],
    "experiment=toy_rlhf ppo.trainer.args.kl_estimator=k3": ["ppo.trainer.args.kl_estimator=k3"],
    # Flags.
    "--dry": ["--dry-run"],
    "--cfg j": ["job"],
}


@pytest.mark.parametrize("line", OFFERED)
def test_the_words_that_go_on_are_offered(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert list(complete(line.split(" "))) == OFFERED[line]


def test_without_a_word_verbs_groups_and_keys_are_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = complete([""])
    assert VERBS.items() <= words.items()
    assert {f"{group}=" for group in read_menu()} | {"seed=", "learning_rate="} <= words.keys()
    fields = {f"trainer.args.{name}=" for name in read_signature("trl.DPOConfig").parameters}
    assert fields <= complete(["trainer=dpo", "trainer.args."]).keys()


def test_own_options_runs_and_files_are_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("conf/reward", "more/model", "outputs/toy-dpo/kl=0.1-ab"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "conf/reward/words.yaml").write_text(
        "# Words.\n# run: x\nwords:\n  _target_: my_rewards.words\n"
    )
    (tmp_path / "my_rewards.py").write_text("def words(completions, how_many: int = 1): ...\n")
    (tmp_path / "more/model/big.yaml").write_text("path: org/big\n")
    (tmp_path / "outputs/toy-dpo/kl=0.1-ab/status.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert complete(["reward=wo"]) == {"reward=words": "Words."}
    words = complete(["reward=words", "reward.words.h"])
    assert list(words) == ["reward.words.how_many="]
    assert list(complete(["model=bi"])) == []
    assert list(complete(["--config-dir", "more", "model=bi"])) == ["model=big"]
    assert list(complete(["--config-dir", "mo"])) == ["more/"]
    assert list(complete(["report", "outputs/"])) == ["outputs/toy-dpo/"]
    assert list(complete(["report", "outputs/toy-dpo/k"])) == ["outputs/toy-dpo/kl=0.1-ab"]
    assert list(complete(["evaluate", "x", "against=outp"])) == ["against=outputs/"]
    assert list(complete(["dataset=row"])) == ["dataset=rows.jsonl"]
    assert list(complete(["import", "row"])) == ["rows.jsonl"]
    assert "outputs/toy-dpo/" in complete(["watch", ""])


def test_a_key_press_imports_nothing_that_only_commands_need():
    code = (
        "import sys; from runner.__main__ import main\n"
        "main(['--shell-completion', 'words', 'trainer=grpo', 'trainer.args.loss_type='])\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'hydra'"
        " or name.startswith(('runner.launch', 'runner.importers', 'runner.dataset'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *candidates, modules = done.stdout.splitlines()
    assert "trainer.args.loss_type=dapo\t" in candidates
    assert modules == "[]"


def test_an_unknown_shell_is_refused(capsys):
    for shell in ("bash", "fish", "zsh"):
        assert main(["--shell-completion", shell]) == 0
        assert "--shell-completion words" in capsys.readouterr().out
    for words in ([], ["tcsh"], ["bash", "zsh"]):
        assert main(["--shell-completion", *words]) == 2
        assert "one of bash, fish, zsh" in capsys.readouterr().err


# --- In a shell -----------------------------------------------------------------------------------
TYPED = {
    "runner trainer=dp": "runner trainer=dpo",
    "python -m runner trainer=dpo trainer.args.loss_ty": "trainer.args.loss_type=",
    "python -m runner report outputs/toy-dpo/k": "outputs/toy-dpo/kl-ab",
    "python my_scr": "python my_script.py",
}
SHELLS = {
    "bash": (["--norc", "-i"], 'eval "$(python -m runner --shell-completion bash)"'),
    "zsh": (
        ["-f", "-i"],
        "unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D; "
        'eval "$(python -m runner --shell-completion zsh)"',
    ),
}


@pytest.fixture
def home(tmp_path):
    """A folder with a run, a script, and the two commands."""
    (tmp_path / "outputs/toy-dpo/kl-ab").mkdir(parents=True)
    (tmp_path / "outputs/toy-dpo/kl-ab/status.json").write_text("{}")
    (tmp_path / "my_script.py").write_text("")
    (tmp_path / "bin").mkdir()
    for name, words in (("python", ""), ("runner", "-m runner ")):
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        command.chmod(0o755)
    return tmp_path


def environment(home) -> dict[str, str]:
    path = os.pathsep.join([str(home / "bin"), os.environ["PATH"]])
    modules = os.pathsep.join(sys.path)
    settings = {"PATH": path, "PYTHONPATH": modules, "HOME": str(home), "TERM": "dumb", "PS1": "$ "}
    return dict(os.environ) | settings


class Terminal:
    """A shell that somebody types into."""

    def __init__(self, home, shell: str, words: list[str]) -> None:
        self.process, self.file = pty.fork()
        if not self.process:
            os.chdir(home)
            os.execvpe(shell, [shell, *words], environment(home))

    def type(self, keys: str, answer: str) -> str:
        """Type keys and wait until the terminal shows a pattern; what it has shown by then."""
        os.write(self.file, keys.encode())
        shown = ""
        end = time.monotonic() + 60
        while time.monotonic() < end and not re.search(answer, shown):
            if select.select([self.file], [], [], 1)[0]:
                shown += os.read(self.file, 65536).decode(errors="replace")
        return shown

    def close(self) -> None:
        os.close(self.file)
        os.waitpid(self.process, 0)


@pytest.mark.slow
@pytest.mark.dear("each key press is a process, in a shell that a terminal talks to")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_tab_completes(shell, home):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    words, setup = SHELLS[shell]
    terminal = Terminal(home, shell, words)
    terminal.type(f"{setup}; echo RE''ADY\r", "READY\r")
    for line, completed in TYPED.items():
        shown = terminal.type(f"{line}\t", re.escape(completed))
        assert completed in shown, (line, shown)
        terminal.type("\x15", "")  # deletes the line
    terminal.close()


@pytest.mark.slow
def test_fish_offers_words_with_their_descriptions(home):
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    asked = "; ".join(f"complete -C '{line}'" for line in TYPED)
    code = f"python -m runner --shell-completion fish | source; {asked}"
    done = subprocess.run(
        ["fish", "-N", "-c", code], capture_output=True, text=True, cwd=home, env=environment(home)
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "trainer=dpo\tDirect preference optimisation; kl_coef is its beta."
    assert [line.partition("\t")[0] for line in lines[1:]] == [
        "trainer.args.loss_type=",
        "outputs/toy-dpo/kl-ab",
        "my_script.py",
    ]
