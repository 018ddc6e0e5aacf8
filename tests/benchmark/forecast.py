"""python tests/benchmark/forecast.py [CASE ...] [--tolerance 25]

Trains small models on the CPU, each case in a fresh process, and compares the most memory that the
process held with what ``runner.estimate`` says. Measured is the high-water mark of the resident set
above that of a process which has trained a tiny model already, so that no import counts; steps are
two, because the optimizer's state is there from the second on. ``alive`` is the same with an
allocator that gives freed blocks back at once, which is what a forecast counts; ``resident`` is
that of the C library as it comes. Prints a table; exit code 1 where a case is off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from runner.config.experiment import Experiment

ROOT = Path(__file__).parent.parent.parent
WORDS = (
    "learning_rate=1e-5",
    "trainer.args.max_steps=2",
    "trainer.args.save_strategy=no",
    "metric=none",
    "model=new",
)
SHAPES = {
    "deep": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "vocab_size": 16000,
    },
    "wide": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
        "vocab_size": 4000,
    },
    "wordy": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "vocab_size": 96000,
    },
}
PAIRED = ("trainer.args.per_device_train_batch_size=2",)
ONLINE = ("reward=length", "trainer.args.per_device_train_batch_size=8")
GRPO = (*ONLINE, "trainer.args.max_completion_length=48")
PPO = (*ONLINE, "trainer.args.response_length=48")
FOUR = "trainer.args.per_device_train_batch_size=4"
RECOMPUTE = "trainer.args.activation_checkpointing=true"
CASES = {
    "sft deep": ("deep", 256, "trainer=sft", FOUR),
    "sft wide": ("wide", 128, "trainer=sft", FOUR),
    "sft wordy": ("wordy", 256, "trainer=sft", FOUR),
    "sft deep lora": ("deep", 256, "trainer=sft", FOUR, "peft=lora"),
    "sft deep recompute": ("deep", 256, "trainer=sft", FOUR, RECOMPUTE),
    "sft deep accumulate": (
        "deep",
        256,
        "trainer=sft",
        PAIRED[0],
        "trainer.args.gradient_accumulation_steps=2",
    ),
    "sft deep adafactor": ("deep", 256, "trainer=sft", FOUR, "trainer.args.optim=adafactor"),
    "sft deep bf16": ("deep", 256, "trainer=sft", FOUR, "trainer.args.bf16=true"),
    "dpo deep": ("deep", 128, "trainer=dpo", *PAIRED),
    "dpo deep lora": ("deep", 256, "trainer=dpo", *PAIRED, "peft=lora"),
    "dpo deep lora recompute": ("deep", 256, "trainer=dpo", *PAIRED, "peft=lora", RECOMPUTE),
    "dpo wide": ("wide", 128, "trainer=dpo", *PAIRED),
    "kto deep": ("deep", 128, "trainer=kto", FOUR),
    "reward deep": ("deep", 256, "trainer=reward", *PAIRED),
    "orpo wordy": ("wordy", 128, "trainer=orpo", *PAIRED),
    "grpo deep": ("deep", 64, "trainer=grpo", *GRPO),
    "grpo deep lora": ("deep", 64, "trainer=grpo", *GRPO, "peft=lora"),
    "ppo deep": ("deep", 64, "trainer=ppo", *PPO),
    "rloo deep": ("deep", 64, "trainer=rloo", *GRPO, "kl_coef=0"),
    "online_dpo deep": (
        "deep",
        64,
        "trainer=online_dpo",
        *ONLINE,
        "trainer.args.max_new_tokens=48",
    ),
    "cpo wide": ("wide", 128, "trainer=cpo", *PAIRED),
    "sft deep dora": ("deep", 256, "trainer=sft", FOUR, "peft=dora"),
    "ppo deep lora": ("deep", 64, "trainer=ppo", *PPO, "peft=lora", "trainer.args.critic=model"),
    "ppo wide": ("wide", 64, "trainer=ppo", *PPO),
}
QUICK = ("sft deep", "dpo deep lora")


def words_of(name: str, rows: Path) -> list[str]:
    shape, _, *words = CASES[name]
    keys = [f"model.{key}={value}" for key, value in SHAPES[shape].items()]
    heads = [
        "model.num_attention_heads=8",
        "model.num_key_value_heads=4",
        "model.max_position_embeddings=2048",
    ]
    return [
        *words,
        *WORDS,
        *keys,
        *heads,
        "dataset=local",
        f"dataset.path={rows}",
        "dataset.form=preference",
    ]


def write_rows(path: Path, tokens: int) -> None:
    """Pairs whose prompts take that many tokens of the shipped tokenizer."""
    prompt = " ".join(str(number % 10) for number in range(tokens // 2))
    rows = [
        {"prompt": f"{number} {prompt}", "chosen": " 1", "rejected": " 2"} for number in range(32)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- In a process of its own ----------------------------------------------------------------------


def resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


def train(words: list[str], place: Path) -> None:
    from runner.launch.compose import stages
    from runner.launch.signals import Stop
    from runner.run import open_run
    from runner.training.components.assembly import build_components

    (composed,) = stages.compose_runs([*words, f"output_root={place}"])
    build_components(open_run(composed.cfg, []), Stop()).trainer.train()


def measured(name: str) -> int:
    """The peak of the bytes that training this case holds, above what is held once everything is
    imported.
    """
    import gc

    from runner.launch.processes import prepare_environment

    prepare_environment()
    with tempfile.TemporaryDirectory() as place:
        rows = Path(place) / "rows.jsonl"
        write_rows(rows, CASES[name][1])
        words = words_of(name, rows)
        small = [
            word
            for word in words
            if not word.startswith(("model.hidden", "model.inter", "model.vocab"))
        ]
        train([*small, "model.num_hidden_layers=1", "seed=1"], Path(place) / "small")
        gc.collect()
        before = resident("VmRSS:")
        Path("/proc/self/clear_refs").write_text("5")
        train(words, Path(place) / "large")
        return resident("VmHWM:") - before


# --- Compared -------------------------------------------------------------------------------------


def forecast(name: str) -> int:
    """The forecast for a case from one measured step on a small copy with short rows, given the
    real row lengths.
    """
    from transformers import AutoTokenizer

    from runner.estimate.measure import measure_small
    from runner.estimate.memory import Training
    from runner.estimate.reduce import Clones, reduce
    from runner.estimate.steps import Rows
    from runner.io.files import shipped
    from runner.launch.compose import stages

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = Path(folder) / "rows.jsonl"
        write_rows(rows, CASES[name][1])
        row = json.loads(rows.read_text().splitlines()[-1])
        write_rows(rows, 20)
        (composed,) = stages.compose_runs(words_of(name, rows))
        cfg = composed.cfg
        small = reduce(cfg, place / "small", Clones(place / "models")).cfg
        measurement, why = measure_small(small, False, place / "measured")
    if why:
        raise SystemExit(f"{name}: {why}")
    answer = "" if cfg["trainer"]["form"] == "prompt" else row["chosen"]
    tokenizer = AutoTokenizer.from_pretrained(shipped("runner://model/tiny"))
    length = len(tokenizer(row["prompt"] + answer)["input_ids"]) + bool(answer)
    return Training(Experiment.read(cfg), Rows([length] * 8), measurement, gpu=False).peak


def measure_apart(name: str, **variables: str) -> int:
    command = [sys.executable, __file__, "--measure", name]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"} | variables
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tempfile.gettempdir()
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return int(done.stdout.split()[-1])


def compare(name: str) -> tuple[int, int, int]:
    """The forecast for a case, and the memory it takes with each allocator."""
    return forecast(name), measure_apart(name, MALLOC_MMAP_THRESHOLD_="65536"), measure_apart(name)


def main(words: list[str]) -> int:
    if words[:1] == ["--measure"]:
        print(measured(words[1]))
        return 0
    tolerance = 25.0
    if "--tolerance" in words:
        place = words.index("--tolerance")
        tolerance = float(words.pop(place + 1))
        words.pop(place)
    print(f"{'case':<26}{'forecast':>10}{'alive':>10}{'ratio':>7}{'resident':>10}{'ratio':>7}")
    off = 0
    for name in words or CASES:
        verdict, alive, allocated = compare(name)
        off += abs(verdict / alive - 1) > tolerance / 100
        print(
            f"{name:<26}{verdict / 1e6:>7.0f} MB{alive / 1e6:>7.0f} "
            f"MB{verdict / alive:>7.2f}{allocated / 1e6:>7.0f} MB"
            f"{verdict / allocated:>7.2f}",
            flush=True,
        )
    print(f"{off} off by more than {tolerance:g} %")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
