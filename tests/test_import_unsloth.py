"""Python scripts and notebooks that train with TRL or Unsloth, and Unsloth's own command line.

They are read by their syntax tree: what is no constant is listed with its line, and nothing is run.
"""

import json
from importlib import import_module
from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate

verb = import_module("runner.command.import")
SAMPLES = Path(__file__).parent / "importers"
HEAD = """
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
"""
TRAINER = """
rows = load_dataset("c/d", split="train")
trainer = SFTTrainer(model="a/b", args=SFTConfig({}), train_dataset=rows)
"""


def imported(path):
    return translate(read_file(path), verb.name_of(path))


@pytest.fixture
def read(tmp_path):
    """The draft of a script of these lines."""

    def call(source, name="train.py"):
        path = tmp_path / name
        path.write_text(source)
        return imported(path)

    return call


def notes_on(draft, key):
    return [note for note in draft.notes if note.key == key]


def why(draft, key):
    return " ".join(f"{note.target} {note.why}" for note in notes_on(draft, key))


def args_of(draft):
    return draft.values.get("trainer", {}).get("args", {})


# --- Unsloth --------------------------------------------------------------------------------------


def test_a_notebook_of_unsloth():
    draft = imported(SAMPLES / "unsloth_chat.ipynb")
    assert draft.reading.dialect == "unsloth"
    assert draft.choices == {
        "trainer": "sft",
        "model": "hub",
        "dataset": "hub",
        "peft": "lora",
        "quant": "4bit",
        "weight": "answers",
    }
    assert draft.values["model"] == {
        "path": "unsloth/Llama-3.2-1B-Instruct-bnb-4bit",
        "dtype": "bfloat16",
        "tokenizer": {"chat_template": "llama3_1"},
    }
    assert draft.values["dataset"] == {
        "path": "mlabonne/FineTome-100k",
        "split": {"train": "train[:1%]"},
    }
    assert draft.values["peft"]["r"] == 32
    args = args_of(draft)
    assert args["max_length"] == 2048  # max_seq_length // 2, of the trainer
    assert args["warmup_steps"] == 5
    assert "completion_only_loss" not in args  # answers alone are trained
    assert "push_to_hub_gguf" not in draft.keys  # below if False
    assert "python -m runner export" in why(draft, "save_pretrained_merged")
    assert "instruction_part" in draft.keys


def test_defaults_of_unsloth_are_written_where_a_notebook_is_silent():
    draft = imported(SAMPLES / "unsloth_chat.ipynb")
    args = args_of(draft)
    assert draft.values["seed"] == 3407
    assert draft.values["peft"]["lora_alpha"] == 16
    assert args["gradient_accumulation_steps"] == 2
    assert args["weight_decay"] == 0.001
    assert args["optim"] == "adamw_8bit"


def test_a_notebook_trains_whole_texts_unless_it_says_answers(read):
    lines = """
from unsloth import FastLanguageModel
from datasets import load_dataset
from trl import SFTTrainer, SFTConfig
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/llama-3-8b-bnb-4bit", 1536, None, 0)
model = FastLanguageModel.get_peft_model(model)
def write(rows):
    return {"text": [prompt.format(*row) for row in rows]}
rows = load_dataset("yahma/alpaca-cleaned", split="train").map(write, batched=True)
args = SFTConfig(learning_rate=1e-4, max_length=64)
trainer = SFTTrainer(model=model, train_dataset=rows, args=args)
"""
    draft = read(lines)
    assert args_of(draft)["completion_only_loss"] is False
    assert args_of(draft)["max_length"] == 1536  # that of the model counts there
    assert args_of(draft)["warmup_steps"] == 0.1
    # Weights of 4 bits are not wanted, so those of 16 bits are loaded.
    assert draft.values["model"]["path"] == "unsloth/llama-3-8b"
    assert "quant" not in draft.choices
    assert draft.values["peft"]["target_modules"][-1] == "down_proj"
    assert "template=" in why(draft, "map, line 9")


def test_grpo_of_unsloth_fills_its_batch_with_whole_groups(read):
    draft = read("""
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer
def brevity(completions, **kwargs): return [0.0 for _ in completions]
model, tokenizer = FastLanguageModel.from_pretrained("a/b", 512, fast_inference=True)
args = GRPOConfig(per_device_train_batch_size=1, num_generations=6, max_prompt_length=256,
    max_completion_length=512 - 256, bf16=True)
trainer = GRPOTrainer(model=model, processing_class=tokenizer, reward_funcs=[brevity], args=args,
    train_dataset=load_dataset("openai/gsm8k", "main")["train"])
""")
    args = args_of(draft)
    assert args["per_device_train_batch_size"] == 6  # 2 of 6 fill no group
    assert args["max_completion_length"] == 256
    assert args["loss_type"] == "bnpo"
    assert draft.values["kl_coef"] == 0.001
    assert draft.values["dataset"] == {"path": "openai/gsm8k", "config": "main"}
    assert "reward.brevity._target_=rewards.brevity" in draft.overrides
    assert "rewards.py" in why(draft, "functions")
    assert "use_vllm" in why(draft, "fast_inference")


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        ("", "all-linear"),
        ("finetune_vision_layers=False", "language"),
        ("target_modules=['q_proj']", ["q_proj"]),
    ],
)
def test_the_parts_of_a_model_that_sees(read, arguments, layers):
    draft = read(f"""
from unsloth import FastVisionModel
model, tokenizer = FastVisionModel.from_pretrained("a/b")
model = FastVisionModel.get_peft_model(model, {arguments})
trainer = SFTTrainer(model, train_dataset=load_dataset("c/d", split="train"))
""")
    written = draft.values["peft"]["target_modules"]
    if layers == "language":
        assert "vision" in written
        assert written.startswith("(?!")
    else:
        assert written == layers
    assert draft.choices["quant"] == "4bit"  # their default


def test_full_training_of_unsloth_has_no_adapter(read):
    draft = read("""
from unsloth import FastModel
model, tokenizer = FastModel.from_pretrained("a/b", full_finetuning=True)
model = FastModel.get_peft_model(model, r=8)
trainer = SFTTrainer(model, train_dataset=load_dataset("c/d", split="train"))
""")
    assert {"peft", "quant"}.isdisjoint(draft.choices)


def test_the_command_line_of_unsloth():
    draft = imported(SAMPLES / "unsloth_cli.sh")
    assert draft.values["model"]["path"] == "unsloth/mistral-7b-v0.3-bnb-4bit"
    assert draft.choices["quant"] == "4bit"
    assert draft.choices["tracker"] == "wandb"
    assert args_of(draft)["max_length"] == 8192
    assert args_of(draft)["warmup_steps"] == 5  # its default
    assert "template=alpaca" in why(draft, "alpaca_rows")


def test_the_yaml_of_unsloth():
    draft = imported(SAMPLES / "unsloth_train.yaml")
    assert draft.reading.dialect == "unsloth"
    assert draft.choices["weight"] == "answers"
    assert draft.values["model"]["path"] == "unsloth/Qwen3-4B"
    assert draft.values["peft"]["use_dora"] is True
    assert args_of(draft)["num_train_epochs"] == 1
    assert "max_steps" not in args_of(draft)
    assert draft.values["tracker"]["environment"] == {"WANDB_PROJECT": "support"}


# --- Scripts with TRL -----------------------------------------------------------------------------


def test_a_script_with_trl():
    draft = imported(SAMPLES / "trl_script_dpo.py")
    assert draft.reading.dialect == "trl_script"
    assert draft.trainer == "dpo"
    assert draft.values["kl_coef"] == 0.05  # the default of its flag
    assert draft.values["model"]["path"] == "Qwen/Qwen2.5-0.5B-Instruct"  # that of a variable
    assert draft.values["dataset"]["split"] == {"train": "train[:1800]", "eval": "train[1800:2000]"}
    assert args_of(draft)["gradient_accumulation_steps"] == 4  # 16 // batch
    assert draft.values["quant"] == {"bnb_4bit_use_double_quant": False}
    assert draft.values["peft"]["lora_alpha"] == 8  # peft's default
    assert "seed" not in draft.values
    assert "line 48" in why(draft, "seed")
    assert "publishing" in why(draft, "push_to_hub")


def test_no_secret_of_a_script_is_shown():
    for name in ("trl_script_dpo.py", "unsloth_chat.ipynb", "unsloth_cli.sh", "unsloth_train.yaml"):
        draft = imported(SAMPLES / name)
        assert "hf_ABCDEF" not in verb.to_file(draft) + "\n".join(verb.describe(draft))


@pytest.mark.parametrize(
    ("lines", "argument", "value"),
    [
        ("rate = 2e-5", "learning_rate=rate / 2", 1e-5),
        ("steps = {'long': [10, 20]}", "max_steps=steps['long'][1]", 20),
        ("class Options:\n    steps: int = 7", "max_steps=Options().steps", 7),
        ("import os", "max_steps=int(os.environ.get('STEPS', '5'))", 5),
        ("def half(size, by=2):\n    return size // by", "max_steps=half(18)", 9),
        ("long = True\nsteps = 4 if long else 5", "max_steps=steps", 4),
        ("common = {'max_steps': 3}", "**common", 3),
        ("steps = 1\nsteps += 5", "max_steps=steps", 6),
        ("if False:\n    steps = 1\nelse:\n    steps = 2", "max_steps=steps", 2),
    ],
)
def test_a_value_that_the_text_says(read, lines, argument, value):
    draft = read(HEAD + lines + TRAINER.format(argument))
    written = args_of(draft).get("max_steps", draft.values.get("learning_rate"))
    assert written == value


@pytest.mark.parametrize(
    ("lines", "argument"),
    [
        ("", "max_steps=len(rows)"),
        ("", "max_steps=9 ** 9 ** 9"),
        ("steps = int(input())", "max_steps=steps * 2"),
        ("if input():\n    steps = 1\nelse:\n    steps = 2", "max_steps=steps"),
    ],
)
def test_a_value_that_only_a_run_would_tell_is_asked_for(read, lines, argument):
    draft = read(HEAD + lines + TRAINER.format(argument))
    assert "max_steps" in draft.unset
    assert args_of(draft)["max_steps"] == "${code.max_steps}"
    assert "no constant" in why(draft, "max_steps")
    assert "trainer.args.max_steps=<value>" in why(draft, "max_steps")


def test_a_condition_that_nobody_knows_is_said(read):
    lines = "rows = load_dataset('c/d')\nif input():\n    rows = load_dataset('e/f')\n"
    draft = read(HEAD + lines + "SFTTrainer('a/b', train_dataset=rows)")
    assert draft.values["dataset"]["path"] == "e/f"
    assert "taken as if it held" in why(draft, "if input()")


def test_of_two_values_the_first_counts_and_the_other_is_listed(read):
    draft = read(
        HEAD
        + """
model = AutoModelForCausalLM.from_pretrained("a/b", revision="one")
args = SFTConfig(max_length=512)
SFTTrainer(model, args=args, max_length=64, train_dataset=load_dataset("c/d", split="train"))
"""
    )
    assert args_of(draft)["max_length"] == 512
    assert "512, which counts" in why(draft, "max_length, SFTTrainer")
    assert draft.values["model"]["revision"] == "one"


@pytest.mark.parametrize(
    ("rows", "written"),
    [
        ("load_dataset('json', data_files='mine.jsonl', split='train')", {"path": "mine.jsonl"}),
        ("load_dataset('c/d')['test'].select(range(9))", {"split": {"train": "test[:9]"}}),
        ("load_dataset('c/d', 'small', split='train')", {"config": "small"}),
        ("load_dataset('c/d', split='train', streaming=True)", {"streaming": True}),
    ],
)
def test_rows_of_a_script(read, rows, written):
    draft = read(HEAD + f"SFTTrainer('a/b', train_dataset={rows})")
    assert draft.values["dataset"] == {"path": "c/d"} | written


def test_rows_that_a_script_holds_out_are_held_out(read):
    draft = read(
        HEAD
        + """
rows = load_dataset(path="c/d", name="small")
args = SFTConfig(evaluation_strategy="steps", eval_steps=5)
SFTTrainer("a/b", args=args, train_dataset=rows["train"], eval_dataset=rows["test"])
"""
    )
    assert draft.values["dataset"]["split"]["eval"] == "test"
    assert args_of(draft)["eval_steps"] == 5


def test_a_file_whose_name_is_a_number_gets_another_one(tmp_path):
    assert verb.name_of(tmp_path / "4.ipynb") == "imported_4"


def test_datasets_that_a_script_joins_are_a_mixture(read):
    draft = read(
        HEAD
        + """
rows = concatenate_datasets([load_dataset("c/d", split="train"), load_dataset("e/f", split="test")])
SFTTrainer("a/b", train_dataset=rows)
"""
    )
    parts = draft.values["dataset"]["parts"]
    assert parts["d"]["path"] == "c/d"
    assert parts["f"]["split"] == {"train": "test"}


@pytest.mark.parametrize(
    ("step", "what"),
    [
        ("rows.map(change)", "code of the script's own"),
        ("rows.filter(lambda row: row['x'])", "rows are left out"),
        ("rows.rename_column('question', 'prompt')", "dataset.columns.prompt=question"),
        ("Dataset.from_list([{'text': 'a'}])", "rows that code of the script makes"),
    ],
)
def test_what_code_makes_of_rows_is_said(read, step, what):
    lines = f"rows = load_dataset('c/d', split='train')\nrows = {step}\n"
    draft = read(HEAD + lines + "SFTTrainer('a/b', train_dataset=rows)")
    assert any(what in note.why for note in draft.notes if note.kind == "no equivalent")


def test_a_function_that_nobody_calls_is_read_with_its_defaults(read):
    draft = read(
        HEAD
        + """
import fire
def train(base="a/b", steps=8):
    rows = load_dataset("c/d", split="train")
    SFTTrainer(base, args=SFTConfig(max_steps=steps), train_dataset=rows)
fire.Fire(train)
"""
    )
    assert draft.values["model"]["path"] == "a/b"
    assert args_of(draft)["max_steps"] == 8


def test_nothing_of_a_script_is_run(read, tmp_path):
    made = tmp_path / "made"
    lines = f"open({str(made)!r}, 'w').write('x')\n__import__('os').mkdir({str(made)!r})\n"
    read(HEAD + lines + TRAINER.format(""))
    assert not made.exists()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("print('hello')", "no call of a trainer"),
        ("Trainer(model)", "tokens that code of the script makes"),
        ("SFTTrainer(", "not Python"),
        ("x = " + "-" * 5000 + "1", "not Python|nested too deep"),
    ],
)
def test_a_script_that_trains_nothing_is_refused(read, source, found):
    with pytest.raises(ConfigError, match=found):
        read(source)


def test_functions_that_call_each_other_end(read):
    lines = ["def f0(): return 1"]
    for number in range(1, 20):
        calls = " + ".join([f"f{number - 1}()"] * 20)
        lines.append(f"def f{number}(): return {calls}")
    lines.append("def again(): return again()")
    draft = read(HEAD + "\n".join(lines) + TRAINER.format("max_steps=f19(), seed=again()"))
    assert "max_steps" in draft.unset


def test_a_notebook_that_is_none_is_refused(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"nothing": 1}))
    with pytest.raises(ConfigError, match="no cells"):
        read_file(path)


def test_a_default_is_not_written_where_the_script_has_code(read):
    draft = read(
        "import sys\n"
        "from unsloth import FastLanguageModel\n"
        f"{HEAD}"
        'model, tokenizer = FastLanguageModel.from_pretrained("a/b")\n'
        "model = FastLanguageModel.get_peft_model(model, r=len(sys.argv))\n"
        'rows = load_dataset("c/d", split="train")\n'
        "args = SFTConfig(learning_rate=float(sys.argv[1]))\n"
        "trainer = SFTTrainer(model=model, args=args, train_dataset=rows)\n"
    )
    for key in ("learning_rate", "lora_r"):
        assert {note.kind for note in notes_on(draft, key)} == {"no equivalent"}
    assert draft.values["learning_rate"] == "${code.learning_rate}"
    assert "r" not in draft.values["peft"]
