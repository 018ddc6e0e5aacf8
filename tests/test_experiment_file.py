"""An experiment in a file that is named by its path: the user's own, a run's, another tool's."""

import pickle
import shutil
from pathlib import Path

import pytest
import yaml

import runner
from runner.__main__ import main
from runner.command._words import read_command_line
from runner.config import experiment_file
from runner.config.composition import as_yaml, compose
from runner.errors import ConfigError, FolderError
from runner.launch import hydra_plugin
from runner.launch.compose.stages import compose_runs
from runner.launch.hydra_plugin import Job
from runner.run import open_run
from runner.run.key import key_of

THEIRS = Path(__file__).parent / "importers"
SHORT = """
trainer: dpo
dataset: toy_sort
metric: [exact, perplexity]
peft: lora
name: mine
trainer.args.max_steps: 5
trainer.args:
  warmup_steps: 2
dataset.limit: {train: 32}
"""
LONG = """
# @package _global_
defaults:
  - override /trainer: dpo
  - override /dataset: toy_sort
  - override /metric: [exact, perplexity]
  - override /peft: lora
  - _self_
name: mine
trainer: {args: {max_steps: 5, warmup_steps: 2}}
dataset: {limit: {train: 32}}
"""
# What people write who know Hydra's own files.
HYDRAS = LONG.replace("override /", "").replace("  - _self_\n", "").replace("# @package", "# ")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs_of(*words):
    line = read_command_line(words)
    return compose_runs(line.overrides, line.folders)


def cfg_of(*words):
    (composed,) = runs_of(*words)
    return composed.cfg


def faults_of(*words):
    with pytest.raises(ConfigError) as raised:
        runs_of(*words)
    return raised.value.faults


def frozen(here, *words):
    """The path of the config.yaml of a run that was opened with these words."""
    (composed,) = runs_of(*words)
    run = open_run(composed.cfg, composed.overrides, composed.command, composed.choices)
    return str((run.folder / "config.yaml").relative_to(here))


# --- One of the user's own ---


@pytest.mark.slow
def test_a_short_file_says_what_the_command_line_would_and_a_long_one_too(here):
    for name, text in {"short.yaml": SHORT, "long.yml": LONG, "hydra.yaml": HYDRAS}.items():
        Path(name).write_text(text)
    typed = cfg_of(
        "trainer=dpo",
        "dataset=toy_sort",
        "metric=[exact,perplexity]",
        "peft=lora",
        "name=mine",
        "trainer.args.max_steps=5",
        "trainer.args.warmup_steps=2",
        "dataset.limit.train=32",
    )
    for word in ("short.yaml", "long.yml", "hydra.yaml"):
        assert cfg_of(word) == typed, word


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "words",
    [
        ["sub/own.json"],
        ["train", "sub/own.json"],
        ["--config", "sub/own.json"],
        ["--config-file=sub/own.json"],
        ["experiment=sub/own.json"],
        ["{here}/sub/own.json"],
        ["why", "seed", "sub/own.json"],
    ],
    ids=" ".join,
)
def test_a_file_is_a_word_by_itself_or_behind_a_flag_or_a_key(words, here):
    (here / "sub").mkdir()
    (here / "sub" / "own.json").write_text('{"seed": 5, "learning_rate": 3e-4}')
    line = read_command_line(["kl_coef=0.3", "trainer=dpo", *(w.format(here=here) for w in words)])
    cfg = compose(line.overrides).cfg
    assert (cfg["seed"], cfg["learning_rate"], cfg["kl_coef"]) == (5, 3e-4, 0.3)
    assert line.runs == (["seed"] if "why" in words else [])


@pytest.mark.slow
def test_rows_weights_and_paths_are_expanded_as_words_are(here):
    (here / "rows.jsonl").write_text('{"prompt": "1", "completion": "2"}\n')
    (here / "own.yaml").write_text(
        "dataset: rows.jsonl\nmodel: org/name\nweight: [answers, message]\n"
    )
    (here / "conf" / "weight").mkdir(parents=True)
    cfg = yaml.safe_load(as_yaml(["experiment=own.yaml"]))
    assert cfg["dataset"]["path"] == "rows.jsonl"
    assert cfg["model"]["path"] == "org/name"
    typed = yaml.safe_load(as_yaml(read_command_line(["weight=[answers,message]"]).overrides))
    assert cfg["weight"] == typed["weight"]


@pytest.mark.slow
def test_a_typed_model_rows_and_reward_take_the_place_of_those_in_the_file(here):
    (here / "rows.jsonl").write_text('{"prompt": "1", "completion": "2"}\n')
    (here / "own.yaml").write_text(
        "trainer: grpo\nmodel: org/name\nmodel.dtype: bfloat16\ndataset: rows.jsonl\n"
        "dataset.limit.train: 9\nreward: org/judge\n"
    )
    cfg = cfg_of("own.yaml", "model=tiny", "dataset=toy_sort", "reward=exact_match")
    assert cfg["model"]["path"] == "runner://model/tiny"
    assert cfg["model"]["dtype"] == "bfloat16"
    assert cfg["dataset"]["path"] == "runner://dataset/toy_sort"
    assert cfg["dataset"]["limit"]["train"] == 9
    assert "model" not in cfg["reward"]
    assert cfg_of("own.yaml", "model=org/mine")["model"]["path"] == "org/mine"


@pytest.mark.slow
def test_a_file_may_begin_with_another_or_with_an_option(here):
    (here / "lab").mkdir()
    (here / "lab" / "base.yaml").write_text("experiment: toy_dpo\nseed: 1\nname: base\n")
    (here / "lab" / "own.yaml").write_text("experiment: base.yaml\nseed: 2\n")
    cfg = cfg_of("lab/own.yaml")
    assert (cfg["seed"], cfg["name"], cfg["kl_coef"]) == (2, "base", 0.5)
    (here / "lab" / "base.yaml").write_text("experiment: toy_kto\nname: other\n")
    cfg = cfg_of("lab/own.yaml")
    assert (cfg["seed"], cfg["name"], cfg["trainer"]["_target_"]) == (2, "other", "trl.KTOTrainer")


@pytest.mark.slow
def test_a_changed_file_is_read_again(here):
    for seed in (1, 2):
        (here / "own.yaml").write_text(f"seed: {seed}\n")
        assert cfg_of("own.yaml")["seed"] == seed


@pytest.mark.slow
def test_stages_and_sweeps_of_a_file(here, capsys):
    (here / "own.yaml").write_text(
        "name: two\nstages:\n  a: [trainer=sft]\n  b: [trainer=dpo, 'model.path=${run:a}']\n"
    )
    first, second = runs_of("own.yaml", "b.kl_coef=0.3")
    assert first.cfg["name"] == "two-a"
    assert second.cfg["kl_coef"] == 0.3
    (here / "one.yaml").write_text("trainer: dpo\nname: one\n")
    assert main(["-m", "one.yaml", "kl_coef=0.1,0.2", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("new       outputs/one/kl_coef-0") == 2
    assert main(["-m", "experiment=one.yaml,toy_dpo", "--dry-run"]) == 0
    assert "2 new" in capsys.readouterr().out


@pytest.mark.slow
def test_the_typed_path_is_shown(here, capsys):
    (here / "own.yaml").write_text("trainer: dpo\ntrainer.args.max_steps: 7\n")
    assert main(["why", "max_steps", "own.yaml"]) == 0
    assert "is    7   own.yaml:2\n" in capsys.readouterr().out
    (composed,) = runs_of("own.yaml", "seed=1")
    assert composed.command == ["experiment=own.yaml", "seed=1"]
    assert composed.choices["experiment"] == "own.yaml"


@pytest.mark.slow
def test_python_takes_a_file_as_the_command_line_does(here):
    (here / "own.yaml").write_text("trainer: dpo\n")
    cfg = runner.compose("own.yaml", "seed=4")
    assert (cfg["trainer"]["_target_"], cfg["seed"]) == ("trl.DPOTrainer", 4)
    with pytest.raises(ConfigError, match=r'runner.compose\("<the path of a file>"\)'):
        runner.compose("missing.yaml")


# --- Mistakes ---


def test_faults_name_the_line_of_the_file(here):
    (here / "own.yaml").write_text("trainer: dpo\ntrainer.args:\n  max_step: 5\n")
    (fault,) = faults_of("own.yaml")
    assert fault.fix == "trainer.args.max_steps=5  (in own.yaml:3)"


@pytest.mark.quick(8)
@pytest.mark.parametrize(
    ("text", "where", "found"),
    [
        ("", "own.yaml", "no keys"),
        ("# later\n", "own.yaml", "no keys"),
        ("3: 4\n", "own.yaml", "the key 3"),
        ("null: 4\n", "own.yaml", "the key None"),
        ("model: [org/a, org/b]\n", "model", "the list [org/a,org/b]"),
        ("- a\n", "own.yaml", "a list"),
        ("sweep: kl\n", "own.yaml: sweep", "a sweep in the file of an experiment"),
        ("trainer: [dpo, sft]\n", "trainer", "[dpo, sft]: only the last one would count"),
        ("trainer: dop\n", "trainer", "there is no trainer/dop"),
        ("trainer: a/b\n", "trainer", "there is no trainer/a/b"),
        ("experiment: own.yaml\n", "defaults", "experiment/own.yaml -> experiment/own.yaml"),
        ("defaults: {trainer: dpo}\n", "own.yaml", "defaults: {trainer:dpo}"),
        ("a: &a [1]\nb: [*a, *a]\nc: &c [*c]\n", "own.yaml:3", "*c contains itself"),
        ("hydra: {run: {dir: x}}\n", "own.yaml", "hydra.run"),
        ("hydra.run.dir: x\n", "own.yaml", "hydra.run"),
        ("defaults: [override /hydra/launcher: joblib]\n", "own.yaml", "defaults: override /hydra"),
    ],
)
def test_a_file_that_cannot_be_composed_is_refused(text, where, found, here):
    (here / "own.yaml").write_text(text)
    fault = faults_of("own.yaml")[0]
    assert fault.where == where
    assert str(fault.found).startswith(found)


def test_a_missing_file_leads_to_one_with_such_a_name_or_to_the_only_one(here):
    for names, near in (
        (("other.yaml",), "other.yaml"),
        (("other.yaml", "fast.yaml"), "<the path of a file>"),
        (("other.yaml", "my owm.yaml"), "'my owm.yaml'"),
    ):
        for name in names:
            (here / name).write_text("seed: 1\n")
        (fault,) = faults_of("my own.yaml")
        assert fault.fix == f"python -m runner experiment={near}"


DANGERS = {
    "allow": "allow: [mine]",
    "output_root": "output_root: /elsewhere",
    "model.trust_remote_code": "model.trust_remote_code: true",
    "tracker.report_to": "tracker.report_to: wandb",
    "tracker.environment.WANDB_MODE": "tracker.environment: {WANDB_MODE: online}",
    "trainer.args.push_to_hub": "trainer: {args: {push_to_hub: true}}",
    "launcher._target_": "launcher._target_: os.system",
}


@pytest.mark.slow
def test_a_file_may_not_do_what_only_the_command_line_may(here):
    (here / "own.yaml").write_text("\n".join(DANGERS.values()))
    assert {fault.where for fault in faults_of("own.yaml")} >= set(DANGERS)
    # Nor with the name of a shipped option, which a typed word trusts, nor by what it begins with.
    (here / "toy_dpo.yaml").write_text("defaults: [own.yaml]\n")
    words = ["toy_dpo.yaml", "tracker=tensorboard"]
    assert {fault.where for fault in faults_of(*words)} >= set(DANGERS) - {"launcher._target_"}


# --- That of a run ---


@pytest.mark.slow
def test_the_config_of_a_run_is_that_run_again_and_its_keys_can_be_typed(here):
    words = [
        "trainer=dpo",
        "dataset=toy_sort",
        "optimizer=adamw",
        "learning_rate=3e-4",
        "peft=lora",
    ]
    file = frozen(here, *words, "~trainer.args.max_steps", "name=first")
    (composed,) = runs_of(file)
    assert key_of(composed.cfg) == Path(file).parent.name.rpartition("-")[2]
    changed = cfg_of(file, "learning_rate=1e-6", "kl_coef=0.7", "model.path=org/other", "peft=none")
    args = changed["trainer"]["args"]
    assert (args["learning_rate"], args["beta"]) == (1e-6, 0.7)
    assert changed["optimizer"]["lr"] == 1e-6
    assert changed["model"]["tokenizer"]["path"] == "org/other"
    assert changed["peft"] is None
    assert "max_steps" not in args
    other = cfg_of(file, "trainer=kto", "dataset=toy_reviews")
    # The adapter is that of the file, and multiplies the rate of the option that was typed.
    typed = cfg_of("trainer=kto", "dataset=toy_reviews", "model=hub", "model.path=x", "peft=lora")
    assert other["trainer"] == typed["trainer"]
    assert other["optimizer"]["lr"] == other["learning_rate"]


@pytest.mark.slow
def test_the_config_of_a_run_on_several_machines_keeps_their_number(here):
    words = ["launcher=accelerate", "launcher.num_machines=2", "launcher.rendezvous=a:29500"]
    (run,) = runs_of(*words, "launcher.machine_rank=0")
    file = frozen(here, *words, "launcher.machine_rank=0")
    (again,) = runs_of(file, *words[1:])
    assert again.machines == run.machines == 2


def test_the_config_of_a_run_of_another_format_is_refused(here):
    file = frozen(here)
    text = Path(file).read_text()
    Path(file).write_text(text.replace("format: 2", "format: 1"))
    with pytest.raises(FolderError, match="an older runner"):
        runs_of(file)


@pytest.mark.slow
def test_what_a_run_was_allowed_is_typed_again(here):
    file = frozen(here, "model.trust_remote_code=true")
    assert [fault.where for fault in faults_of(file)] == ["model.trust_remote_code"]
    assert cfg_of(file, "model.trust_remote_code=true")["model"]["trust_remote_code"]


# --- Another tool's ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trainer", "title"),
    [
        ("axolotl_dpo.yaml", "trl.DPOTrainer", "Axolotl"),
        ("swift_sft.sh", "trl.SFTTrainer", "ms-swift"),
        ("trl_ppo.sh", "runner.ppo.PPOTrainer", "TRL CLI"),
        ("unsloth_chat.ipynb", "trl.SFTTrainer", "Unsloth"),
    ],
)
def test_another_tools_file_is_imported_on_the_way(name, trainer, title, here, capsys):
    shutil.copytree(THEIRS, here, dirs_exist_ok=True)
    line = read_command_line([name, "seed=3"])
    assert line.notes[0].startswith(f"imported  {name}, of {title}: ")
    assert line.notes[-1] == f"          each key: python -m runner import {name}"
    cfg = runner.compose(name, "seed=3")
    assert (cfg["trainer"]["_target_"], cfg["seed"], cfg["name"]) == (trainer, 3, Path(name).stem)
    assert main(["import", name, "name=mine"]) == 0
    capsys.readouterr()
    processes = cfg["launcher"]["num_processes"]
    words = [f"launcher.num_processes={processes}", f"name={cfg['name']}", "--config-dir", "conf"]
    assert cfg_of("experiment=mine", "seed=3", *words) == cfg
    assert (processes > 1) == (name == "trl_ppo.sh")


@pytest.mark.slow
def test_the_key_of_another_tool_is_named(here, capsys):
    (here / "ax.yml").write_text(
        "base_model: org/name\ndatasets: [{path: org/rows, type: alpaca}]\nmicro_batch_size: 3\n"
    )
    assert main(["why", "per_device_train_batch_size", "ax.yml"]) == 0
    assert "is    3  ax.yml  (its micro_batch_size)" in capsys.readouterr().out


def test_what_another_tools_file_leaves_to_be_typed_is_asked_for_together(here):
    shutil.copy(THEIRS / "llama_factory_sft.yaml", here)
    with pytest.raises(ConfigError) as raised:
        read_command_line(["llama_factory_sft.yaml"])
    (fault,) = raised.value.faults
    assert (fault.where, fault.fix) == ("llama_factory_sft.yaml", "model.trust_remote_code=true")
    assert read_command_line(["llama_factory_sft.yaml", fault.fix]).notes
    (here / "run.sh").write_text("trl sft --model_name_or_path $MODEL --dataset_name org/rows\n")
    with pytest.raises(ConfigError) as raised:
        read_command_line(["run.sh"])
    assert [fault.fix for fault in raised.value.faults] == ["model.path=<value>"]
    assert read_command_line(["run.sh", "model=org/name"]).notes


def test_a_misspelt_file_of_ours_is_not_taken_for_another_tools(here):
    (here / "own.yaml").write_text("trainer: dpo\nmax_length: 512\nlora_rank: 8\n")
    assert read_command_line(["own.yaml"]).notes == []
    assert {fault.where for fault in faults_of("own.yaml")} == {"max_length", "lora_rank"}


def test_a_job_in_another_process_has_the_translations(here, monkeypatch):
    (here / "run.sh").write_text("trl sft --model_name_or_path org/name --dataset_name org/rows\n")
    words = read_command_line(["run.sh"]).overrides
    pickled = pickle.dumps(Job(typed=words))
    monkeypatch.setattr(experiment_file, "_translations", {})
    monkeypatch.setattr(
        hydra_plugin, "tasks_of", lambda jobs: pytest.fail(str(jobs[0][0].cfg["model"]))
    )
    with pytest.raises(pytest.fail.Exception, match="org/name"):
        pickle.loads(pickled)._train(words)
