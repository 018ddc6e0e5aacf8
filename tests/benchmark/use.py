"""The cost of using a trained model, beside the tools that people use for the same.

first    the answer of one token by ``predict`` and by ``chat`` on the shipped tiny model, beside a
         script with transformers' pipeline that answers the same chat; both start anew each time
merge    ``export`` of a run with LoRA, beside a script with peft's ``merge_and_unload``; both
         write safetensors in the dtype of the base
samples  ``evaluate`` with eight samples for each of 500 prompts, beside ``model.generate`` of
         transformers, which TRL's trainers call, in batches of prompts of like length, and
         lm-evaluation-harness on its ``hf`` model

run: python tests/benchmark/use.py                         all of it: 12 minutes on one core
     python tests/benchmark/use.py --only merge --dtype bfloat16 float32
     python tests/benchmark/use.py --only merge --size 160M     where libraries are most of memory

Seconds are CPU seconds of the whole process, user and system, one thread, medians of the repeats,
whose sides take turns; modules are compiled beforehand. ``own`` memory is what no file backs, and
``peak`` has the pages of files in it, too. With several ``--batches`` each side takes its fastest,
found by one run of each beforehand. The answers of ``predict``, ``chat`` and
the pipeline must be equal, the merged weights too but for rounding, and the mean length of sampled
answers must agree; else the script ends with an error. The model of 1 B takes 10 GB of disk.

Left out on purpose: cards, vLLM, and models that need another tokenizer.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from marks import Mark, add_option, note
from ppo_sides import ROOT, Models, installed, python_with, write_apart, write_models

TINY = ROOT / "runner" / "model" / "tiny"
PARTS = ("first", "merge", "samples")
QUESTION = "sort 3 1 2"
SIZES = {  # hidden, layers, of the MLP, vocabulary
    "160M": (768, 16, 3072, 32_000),
    "1B": (2048, 16, 8192, 32_000),
}
PROMPTS = 500
SAMPLES = 8
TOKENS = 64  # of a completion, at most
MEAN_TOKENS = 24
BATCHES = (256,)  # completions side by side; with 64 our side and generate are slower
LM_EVAL = "0.4.13"
TASK = "use_words"
FAR = 0.1  # of the mean length: two samples of 4,000 geometric lengths are nearer than this

PIPELINE = """
import sys
from transformers import pipeline
from transformers.utils.logging import disable_progress_bar
disable_progress_bar()
chat = [{"role": "user", "content": sys.argv[2]}]
answer = pipeline("text-generation", model=sys.argv[1], dtype="float32", device="cpu")
turns = answer(chat, max_new_tokens=1, do_sample=False)[0]["generated_text"]
print(turns[-1]["content"])
"""
MERGE = """
import sys
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer
source, folder, dtype = sys.argv[1:]
model = AutoPeftModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
model.merge_and_unload().save_pretrained(folder)
AutoTokenizer.from_pretrained(source).save_pretrained(folder)
"""
GENERATE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model_path, rows_path, written, batch, samples, tokens = sys.argv[1:]
batch, samples, tokens = int(batch), int(samples), int(tokens)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(model_path).eval()
tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
prompts = [json.loads(line)["prompt"] for line in open(rows_path)]
prompts.sort(key=len, reverse=True)
with open(written, "w") as file, torch.inference_mode():
    for start in range(0, len(prompts), batch // samples):
        texts = prompts[start : start + batch // samples]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        ids = model.generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=tokens, num_return_sequences=samples,
        )[:, inputs["input_ids"].shape[1] :]
        answers = tokenizer.batch_decode(ids, skip_special_tokens=True)
        for number, answer in enumerate(answers):
            prompt = texts[number // samples]
            reward = float(len(set(answer)))
            row = {"prompt": prompt, "completion": answer, "reward": reward}
            file.write(json.dumps(row) + "\\n")
"""
TASK_FILE = f"""
task: {TASK}
dataset_path: json
dataset_kwargs:
  data_files: {{test: ROWS}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: ""
repeats: {SAMPLES}
generation_kwargs:
  do_sample: true
  temperature: 1.0
  top_k: 0
  top_p: 1.0
  max_gen_toks: {TOKENS}
  until: ["<eos>"]
metric_list:
  - metric: bypass
"""


@dataclass(frozen=True)
class Cost:
    """The cost of one process."""

    seconds: float  # CPU, its children counted
    own: float  # megabytes that no file backs, at most
    peak: float  # megabytes, at most
    printed: str


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, help="5; of merge and samples 3")
    parser.add_argument("--size", choices=SIZES, default="1B", help="of the merged model")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"])
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--without-lm-eval", action="store_true")
    add_option(parser)
    options = parser.parse_args()
    compileall.compile_dir(ROOT / "runner", quiet=1)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        if "first" in options.only:
            measure_first(place, options.repeats or 5, options.marks)
        if "merge" in options.only:
            for dtype in options.dtype:
                measure_merge(place, options.size, dtype, options.repeats or 3, options.marks)
        if "samples" in options.only:
            has_harness = not options.without_lm_eval
            repeats = options.repeats or 3
            measure_samples(place, repeats, options.batches, has_harness, options.marks)


def run(words: Sequence[object], place: Path, python: Path | str = sys.executable) -> Cost:
    """The cost of a command of Python; an error where it fails."""
    settings = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(place / "hf"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    environment = os.environ | settings
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [str(python), *map(str, words)]
    with (place / "out.txt").open("w") as out, (place / "log.txt").open("w") as log:
        process = subprocess.Popen(command, cwd=place, env=environment, stdout=out, stderr=log)
        own: list[float] = [0.0]
        watch = threading.Thread(target=watch_memory, args=(process.pid, own))
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        watch.join()
    if process.returncode:
        log_text = (place / "log.txt").read_text()[-3000:]
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}:\n{log_text}")
    seconds = usage.ru_utime + usage.ru_stime
    return Cost(seconds, own[0], usage.ru_maxrss / 1024, (place / "out.txt").read_text())


def watch_memory(pid: int, own: list[float]) -> None:
    """Note the most memory without a file behind it that a process has while it lives."""
    status = Path(f"/proc/{pid}/status")
    while True:
        try:
            lines = status.read_text().splitlines()
        except OSError:
            return
        kilobytes = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
        if not kilobytes:  # it has ended
            return
        own[0] = max(own[0], int(kilobytes[0]) / 1024)
        time.sleep(0.01)


def take_turns(
    sides: dict[str, tuple[Sequence[object], Path | str]], place: Path, repeats: int
) -> dict[str, list[Cost]]:
    """The costs of each side's command, one side after the other, so many times."""
    costs: dict[str, list[Cost]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, (words, python) in sides.items():
            costs[side].append(run(words, place, python))
    return costs


def middle(costs: Sequence[Cost], name: str) -> float:
    return statistics.median(getattr(cost, name) for cost in costs)


# ---- the first token ---------------------------------------------------------------------------


def measure_first(place: Path, repeats: int, marks: Path | None) -> None:
    script = place / "pipeline.py"
    script.write_text(PIPELINE)
    model = ["model=hub", f"model.path={TINY}", "max_new_tokens=1", f"prompt={QUESTION}"]
    sides = {
        "pipeline": ([script, TINY, QUESTION], sys.executable),
        "predict": (["-m", "runner", "predict", *model], sys.executable),
        "chat": (["-m", "runner", "chat", *model, "temperature=0"], sys.executable),
    }
    take_turns(sides, place, 1)  # files are read from the disk
    costs = take_turns(sides, place, repeats)
    answers = {cost.printed.strip() for values in costs.values() for cost in values}
    if len(answers) != 1:
        sys.exit(f"the sides answered {sorted(answers)}")
    beside = middle(costs["pipeline"], "seconds")
    for verb in ("predict", "chat"):
        seconds = middle(costs[verb], "seconds")
        mark = Mark(
            f"first token of `{verb}`, tiny model, CPU s",
            seconds / beside,
            1.0,
            at_least=False,
            ours=f"{seconds:.2f}",
            beside=f"{beside:.2f} (pipeline of transformers)",
        )
        note(mark, marks)


# ---- merging -----------------------------------------------------------------------------------


def write_llama(folder: Path, size: str, dtype: str) -> None:
    """Write a model with random weights, and a tokenizer of words."""
    import torch
    from ppo_sides import PAD, STOP, save
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, layers, inner, vocabulary = SIZES[size]
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 256,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=STOP,
    )
    save(folder, LlamaForCausalLM(config))


def measure_merge(place: Path, size: str, dtype: str, repeats: int, marks: Path | None) -> None:
    source = place / f"base-{dtype}"
    write_apart(write_llama, source, size, dtype)
    rows = place / "pairs.jsonl"
    rows.write_text('{"prompt": "t3 t4", "completion": "t5 t6"}\n')
    outputs = place / f"outputs-{dtype}"
    training = ["trainer=sft", "peft=lora", "model=hub", f"model.path={source}"]
    training += [f"model.dtype={dtype}", "dataset=local", f"dataset.path={rows}"]
    training += ["dataset.split.eval=null", "metric=none", "learning_rate=0.01"]
    training += ["trainer.args.max_steps=1", "trainer.args.per_device_train_batch_size=1"]
    training += [f"output_root={outputs}", "name=merge"]
    run(["-m", "runner", *training], place)
    (folder,) = (outputs / "merge").iterdir()
    script = place / "merge.py"
    script.write_text(MERGE)
    theirs = place / f"theirs-{dtype}"
    ours = place / f"ours-{dtype}"
    sides = {
        "peft": ([script, folder / "model", theirs, dtype], sys.executable),
        "ours": (["-m", "runner", "export", folder, f"to={ours}"], sys.executable),
    }
    costs = take_turns(sides, place, repeats)
    run(["-c", COMPARE, theirs, ours, source], place)
    weights = sum(file.stat().st_size for file in source.glob("*.safetensors")) / 2**20
    print(f"\n{size} in {dtype}: {weights:.0f} MB of weights", flush=True)
    print("| side | CPU s | MB own | MB peak |\n|---|---|---|---|")
    for side, values in costs.items():
        cells = [f"{middle(values, name):.4g}" for name in ("seconds", "own", "peak")]
        print(f"| {side} | {' | '.join(cells)} |", flush=True)
    seconds = {side: middle(values, "seconds") for side, values in costs.items()}
    work = f"export and merge, {size}, {dtype}"
    mark = Mark(
        f"{work}, CPU s",
        seconds["ours"] / seconds["peft"],
        1.0,
        at_least=False,
        ours=f"{seconds['ours']:.1f}",
        beside=f"{seconds['peft']:.1f} (peft)",
    )
    note(mark, marks)
    for name, words in (("own", "without pages of files"), ("peak", "with pages of files")):
        memory = middle(costs["ours"], name)
        of_peft = middle(costs["peft"], name)
        mark = Mark(
            f"{work}, peak memory {words}, of the weights",
            memory / weights,
            1.2,
            at_least=False,
            ours=f"{memory:.0f} MB",
            beside=f"{of_peft:.0f} MB (peft), {weights:.0f} MB (weights)",
        )
        note(mark, marks)


# What both sides have written must be the same but for rounding, and not the base.
COMPARE = """
import sys
from pathlib import Path
import torch
from safetensors import safe_open
def read(folder):
    tensors = {}
    for file in Path(folder).glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}
    return tensors
theirs, ours, base = map(read, sys.argv[1:])
assert theirs.keys() == ours.keys(), theirs.keys() ^ ours.keys()
changed = 0
for name, tensor in theirs.items():
    torch.testing.assert_close(ours[name], tensor, rtol=2e-2, atol=1e-5)
    changed += not torch.equal(ours[name], base[name])
assert changed, "nothing was merged"
"""


# ---- samples -----------------------------------------------------------------------------------


def measure_samples(
    place: Path, repeats: int, batches: list[int], has_harness: bool, marks: Path | None
) -> None:
    models = Models(
        vocabulary=512,
        hidden=128,
        layers=4,
        heads=4,
        prompt_lengths=(16, 64),
        prompts=PROMPTS,
        mean_response=MEAN_TOKENS,
        scored=False,
    )
    write_apart(write_models, place / "models", models)
    policy = place / "models" / "policy"
    prompts = json.loads((place / "models" / "prompts.json").read_text())
    rows = place / "rows.jsonl"
    lines = [json.dumps({"prompt": " ".join(f"t{word}" for word in ids)}) for ids in prompts]
    rows.write_text("\n".join(lines) + "\n")
    generate = place / "generate.py"
    generate.write_text(GENERATE)
    tasks = place / "tasks"
    tasks.mkdir()
    (tasks / "task.yaml").write_text(TASK_FILE.replace("ROWS", str(rows)))

    words = ["evaluate", "model=hub", f"model.path={policy}", "dataset=local", f"n={SAMPLES}"]
    words += [f"dataset.path={rows}", "dataset.form=prompt", "dataset.split.eval=train"]
    words += ["metric=none", "reward=distinct_characters", f"max_new_tokens={TOKENS}"]

    def by_runner(batch: int) -> tuple[Sequence[object], Path | str]:
        settings = [f"batch_size={batch}", f"to={place}/ours.json"]
        return ["-m", "runner", *words, *settings], sys.executable

    def by_generate(batch: int) -> tuple[Sequence[object], Path | str]:
        settings = [policy, rows, place / "generated.jsonl", batch, SAMPLES, TOKENS]
        return [generate, *settings], sys.executable

    sides = {}
    for side, command in (("ours", by_runner), ("generate", by_generate)):
        sides[side] = command(fastest(place, side, batches, command))
    if has_harness:
        beside = [f"{name}=={installed(name)}" for name in ("torch", "transformers", "datasets")]
        python = python_with(f"lm-eval-{LM_EVAL}", [f"lm-eval=={LM_EVAL}", "accelerate", *beside])

        def by_harness(batch: int) -> tuple[Sequence[object], Path | str]:
            words = ["-m", "lm_eval", "run", "--model", "hf", "--tasks", TASK, "--device", "cpu"]
            words += ["--model_args", f"pretrained={policy},dtype=float32"]
            words += ["--include_path", str(tasks), "--batch_size", str(batch)]
            words += ["--output_path", str(place / "harness"), "--log_samples"]
            return words, python

        sides["lm-eval"] = by_harness(fastest(place, "lm-eval", batches, by_harness))
    costs = take_turns(sides, place, repeats)
    lengths = {"ours": mean_words(place / "ours.jsonl", "completion")}
    lengths["generate"] = mean_words(place / "generated.jsonl", "completion")
    if has_harness:
        newest = max(
            place.glob("harness/**/samples_*.jsonl"), key=lambda file: file.stat().st_mtime
        )
        lengths["lm-eval"] = mean_words(newest, "resps")
    print("\n| side | CPU s | words an answer | MB peak |\n|---|---|---|---|")
    for side, values in costs.items():
        cells = [f"{middle(values, 'seconds'):.4g}", f"{lengths[side]:.2f}"]
        print(f"| {side} | {' | '.join(cells)} | {middle(values, 'peak'):.4g} |", flush=True)
    if any(abs(length - lengths["ours"]) > FAR * lengths["ours"] for length in lengths.values()):
        sys.exit("the answers of the sides differ in length")
    seconds = {side: middle(values, "seconds") for side, values in costs.items()}
    for side in list(seconds)[1:]:
        mark = Mark(
            f"samples, {SAMPLES} of {PROMPTS} prompts, beside {side}",
            seconds[side] / seconds["ours"],
            1.5,
            ours=f"{seconds['ours']:.1f} s",
            beside=f"{seconds[side]:.1f} s",
        )
        note(mark, marks)


def fastest(
    place: Path,
    side: str,
    batches: Sequence[int],
    command: Callable[[int], tuple[Sequence[object], Path | str]],
) -> int:
    """The one of several batches with which a side is the fastest."""
    if len(batches) == 1:
        return batches[0]
    seconds = {}
    for batch in batches:
        words, python = command(batch)
        seconds[batch] = run(words, place, python).seconds
    print(f"{side}, CPU s by batch: {seconds}", flush=True)
    return min(seconds, key=seconds.__getitem__)


def mean_words(file: Path, column: str) -> float:
    """The mean number of words of the answers in a file, which holds SAMPLES for each prompt."""
    answers: list[str] = []
    for line in file.read_text().splitlines():
        value = json.loads(line)[column]
        if isinstance(value, str):
            answers.append(value)
        else:
            answers += value[0]
    if len(answers) != PROMPTS * SAMPLES:
        sys.exit(f"{file} holds {len(answers)} answers")
    return statistics.mean(len(answer.split()) for answer in answers)


if __name__ == "__main__":
    main()
