"""A run again.

Equal to the bit if nothing changed, reported if something did, refused if the data did.
"""

import json
import subprocess

import pytest
from laid import lay_run, write
from omegaconf import OmegaConf

from runner.__main__ import main
from runner.command._circumstances import obstacles
from runner.command._verdict import judge_reproduction
from runner.config.composition import compose
from runner.errors import SickRun
from runner.io.files import files_of, read_json
from runner.launch.__main__ import main as start_worker
from runner.run import write_config
from runner.run.record import read_run

WEIGHTS = {"files": {"model.safetensors": "a" * 64, "README.md": "x"}}


def lay(tmp_path, name, loss=0.5, digest="a", state="finished"):
    """A finished run with two logged steps, a score and the hash of its weights."""
    lines = [{"step": 1, "loss": 1.0, "elapsed_seconds": loss}, {"step": 2, "loss": loss}]
    run = lay_run(
        tmp_path / "outputs" / name / "run", state=state, after={"eval_loss": 0.25}, lines=lines
    )
    manifest = json.loads((run / "manifest.json").read_text())
    write(
        run / "manifest.json",
        manifest | {"files": {"model.safetensors": digest * 64, "README.md": name}},
    )
    return read_run(run)


def test_equal_runs_are_bit_equal_whatever_their_clocks_say(tmp_path):
    verdict = judge_reproduction(lay(tmp_path, "a"), lay(tmp_path, "b"), [])
    assert verdict == "bit-equal 2 logged steps, 1 scores and the weights"
    assert read_json(tmp_path / "outputs" / "b" / "run" / "reproduction.json")["equal"] is True


def test_the_first_different_step_is_reported_with_its_distance(tmp_path):
    ours = lay(tmp_path, "a")
    theirs = lay(tmp_path, "b", loss=0.4, digest="b")
    with pytest.raises(SickRun) as told:
        judge_reproduction(ours, theirs, ["trl 1.15 (here 1.16)"])
    (fault,) = told.value.faults
    assert (
        "2 differences, by up to 20 %; the first in metrics.jsonl, step 2: loss 0.5 -> 0.4"
        in fault.found
    )
    assert "trl 1.15" in fault.expected
    assert "tolerance=0.2" in fault.fix
    paper = read_json(theirs.folder / "reproduction.json")
    assert (paper["equal"], paper["differences"], paper["unmatched"]) == (
        False,
        2,
        ["trl 1.15 (here 1.16)"],
    )
    assert judge_reproduction(ours, theirs, [], tolerance=0.21).startswith(
        "close     nothing is more than 20 % apart"
    )
    with pytest.raises(SickRun):
        judge_reproduction(ours, theirs, [], tolerance=0.19)


def test_weights_alone_can_differ_and_a_missing_step_is_never_close(tmp_path):
    ours = lay(tmp_path, "a")
    with pytest.raises(SickRun, match=r"model: model\.safetensors"):
        judge_reproduction(ours, lay(tmp_path, "b", digest="b"), [])
    short = lay(tmp_path, "c")
    (short.folder / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    with pytest.raises(SickRun, match=r"step 2: loss 0\.5 -> None"):
        judge_reproduction(ours, read_run(short.folder), [], tolerance=0.9)


def test_changed_versions_and_files_are_reported_with_a_fix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = lay(tmp_path, "a").folder
    facts = {
        "python": "3.9.1",
        "versions": {"trl": "1.0.0", "no-such-package": "2", "pyyaml": None},
    }
    write(
        run / "manifest.json",
        facts | {"uses": {"model.path": "outputs/sft/gone"}, "git": {"commit": "c" * 40}},
    )
    python, versions, code, uses = obstacles(read_run(run))
    assert python.startswith("python 3.9.1, here 3.1")
    assert uses == "model.path: the run outputs/sft/gone is gone"
    assert "trl 1.0.0 (here 1.16" in versions
    assert "pip install trl==1.0.0 no-such-package==2" in versions
    assert "commit cccccccccccc, but there is no git repository here" in code
    write(run / "manifest.json", {"versions": {"trl; touch x": "1", "": "2"}})
    assert "pip install 'trl; touch x==1' ==2" in next(obstacles(read_run(run)))


def test_a_configuration_that_lacks_most_of_itself_is_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs" / "x" / "run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("format: 2\nseed: 1\n")
    write(folder / "status.json", {"state": "finished"})
    assert main(["reproduce", "outputs/x/run"]) == main(["preview", "outputs/x/run"]) == 4
    stderr = capsys.readouterr().err
    assert stderr.count("it lacks name, output_root, trainer") == stderr.count(" quant") == 2


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("trainer.args", [1], 4),
        ("dataset", "x", 4),
        ("dataset.path", [{}], 2),
        ("trainer.form", "a\nb", 2),
        ("trainer.args.learning_rate", "../x", 2),
        ("trainer.args.max_steps", float("inf"), 2),
        ("model.tokenizer.eos_token", {"a": 1}, 2),
    ],
)
def test_a_strangers_config_with_wrong_types_is_refused(tmp_path, monkeypatch, key, value, code):
    monkeypatch.chdir(tmp_path)
    folder = lay(tmp_path, "x").folder
    cfg = OmegaConf.create(compose([]).cfg)
    OmegaConf.update(cfg, key, value, merge=False)
    write_config(folder, OmegaConf.to_container(cfg))
    for call in (["reproduce", str(folder)], ["preview", str(folder)], [str(folder)]):
        assert (start_worker if len(call) == 1 else main)(call) == code


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with two commits of one file, the first with an uncommitted change.

    Returns the first's record.
    """
    monkeypatch.chdir(tmp_path)
    for variable in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{variable}_NAME", "x")
        monkeypatch.setenv(f"{variable}_EMAIL", "x@example.org")

    def git(*words):
        return subprocess.run(
            ["git", *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    (tmp_path / "code.py").write_text("one\n")
    git("add", "code.py")
    git("commit", "-qm", "first")
    (tmp_path / "code.py").write_text("changed\n")
    record = {"commit": git("rev-parse", "HEAD"), "diff": git("diff", "HEAD")}
    git("commit", "-qam", "second")
    return record, git


def test_changed_code_is_reported_with_the_command_that_restores_it(repository, tmp_path):
    record, git = repository
    run = lay(tmp_path, "a").folder
    write(run / "manifest.json", {"git": record})
    (code,) = obstacles(read_run(run))
    assert f"git worktree add ../at-{record['commit'][:8]}" in code
    write(run / "manifest.json", {"git": {"commit": git("rev-parse", "HEAD"), "diff": "x"}})
    (code,) = obstacles(read_run(run))
    assert "other uncommitted changes" in code
    write(run / "manifest.json", {"git": {"commit": git("rev-parse", "HEAD"), "diff": ""}})
    assert list(obstacles(read_run(run))) == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "one run"),
        (["a", "tolerance=much"], 2, "leave tolerance out"),
        (["a", "code=yes"], 2, "no such key"),
        (["a", "name=../../b"], 2, "name=<word>"),
        (["b"], 4, "a finished run to reproduce"),
        (["c"], 2, "trust=true"),
    ],
)
def test_runs_that_cannot_be_reproduced_are_reported(
    tmp_path, monkeypatch, words, code, message, capsys
):
    monkeypatch.chdir(tmp_path)
    lay(tmp_path, "a")
    lay(tmp_path, "b", state="failed")
    run = lay(tmp_path, "c").folder
    write_config(run, {"name": "c", "callback": {"x": {"_target_": "os.mkdir"}}})
    assert main(["reproduce", *words]) == code
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == ["a", "b", "c"]


@pytest.mark.slow
def test_a_toy_run_again_is_bit_equal_and_changed_rows_are_refused(runner):
    rows = runner.folder / "rows.jsonl"
    facts = [{"prompt": f"sort {n}{n + 1}", "completion": f" {n}{n + 1}"} for n in range(1, 9)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in facts))
    words = [
        "dataset=local",
        "dataset.path=rows.jsonl",
        "dataset.split.eval='train[:4]'",
        "name=x",
        "metric=none",
    ]
    quick = [
        "trainer.args.max_steps=3",
        "trainer.args.logging_steps=1",
        "trainer.args.per_device_train_batch_size=4",
    ]
    runner(*words, *quick, "peft=lora")
    (first,) = runner.runs("x")
    before = files_of(first)
    done = runner("reproduce", "x")
    assert "bit-equal 4 logged steps" in done.stdout
    assert files_of(first) == before
    (again,) = runner.runs("x-again")
    assert again.name == first.name
    assert read_json(again / "reproduction.json")["equal"] is True
    assert "it is compared as it is" in runner("reproduce", "x").stdout
    rows.write_text(rows.read_text().replace("sort 12", "sort 21"))
    refused = runner("reproduce", "x", "name=y", code=2).stderr
    assert "dataset, train" in refused
    assert "8 rows" in refused
    assert "dataset, eval" in refused
    assert runner.runs("y") == []
