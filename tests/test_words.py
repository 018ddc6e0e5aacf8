"""Words of other tools are answered with ours, and the answers are typed here."""

import re
import shlex

import pytest
import yaml
from laid import lay_run

import runner
from runner.__main__ import main
from runner.command import VERBS
from runner.command._words import read_command_line
from runner.config.dialect import read_sections
from runner.config.menu import read_menu
from runner.config.working_folder import find_menu_here
from runner.errors import ConfigError
from runner.io.files import MENU
from runner.validate.context import PLAIN_GROUPS, TOP, plain_keys
from runner.validate.values_at_keys import MEANT_OTHERWISE

SHARED = read_sections()["shared"]
# A value for each of our keys with other names; two values for all other keys.
VALUES = {
    "learning_rate": "1e-5",
    "kl_coef": "0.1",
    "trainer.args.lr_scheduler_type": "cosine",
    "trainer.args.loss_type": "grpo",
    "trainer.args.use_liger_kernel": "true",
    "trainer.args.torch_compile": "true",
    "trainer.args.include_for_metrics": "[loss]",
    "trainer.args.hub_model_id": "org/x",
    "model.dtype": "float32",
    "model.attention": "sdpa",
    "model.revision": "main",
    "model.tokenizer.path": "org/x",
    "model.tokenizer.chat_template": "plain",
    "peft.target_modules": "all-linear",
    "dataset.columns.text": "body",
}


def answers(capsys, *words):
    """The command's answers, what to type by where; all of it fits the screen."""
    assert main(words) == 2
    err = capsys.readouterr().err
    beats = re.findall(
        r"^  (\S.*)\n    found.*\n    expected  (.+)\n    type      (.+)", err, re.MULTILINE
    )
    assert len(beats) == max(1, err.count("    found ")), err
    return {where: fix for where, _, fix in beats}


@pytest.mark.slow
def test_each_other_name_is_answered_with_ours(capsys):
    """All of them in one command for each trainer, and then all the answers in another."""
    names = {}
    for path, listed in SHARED["names"].items():
        names |= dict.fromkeys(listed, path)
    typed = [f"{name}={VALUES.get(path, '2')}" for name, path in names.items()]
    answered = set()
    for trainer in ("grpo", "sft"):
        replies = answers(capsys, f"trainer={trainer}", *typed)
        for name, path in names.items():
            if (words := shlex.split(replies[name]))[-1] == f"{path}={VALUES.get(path, '2')}":
                assert words[:-1] == (["peft=lora"] if path.startswith("peft.") else []), replies[
                    name
                ]
                answered.add(name)
    assert answered == set(names)


TYPED = {
    "lr=1e-5": "learning_rate=1e-5",
    "batch_size=2": "trainer.args.per_device_train_batch_size=2",
    "micro_batch_size=2": "trainer.args.per_device_train_batch_size=2",
    "gradient_accumulation_steps=4": "trainer.args.gradient_accumulation_steps=4",
    "epochs=3": "trainer.args.num_train_epochs=3",
    "max_steps=3": "trainer.args.max_steps=3",
    "sequence_len=64": "trainer.args.max_length=64",
    "cutoff_len=64": "trainer.args.max_length=64",
    "lora_r=8": "peft=lora peft.r=8",
    "lora_alpha=16": "peft=lora peft.lora_alpha=16",
    "peft.r=8": "peft=lora peft.r=8",
    "load_in_4bit=true": "peft=lora quant=4bit",
    "load_in_8bit=false": "leave load_in_8bit out",
    "use_peft=true": "peft=lora",
    "gpus=2": "launcher.num_processes=2",
    "nproc_per_node=2": "launcher.num_processes=2",
    "device=cpu": "trainer.args.use_cpu=true",
    "bf16=true": "trainer.args.bf16=true",
    "dtype=bf16": "model.dtype=bfloat16",
    "wandb=true": "tracker=wandb",
    "report_to=[wandb,tensorboard]": "tracker=[wandb,tensorboard]",
    "use_swanlab=true": "tracker=swanlab",
    "wandb_project=mine": "tracker=wandb tracker.environment.WANDB_PROJECT=mine",
    "output_dir=here": "output_root=here",
    "run_name=mine": "name=mine",
    "resume_from_checkpoint=true": "leave resume_from_checkpoint out",
    "eval_steps=5": "trainer.args.eval_steps=5",
    "push_to_hub=true": "trainer.args.push_to_hub=true",
    "deepspeed=ds.json": "trainer.args.deepspeed=ds.json",
    "beta=0.1": "kl_coef=0.1",
    "model_name=org/x": "model=org/x",
    "base_model=gpt2": "model=hub model.path=gpt2",
    "dataset_name=org/x": "dataset=org/x",
    "train_file=x.jsonl": "dataset=x.jsonl",
    "optimizer.lr=1e-5": "learning_rate=1e-5",
    "args.logging_steps=5": "trainer.args.logging_steps=5",
    "config=theirs.yaml": "python -m runner theirs.yaml",
    "trust_remote_code=true": "model.trust_remote_code=true",
    # Fields that TRL or transformers have given up, where they were.
    "trainer.args.logging_dir=x": "leave trainer.args.logging_dir out",
    "trainer.args.save_safetensors=true": "leave trainer.args.save_safetensors out",
    "trainer.args.overwrite_output_dir=true": "leave trainer.args.overwrite_output_dir out",
    "trainer.args.max_prompt_length=9": "leave trainer.args.max_prompt_length out",
    "trainer.args.warmup_ratio=0.1": "trainer.args.warmup_steps=0.1",
    "trainer.args.evaluation_strategy=steps": "trainer.args.eval_strategy=steps",
    "trainer.args.rpo_alpha=0.5": (
        "trainer.args.loss_weights=[1.0,0.5] trainer.args.loss_type=[sigmoid,sft]"
    ),
    "trainer.args.no_cuda=true": "trainer.args.use_cpu=true",
    "trainer.args.kl_coef=0.1": "trainer.args.beta=0.1",
    "trainer.args.output_dir=x": "output_root=x",
    "trainer.tokenizer=org/x": "model.tokenizer.path=org/x",
    "model.torch_dtype=float16": "model.dtype=float16",
}


@pytest.mark.slow
def test_words_that_people_type_are_answered_with_a_working_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    answered = answers(capsys, "trainer=dpo", *TYPED)
    assert {f"{word}": answered[word.partition("=")[0]].replace('"', "") for word in TYPED} == TYPED


@pytest.mark.slow
def test_the_lines_work(tmp_path, monkeypatch, capsys):
    """Those that need no other machine, all at once."""
    monkeypatch.chdir(tmp_path)
    elsewhere = (
        "tracker=",
        "quant=",
        "deepspeed",
        "hub",
        "import",
        "leave ",
        "python ",
        "dataset=",
        "org/x",
        "code",
    )
    lines = [fix for fix in TYPED.values() if not any(word in fix for word in elsewhere)]
    words = shlex.split(" ".join(lines))
    words = [word for word in words if not word.startswith(("trainer.args.loss_", "kl_"))]
    assert len(words) > 25 and main(["trainer=dpo", *words, "--dry-run"]) == 0, (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_an_imported_file_may_have_the_same_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.yaml").write_text(
        "base_model: org/x\nmicro_batch_size: 2\nlr: 1e-5\nepochs: 2\nlora_dim: 4\n"
    )
    assert main(["import", "theirs.yaml"]) == 0
    stdout = capsys.readouterr().out
    for key, ours in {
        "lr": "learning_rate: 1.0e-05",
        "epochs": "trainer.args.num_train_epochs: 2",
    }.items():
        assert re.search(rf"^  {key}: .* {re.escape(ours)}$", stdout, re.MULTILINE), stdout


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "fixes"),
    [
        (["trainer=PPO", "peft=LoRA", "quant=nf4"], ["trainer=ppo", "peft=lora", "quant=4bit"]),
        (
            ["trainer=rm", "peft=full", "tracker=off"],
            ["trainer=reward", "peft=none", "tracker=none"],
        ),
        (["dataset=tldrr", "model=gpt2"], ["dataset=tldr", "model=hub model.path=gpt2"]),
        (
            ["trainer=ppo", "trainer.args.beta=0.1", "max_new_tokens=9"],
            ["kl_coef=0.1", "trainer.args.response_length=9"],
        ),
        (
            ["experiment=toy_rlhf", "lr=0.1", "ppo.lora_r=8"],
            ["learning_rate=0.1", "ppo.peft=lora ppo.peft.r=8"],
        ),
        (["-m", "dataset=toy,rows.jsonl"], ["dataset=local dataset.path=rows.jsonl"]),
        (["dataset=nope.jsonl"], ["dataset=rows.jsonl"]),
        (["num_generations=4"], ["leave num_generations out"]),
        (
            ["loss=ipo", "metric=accuracy", "reward=accuracy"],
            ["trainer.args.loss_type=ipo", "metric=exact", "reward=exact_match"],
        ),
        (["early_stopping=true"], ["callback=early_stopping"]),
        (["--dryrun"], ["python -m runner --dry-run"]),
        (["trainer", "--help"], ["python -m runner options trainer"]),
        (["--config-dir"], ["python -m runner --help"]),
        (["--config"], ["experiment=<the path of a file>"]),
        (["--lr", "1e-5", "--seed=3"], ["learning_rate=1e-5", "seed=3"]),
        (["--model_name_or_path", "org/x", "--use-peft"], ["model=org/x", "peft=lora"]),
        (["--config", "theirs.yaml"], ["dataset.path=trl-lib/Capybara"]),
        (
            ["train", "conf/dataset/mine.yaml"],
            ["python -m runner dataset=mine --config-dir conf"],
        ),
        (["experiment=theirs.yaml"], ["dataset.path=trl-lib/Capybara"]),
        (["experiment=theirs"], ["experiment=theirs.yaml"]),
        (
            ["theirs.yaml", "experiment=toy_dpo"],
            ["python -m runner -m experiment=theirs.yaml,toy_dpo  (each by itself)"],
        ),
        (
            ["preview", "theirs.yaml", "--config", "conf/experiment/mine.yaml"],
            ["python -m runner preview theirs.yaml"],
        ),
        (["experiment=mine", "--config-dir", "none"], ["experiment=mine --config-dir conf"]),
        (["experiment=mine", "--config-path", "conf"], ["--config-dir conf"]),
        (
            ["experiment=typo", "--config-dir", "conf"],
            ["learning_rate=1e-5  (in conf/experiment/typo.yaml:2)"],
        ),
        (["predict", "outputs/x/run", "file=rows.jsonl", "dataset=toy"], ["leave file out"]),
        (["--cfg", "jobs"], ["python -m runner --help"]),
        (
            ["experiment=low", "--config-dir", "conf"],
            ["write # @package _global_ as its first line"],
        ),
        (
            ["experiment=below", "--config-dir", "conf"],
            ["write # @package _global_ as its first line"],
        ),
        (
            ["predict", "outputs/x/run", "Hi", "you"],
            ['python -m runner predict outputs/x/run prompt="Hi you"'],
        ),
        (["report", "objective=eval_loss"], ["python -m runner report  (lists them)"]),
        (["predict", "RUN", "--n", "4"], ["n=4"]),
        (["export", "RUN", "--push"], ["push=org/name"]),
        (["options", "pefts"], ["python -m runner options peft"]),
        (["sft", "seed=3"], ["python -m runner trainer=sft seed=3"]),
        (["talk", "outputs/a/b"], ["python -m runner chat outputs/a/b"]),
        (["hydra/launcher=joblib", "seed=1"], ["python -m runner -m hydra/launcher=joblib seed=1"]),
        (["sample", "n=2"], ["python -m runner predict outputs/NAME/RUN n=2"]),
        (["deploy", "port=0"], ["python -m runner serve outputs/NAME/RUN port=0"]),
        (
            ["resume", "outputs/a/b"],
            ["python -m runner report  (lists the runs; the words that began one continue it)"],
        ),
        (["resume", "outputs/z"], ["python -m runner.launch outputs/z/run"]),
        (["trainer=sft", "test", "outputs/z"], ["python -m runner evaluate outputs/z/run"]),
        (["trainer=sft", "\u2014dry-run"], ["python -m runner trainer=sft --dry-run"]),
        (["\u2013m", "seed=1,2"], ["python -m runner seed=1,2 -m"]),
        (["dataset.limit=10"], ["dataset.limit.train=10, or dataset.limit.eval=10"]),
        (["dataset.split=train"], ["dataset.split.train=train"]),
        (["name=<img src=x onerror=alert(1)>"], ["name=img-src-x-onerror-alert-1"]),
        (["learning_rate=1e-4\u200b"], ["learning_rate=1e-4"]),
        (
            ["optimizer.groups={'(': {lr_ratio: 0.1}}"],
            [
                "optimizer.groups in a file of --config-dir, where a name may have any character; "
                "Hydra's grammar allows few"
            ],
        ),
        (["rows.jsonl"], ["python -m runner dataset=rows.jsonl"]),
        (["hydra.run.dir=foo"], ["output_root=foo"]),
        (["hydra.sweep.dir=foo"], ["output_root=foo"]),
        (["hydra.job.name=foo"], ["name=foo"]),
        (["hydra.output_subdir=foo"], ["leave hydra.output_subdir out"]),
        (["learning_rate = 1e-5"], ["learning_rate=1e-5"]),
        (["learning_rate=1e-5,", "seed=[1,"], ["learning_rate=1e-5", "'seed=[1]'"]),
        (["trainer=dpo dataset=toy"], ["trainer=dpo dataset=toy"]),
        (
            ["trainer:", "dpo", "learning_rate:", "1e-5"],
            ["python -m runner trainer=dpo learning_rate=1e-5"],
        ),
        (["preview", "rows", "=", "3"], ["python -m runner preview rows=3"]),
        (["dataset.system=a=b"], ["dataset.system=\"'a=b'\""]),
        (["resume=true"], ["leave resume out"]),
        (["resume=latest"], ["leave resume out"]),
        (["use_vllm=true"], ["leave use_vllm out"]),
        (["trainer=grpo", "use_vllm=true"], ["trainer.args.use_vllm=true"]),
        (["trainer.args=foo"], ["leave trainer.args out"]),
        (
            ["model.tokenizer=org/x", "model.dtype=fp16"],
            ["model.dtype=float16", "model.tokenizer.path=org/x"],
        ),
        (["base_model=tiny"], ["model=tiny"]),
        (["dataset.eval_path=x"], ["dataset.split.eval.path=x"]),
        (
            ["dataset.split.eval=10%"],
            ["dataset.split.train='train[:90%]' dataset.split.eval='train[90%:]'"],
        ),
        (["preview", "row=3"], ["rows=3"]),
        (["why", "lr", "trainer=dpo"], ["python -m runner why learning_rate trainer=dpo"]),
        (["why", "seed", "seed=1,2"], ["python -m runner why seed seed=1"]),
        (["options", "-m", "quant"], ["python -m runner options quant"]),
        (["-m", "trainer=dpo", "lr=1e-5,2e-5"], ["learning_rate=1e-5,2e-5"]),
        (["-m", "trainer=sft", "kl_coef=0.1,0.2"], ["leave kl_coef out, or trainer=<one of them>"]),
        (["seed=range(0,100000000)"], ["seed=0"]),
        (["learning_rate=[1e-4,3e-4]"], ["-m learning_rate=0.0001,0.0003"]),
        (["learning_rate=abc"], ["leave learning_rate out"]),
        (["trainer=grpo", "reward=keywords"], ["'reward.keywords.required=[great]'"]),
        (["model=hub"], ["model.path=Qwen/Qwen2.5-1.5B"]),
        (
            ["trainer=grpo", "reward._target_=judgs.short"],
            ["reward._target_=judges.short 'allow=[judges]'"],
        ),
        (["trainer=grpo", "reward=judges.py"], ["reward._target_=judges.short 'allow=[judges]'"]),
        (["trainer=grpo", "reward=judges"], ["reward._target_=judges.short 'allow=[judges]'"]),
        (["trainer=grpo", "reward=other.py"], ["reward._target_=other.function 'allow=[other]'"]),
        (["import", "missing.yaml"], ["python -m runner import theirs.yaml"]),
        (["--config", "missing.yaml"], ["experiment=theirs.yaml"]),
        (["missing.yaml", "seed=1"], ["python -m runner experiment=theirs.yaml"]),
        (["folder.yaml"], ["python -m runner experiment=theirs.yaml"]),
        (["--config", "folder.yaml"], ["--config-dir folder.yaml"]),
        (["trainer=blank", "--config-dir", "conf"], ["trainer._target_=<module.name>"]),
        (["tracker=[]"], ["tracker=none"]),
        (["why", "outputs/x"], ["python -m runner why learning_rate outputs/x"]),
        (["dataset=parts"], ["mend them, or leave them out with dataset.bad_rows=drop"]),
        (["model=outputs/x"], ["model.path=outputs/x/run/model"]),
        (["model=x"], ["model.path='${run:x}'"]),
        (["model=outputs/y"], ["model.path=<folder or org/name>"]),
        (["model=outputs/x/rum/"], ["model.path=outputs/x/run"]),
        (
            ["trainer=sft", "model=hub", "lr=3", "sed=1"],
            ["model.path=Qwen/Qwen2.5-1.5B", "learning_rate=3", "seed=1"],
        ),
        (
            ["trainer=gkd", "trainer.teacher_model.path=outputs"],
            ["trainer.teacher_model.path=outputs/x/run/model"],
        ),
    ],
    ids=" ".join,
)
def test_another_word_is_answered(words, fixes, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.yaml").write_text("base_model: org/x\n")
    for group in ("experiment", "dataset"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "mine.yaml").write_text("path: org/rows\n")
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 3\n")
    (tmp_path / "conf" / "experiment" / "typo.yaml").write_text(
        "# @package _global_\nlearning_rat: 1e-5\n"
    )
    (tmp_path / "conf" / "experiment" / "low.yaml").write_text("seed: 3\n")
    (tmp_path / "conf" / "experiment" / "below.yaml").write_text(
        "defaults: [{override /trainer: dpo}]\n"
    )
    (tmp_path / "judges.py").write_text(
        "from json import loads\ndef short(completions): return [1.0]\n"
    )
    (tmp_path / "outputs" / "x" / "run" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "trainer").mkdir()
    (tmp_path / "conf" / "trainer" / "blank.yaml").touch()
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.jsonl").write_text('{"prompt": "1", "completion": "2"}\n')
    (tmp_path / "parts" / "b.jsonl").write_text('{"question": "1", "answer": "2"}\n')
    for name in ("rows.jsonl", "rows.txt", "outputs/x/run/model/config.json"):
        (tmp_path / name).write_text('{"prompt": "1", "completion": "2"}\n')
    if "outputs/z" in words:
        lay_run(tmp_path / "outputs" / "z" / "run")
    assert main(words) == 2
    assert re.findall(r"^    type      (.+)", capsys.readouterr().err, re.MULTILINE) == fixes


@pytest.mark.quick(29)
@pytest.mark.parametrize("word", SHARED["words"])
def test_a_wrong_verb_leads_to_a_command(word):
    with pytest.raises(ConfigError) as raised:
        read_command_line([word])
    (fault,) = raised.value.faults
    command = re.sub(r"^python -m runner( |$)", "", fault.fix)
    first = command.removeprefix("python -m ").partition(" ")[0]
    assert word not in VERBS
    assert (
        first in (*VERBS, "", "-m", "--help", "--version", "--dry-run")
        or first.endswith("runner.launch")
        or first == "sweep=search"
    )


# --- A file, a folder, a run or a name on the hub in the place of an option -----------------------


@pytest.mark.parametrize(
    ("word", "expanded"),
    [
        ("dataset=rows.jsonl", "dataset=local dataset.path=rows.jsonl"),
        ("dataset=folder", "dataset=local dataset.path=folder"),
        ("dataset=folder/", "dataset=local dataset.path=folder/"),
        ("dataset=data/*.jsonl", "dataset=local dataset.path=data/*.jsonl"),
        ("dataset=org/name", "dataset=hub dataset.path=org/name"),
        ("dataset=a.jsonl,b.jsonl", "dataset=local dataset.path=a.jsonl,b.jsonl"),
        ("dataset=rows (1).csv", "dataset=local dataset.path='rows (1).csv'"),
        ("model=org/name", "model=hub model.path=org/name"),
        ("model=folder", "model=hub model.path=folder"),
        ("model=outputs/x/run", "model=hub model.path=outputs/x/run/model"),
        ("model=outputs/x/run/", "model=hub model.path=outputs/x/run/model"),
        ("model=tiny", "model=tiny"),
        ("dataset=toy", "dataset=toy"),
        ("dataset=toy,rows.jsonl", "dataset=toy,rows.jsonl"),
        ("name=org/name", "name=org/name"),
        ("name=~nobody/x", "name='~nobody/x'"),
        ("sft.dataset=rows.jsonl", "sft.dataset=local sft.dataset.path=rows.jsonl"),
        (
            "trainer.teacher_model.path=outputs/x/run",
            "trainer.teacher_model.path=outputs/x/run/model",
        ),
        ("dataset.path=outputs/x/run", "dataset.path=outputs/x/run"),
    ],
)
def test_a_word_becomes_the_option_with_its_path(word, expanded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "toy").mkdir()
    (tmp_path / "outputs" / "x" / "run" / "model").mkdir(parents=True)
    (tmp_path / "outputs" / "x" / "run" / "config.yaml").touch()
    assert read_command_line(["seed=1", word]).overrides == [
        "seed=1",
        *re.split(r" (?=\w+\.)", expanded),
    ]


@pytest.mark.slow
def test_rows_without_a_held_out_set_are_answered_with_a_split(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1", "completion": "2"}\n' * 3)
    assert main(["dataset=rows.jsonl", "seed=1", "seed=2", "--dry-run"]) == 0
    note, plan = capsys.readouterr().out.splitlines()
    assert "/sft-tiny-rows/seed-2-" in plan
    words = re.search(r"no rows are held out; (.*)", note)[1]
    assert main(["dataset=rows.jsonl", *shlex.split(words), "--dry-run"]) == 0
    assert "held out" not in capsys.readouterr().out
    assert main(["dataset=rows.jsonl", *shlex.split(words.replace("80", "90")), "--dry-run"]) == 2
    words = re.search(r"type      (.*), or", capsys.readouterr().err)[1]
    assert main(["dataset=rows.jsonl", *shlex.split(words), "--dry-run"]) == 0


@pytest.mark.slow
def test_the_expanded_words_are_what_is_composed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1", "completion": "2"}\n' * 8)
    assert main(["dataset=rows.jsonl", "--cfg", "job"]) == 0
    assert "path: rows.jsonl" in capsys.readouterr().out
    assert main(["dataset=rows.jsonl", "--dry-run"]) == 0
    assert "sft-tiny-rows/default-" in capsys.readouterr().out
    assert main(["why", "dataset.path", "dataset=rows.jsonl"]) == 0
    assert "  is    rows.jsonl  command line" in capsys.readouterr().out


# --- Help -----------------------------------------------------------------------------------------


def test_the_help_fits_a_screen_and_has_every_verb(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 55
    assert max(map(len, lines)) <= 80
    first_words = [line.split()[0] for line in lines if line.startswith("  ")]
    assert [word for word in first_words if word in VERBS] == list(VERBS)
    assert {"trainer,", "peft,", "dataset,"} <= set(" ".join(lines).split())


def test_the_version_is_ours(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(
        r"trl-runner \d\S* \(trl \d.*, transformers \d.*, torch \d.*, Python 3.*\)\n",
        capsys.readouterr().out,
    )


def test_the_menu_of_the_working_folder_is_used_and_that_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["experiment=mine", "--dry-run"]) == 2
    assert "--config-dir none" not in capsys.readouterr().err
    mine = tmp_path / "conf" / "experiment" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("# @package _global_\nseed: 3\n")
    assert main(["experiment=mine", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert said == "conf      conf/ here is used; --config-dir none leaves it out\n"
    assert runner.compose("experiment=mine")["seed"] == 3
    with pytest.raises(ConfigError):
        runner.compose("experiment=mine", config_dir="none")
    for words in (["--config-dir", "none"], ["--config-dir", str(tmp_path)]):
        assert main(["experiment=mine", *words, "--dry-run"]) == 2
        assert not capsys.readouterr().err.startswith("conf ")


@pytest.mark.slow
def test_the_conf_of_another_application_adds_options_and_changes_nothing(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "optimizer").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").write_text("defaults: [optimizer: sgd]\nlr: 0.1\n")
    (tmp_path / "conf" / "optimizer" / "sgd.yaml").write_text("_target_: torch.optim.SGD\n")
    assert main(["trainer=dpo", "--cfg", "job"]) == 0
    used = capsys.readouterr().out
    assert main(["trainer=dpo", "--cfg", "job", "--config-dir", "none"]) == 0
    assert capsys.readouterr().out == used
    assert main(["why", "seed"]) == 0
    assert "conf/config.yaml:" in capsys.readouterr().out


def test_a_conf_of_other_things_and_the_shipped_menu_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "nginx").mkdir(parents=True)
    (tmp_path / "conf" / "nginx" / "site.yaml").write_text("a: 1\n")
    assert find_menu_here() is None
    monkeypatch.chdir(MENU.parent)
    assert find_menu_here() is None


def test_options_lists_every_option_with_its_first_comment(tmp_path, capsys):
    option_file = tmp_path / "trainer" / "mine.yaml"
    option_file.parent.mkdir()
    option_file.write_text("# My own method.\ntrainer: {_target_: x.Y}\n")
    assert main(["options", "--config-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^  mine +My own method\.$", text, re.MULTILINE)
    for group, options in read_menu().items():
        assert f"\n{group}\n" in f"\n{text}"
        for option in options:
            assert re.search(rf"^  {option}\s+\S", text, re.MULTILINE), option
    assert main(["options", "quant"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "quant"


def test_an_option_or_a_key_is_found_by_its_name(capsys):
    assert main(["options", "beta", "dpo"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("beta kl_coef= a2po, dpo, ")
    assert "trainer.args.beta= async_distillation, cpo, " in text
    assert "dpo trainer=dpo Direct preference optimisation" in text


def test_a_function_of_a_module_in_the_place_of_an_option(capsys):
    assert answers(capsys, "reward=mine.short") == {
        "reward": "reward._target_=mine.short 'allow=[mine]'"
    }


def test_no_option_of_the_menu_is_without_a_comment():
    assert [
        path
        for path in MENU.glob("*/*.yaml")
        if not re.search(r"^# (?!@|run:)", path.read_text(), re.M)
    ] == []


def test_rows_of_the_table_name_existing_options():
    text = yaml.safe_dump(SHARED["typed"])
    menu = read_menu()
    chosen = {word for word in re.findall(r"choose: (\w+=\w+)", text)}
    assert len(chosen) > 10
    for word in chosen:
        group, _, option = word.partition("=")
        assert option in menu[group], word


def test_no_other_key_of_ours_holds_a_value_that_the_tables_refuse():
    """Otherwise such a value would have to be looked up, as for ``resume``."""
    ours = set(TOP)
    for group in PLAIN_GROUPS:
        ours |= {f"{group}.{name}" for name in plain_keys(group)}
    rows = [
        pair
        for section in read_sections().values()
        for table in ("typed", "keys")
        for pair in section.get(table, {}).items()
    ]
    assert {key for key, row in rows if key in ours and "'refused'" in str(row)} == {
        *MEANT_OTHERWISE
    }


@pytest.mark.slow
def test_mappings_of_one_key_are_merged_and_so_are_axes_of_them(capsys):
    first = "model.config={attention_dropout: 0.1}"
    second = "model.config={rms_norm_eps: 1e-5}"
    assert main([first, second, "--dry-run"]) == 0
    assert "attention_dropout-0.1-rms_norm_eps-1e-5" in capsys.readouterr().out.replace(
        "1e-05", "1e-5"
    )
    axes = [f"{first},{{attention_dropout: 0.2}}", f"{second},{{rms_norm_eps: 1e-4}}"]
    assert main(["-m", *axes, "--dry-run"]) == 0
    assert "4 runs" in capsys.readouterr().out
    assert main([first, "model.config=null", "--dry-run"]) == 0
    assert "config-null" in capsys.readouterr().out
