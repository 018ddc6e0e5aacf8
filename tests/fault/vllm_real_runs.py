"""Cases of ``vllm_real.py``: trainings that sample by vLLM, and the verbs that ask a model.

A case fails by an exception, most of them by an AssertionError with what was seen instead.
"""

from __future__ import annotations

import getpass
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas
import torch
from kinds import Kind
from test_agent import CALLS, MINE
from tiny import tiny_tokenizer
from transformers import AutoModelForCausalLM
from vllm_real_bench import (
    EXACT,
    FEW,
    GROUPS,
    HALF,
    LEARNING,
    PPO,
    TRL,
    TWO_STEPS,
    Bench,
    error_lines,
    on_server,
    shipped_model,
    told_ratios,
)

from runner.io.files import read_rows, sha256
from runner.model.chat import set_template
from runner.run.history import read_metrics

VARIANTS = tuple((mode, tuner) for mode in ("colocate", "server") for tuner in ("whole", "lora"))


CODE_OF_TORCH = f"torchinductor_{getpass.getuser()}"  # its cache of compiled code

# --- PPO -----------------------------------------------------------------------------------------


def ppo(bench: Bench) -> str:
    ended = bench.train("ppo", *PPO, TWO_STEPS)
    log = (bench.run("ppo") / "log.txt").read_text()
    assert "vllm.v1" in log, "no records of vLLM in log.txt"
    assert "vllm" not in ended.text.replace("outputs/", ""), ended.text
    return f"{told_ratios(bench, 'ppo')}; vLLM's records are in log.txt, not on the terminal"


def ppo_lora(bench: Bench) -> str:
    bench.train("ppo_lora", *PPO, TWO_STEPS, "peft=lora")
    return told_ratios(bench, "ppo_lora")


def ppo_again(bench: Bench) -> str:
    """The same command under another name."""
    names = ("ppo", "ppo_again")
    for name in names:
        bench.train(name, *PPO, TWO_STEPS)
    samples = [read_rows(bench.run(name) / "checkpoints" / "completions.jsonl") for name in names]
    assert samples[0] == samples[1]
    weights = {sha256(bench.run(name) / "model" / "model.safetensors") for name in names}
    assert len(weights) == 1, "other weights"
    return f"the same {len(samples[0])} samples and the same bits of the model"


def ppo_two(bench: Bench) -> str:
    """Two processes, an engine in each."""
    bench.train("ppo_two", *PPO, TWO_STEPS, "launcher.num_processes=2")
    return told_ratios(bench, "ppo_two")


def ppo_fsdp2(bench: Bench) -> str:
    words = ("launcher.num_processes=2", "strategy=fsdp2", "trainer.args.bf16=false")
    bench.train("ppo_fsdp2", *PPO, TWO_STEPS, *words, RUNNER_TEST_FSDP_ON_CPU="1")
    return told_ratios(bench, "ppo_fsdp2")


def ppo_tensor_parallel(bench: Bench) -> str:
    """Two processes that share one model of vLLM."""
    words = ("launcher.num_processes=2", "trainer.args.vllm_tensor_parallel_size=2")
    bench.train("ppo_parallel", *PPO, TWO_STEPS, *words)
    return told_ratios(bench, "ppo_parallel")


def ppo_server(bench: Bench) -> str:
    bench.train("ppo_server", *PPO, TWO_STEPS, *on_server(bench.server()))
    return told_ratios(bench, "ppo_server")


def ppo_server_lora(bench: Bench) -> str:
    words = on_server(bench.server())
    bench.train("ppo_server_lora", *PPO, TWO_STEPS, "peft=lora", *words)
    return told_ratios(bench, "ppo_server_lora")


def ppo_server_two(bench: Bench) -> str:
    words = ("launcher.num_processes=2", *on_server(bench.server()))
    bench.train("ppo_server_two", *PPO, TWO_STEPS, *words)
    return told_ratios(bench, "ppo_server_two")


def sleep_mode(bench: Bench) -> str:
    word = "trainer.args.vllm_enable_sleep_mode=true"
    return error_lines(bench.command(*PPO, word, "name=sleep", code=5))


def too_short(bench: Bench) -> str:
    """Room for fewer tokens than a prompt and its completion have."""
    word = "trainer.args.vllm_max_model_length=20"
    return error_lines(bench.command(*PPO, TWO_STEPS, word, "name=short", code=2))


# --- TRL's trainers ------------------------------------------------------------------------------


# Of each vLLM that a process starts, some weights are compared with those of the policy.
COMPARE = """
import json
import torch
import vllm
from transformers import TrainerCallback

NAMES = ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight")
ENGINES = []
start = vllm.LLM.__init__

def start_and_keep(self, *args, **kwargs):
    ENGINES.append(self)
    start(self, *args, **kwargs)

vllm.LLM.__init__ = start_and_keep

class Compare(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.first = model.model.embed_tokens.weight.detach().clone()

    # The step's completions are sampled, and the weights are still those that they came from.
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        (engine,) = ENGINES
        runner = engine.llm_engine.model_executor.driver_worker.model_runner
        theirs = dict(runner.model.named_parameters())
        ours = dict(model.named_parameters())
        far = 0.0
        for name in NAMES:
            weight = ours[name].to(theirs[name].dtype)
            far = max(far, (weight - theirs[name][:len(weight)]).abs().max().item())
        moved = (ours[NAMES[0]] - self.first).abs().max().item()
        with open("compared.jsonl", "a") as file:
            file.write(json.dumps({"far": far, "moved": moved}) + chr(10))
"""


def train_by_trl(bench: Bench, trainer: str, *words: str) -> str:
    """Four steps of a trainer of TRL; before each update vLLM has the weights of the policy."""
    (bench.folder / "mine_vllm.py").write_text(COMPARE)
    compared = bench.folder / "compared.jsonl"
    compared.unlink(missing_ok=True)
    own = (
        "trainer.args.use_vllm=true",
        "trainer.args.vllm_mode=colocate",
        "trainer.args.max_steps=4",
        "learning_rate=1e-3",
        "tolerate.ended_worse=true",
        "callback.compare._target_=mine_vllm.Compare",
        "allow=[mine_vllm]",
        *words,
    )
    bench.train(trainer, *Kind(trainer, "vllm", " ".join(own)).words)
    lines = read_rows(compared)
    moved = max(line["moved"] for line in lines)
    assert len(lines) == 4 and moved > 3e-4, lines
    assert max(line["far"] for line in lines) == 0, lines
    return f"at each of 4 steps vLLM had the weights of the policy, which moved by {moved:.0e}"


def grpo(bench: Bench) -> str:
    seen = train_by_trl(bench, "grpo", "trainer.args.log_completions=true")
    answers = defaultdict(set)
    count = 0
    for path in bench.run("grpo").rglob("completions_*.parquet"):
        for row in pandas.read_parquet(path).to_dict("records"):
            answers[str(row["prompt"]), row["step"]].add(str(row["completion"]))
            count += 1
    several = sum(len(texts) > 1 for texts in answers.values())
    assert several, answers
    found = f"{several} of {len(answers)} prompts have two different completions ({count} in all)"
    return f"{seen}; {told_ratios(bench, 'grpo', HALF)} in bfloat16; {found}"


def rloo(bench: Bench) -> str:
    return train_by_trl(bench, "rloo")


def online_dpo(bench: Bench) -> str:
    return train_by_trl(bench, "online_dpo")


def distillation(bench: Bench) -> str:
    """A teacher of other weights, as its loss would be 0 otherwise."""
    teacher = bench.folder / "teacher"
    shutil.copytree(shipped_model(), teacher)
    model = AutoModelForCausalLM.from_pretrained(teacher)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    model.save_pretrained(teacher)
    return train_by_trl(bench, "distillation", f"trainer.teacher_model.path={teacher}")


def gold(bench: Bench) -> str:
    """With completions of the student's at each step, and not half of the time."""
    return train_by_trl(bench, "gold", "trainer.args.lmbda=1.0")


def iw_opd(bench: Bench) -> str:
    return train_by_trl(bench, "iw_opd")


def sdft(bench: Bench) -> str:
    return train_by_trl(bench, "sdft")


def sdpo(bench: Bench) -> str:
    return train_by_trl(bench, "sdpo")


def grpo_lora(bench: Bench) -> str:
    bench.train("grpo_lora", "trainer=grpo", *TRL, *GROUPS, *LEARNING, "peft=lora")
    return f"{told_ratios(bench, 'grpo_lora', HALF)} in bfloat16"


def trl_server(bench: Bench) -> str:
    words = ("trainer=grpo", *TRL, *GROUPS, "trainer.args.vllm_mode=server", "name=trl_server")
    return error_lines(bench.command(*words, code=5))


# --- What an engine answers ----------------------------------------------------------------------


def of_variants(bench: Bench, tell: Callable[[Mapping[str, Any]], str]) -> str:
    """A finding in this process and by a server, of a whole policy and of one with LoRA."""
    parts = []
    for mode, tuner in VARIANTS:
        parts.append(f"{mode}, {tuner}: {tell(bench.measure(mode, tuner))}")
    return "; ".join(parts)


def logprobs(bench: Bench) -> str:
    """Log-probabilities of the sampled tokens beside those of a plain forward pass."""

    def tell(found: Mapping[str, Any]) -> str:
        assert found["logprobs"] < EXACT, found
        return f"{found['logprobs']:.0e} over {found['tokens']} tokens"

    return of_variants(bench, tell)


def importance(bench: Bench) -> str:
    """The ratios of ten steps."""

    def tell(found: Mapping[str, Any]) -> str:
        assert 1 - EXACT < found["ratio_min"] <= found["ratio_max"] < 1 + EXACT, found
        return f"{found['ratio_min']:.6f} to {found['ratio_max']:.6f}"

    return of_variants(bench, tell)


def greedy(bench: Bench) -> str:
    """After ten steps the likeliest tokens are those of the trained policy."""

    def tell(found: Mapping[str, Any]) -> str:
        assert found["tied"] and found["greedy_changed"] > 4, found
        assert found["greedy_equal"] == found["prompts"], found
        return (
            f"{found['greedy_equal']} of {found['prompts']} equal, "
            f"{found['greedy_changed']} others than before"
        )

    return of_variants(bench, tell)


def stops(bench: Bench) -> str:
    def tell(found: Mapping[str, Any]) -> str:
        assert found["stopped"] and not found["wrong_ends"], found
        return f"{found['stopped']} end with a stop token, {found['cut_off']} at the length"

    return of_variants(bench, tell)


def seeds(bench: Bench) -> str:
    """One prompt many times: noise of its own gives a completion of its own, twice the same."""

    def tell(found: Mapping[str, Any]) -> str:
        assert found["distinct"] > 4 and found["of_one_seed"] == 1, found
        assert found["repeated"] == 16, found
        return f"{found['distinct']} different of 16, 1 of one seed, 16 the same again"

    return of_variants(bench, tell)


def order(bench: Bench) -> str:
    """Rows beside a prompt, and its place among them, change nothing."""

    def tell(found: Mapping[str, Any]) -> str:
        assert found["order_equal"] == found["prompts"] and found["alone_equal"] == 4, found
        return f"{found['order_equal']} of {found['prompts']} in reverse, 4 of 4 alone"

    return of_variants(bench, tell)


# --- Chats and tools -----------------------------------------------------------------------------


def write_chats(bench: Bench) -> Path:
    """Rows whose first turn is the system's."""
    path = bench.folder / "chats.jsonl"
    lines = []
    for n in range(16):
        turns = [
            {"role": "system", "content": f"You sort digits. {n}"},
            {"role": "user", "content": f"Sort these digits: {n % 10} 3 {n % 7}"},
        ]
        lines.append(json.dumps({"prompt": turns, "digits": f"{n % 10} 3 {n % 7}"}) + "\n")
    path.write_text("".join(lines))
    return path


def system(bench: Bench) -> str:
    """Prompts that begin with a turn of the system."""
    path = write_chats(bench)
    rows = ("dataset=local", f"dataset.path={path}", "dataset.form=prompt", "reward=sorted_digits")
    rows = (*rows, "dataset.split.eval=train[:4]", "template=chatml")
    bench.train("system", *PPO, TWO_STEPS, *rows, *on_server(bench.server()))
    samples = read_rows(bench.run("system") / "checkpoints" / "completions.jsonl")
    roles = {turn["role"] for row in samples for turn in row["prompt"]}
    assert roles == {"system", "user"}, samples
    return f"{told_ratios(bench, 'system')} with turns of system and user"


def tools_of(bench: Bench) -> tuple[str, ...]:
    """The words of a run in which what begins with ``The`` is a call of a tool."""
    (bench.folder / "mine.py").write_text(MINE)
    template = bench.folder / "own.jinja"
    tokenizer = tiny_tokenizer()
    set_template(tokenizer, "brief")
    template.write_text(tokenizer.chat_template)
    template.with_suffix(".response.json").write_text(json.dumps(CALLS))
    return (
        "dataset=toy_reviews",
        f"model.tokenizer.chat_template={template}",
        "allow=[mine]",
        "trainer.tools=[{_target_:mine.look,source:guide}]",
        "trainer.args.response_length=96",
        "trainer.args.max_tool_calling_iterations=2",
    )


def check_tools(bench: Bench, name: str) -> str:
    lines = [line for line in read_metrics(bench.run(name) / "metrics.jsonl") if "loss" in line]
    frequency = lines[0]["tools/call_frequency"]
    assert frequency > 0.5, lines[0]
    turns = lines[0]["tools/turns"]
    return f"{told_ratios(bench, name)}, {frequency:.2f} calls and {turns:.2f} turns a completion"


def tools(bench: Bench) -> str:
    bench.train("tools", *PPO, TWO_STEPS, *tools_of(bench))
    return check_tools(bench, "tools")


def tools_server(bench: Bench) -> str:
    bench.train("tools_server", *PPO, TWO_STEPS, *tools_of(bench), *on_server(bench.server()))
    return check_tools(bench, "tools_server")


# --- predict and evaluate ------------------------------------------------------------------------


def answers_of(bench: Bench, *words: str) -> tuple[list[Any], float]:
    """The rows that predict writes, and tokens per second."""
    file = bench.folder / "answers.jsonl"
    file.unlink(missing_ok=True)
    ended = bench.command("predict", *words, f"to={file}")
    rows = read_rows(file)
    seconds = re.search(r"in ([\d.,]+) (s|min)", ended.stdout)
    assert seconds, ended.stdout
    count = sum(row["tokens"] for row in rows)
    return rows, count / float(seconds[1].replace(",", ""))


def predict(bench: Bench) -> str:
    """Greedily the texts of our own sampler."""
    words = ("model=tiny", "dataset=toy_reviews", "limit=100", "max_new_tokens=48")
    ours, our_speed = answers_of(bench, *words)
    theirs, their_speed = answers_of(bench, *words, "engine=vllm")
    equal = 0
    distance = 0.0
    for our, their in zip(ours, theirs, strict=True):
        equal += our["completion"] == their["completion"]
        distance = max(distance, abs(our["log_probability"] - their["log_probability"]))
    assert equal == len(ours), f"{equal} of {len(ours)} equal"
    assert distance < 1e-3, distance
    return (
        f"{equal} of {len(ours)} texts equal, log-probabilities within {distance:.0e}; "
        f"{our_speed:.0f} tokens/s by ours, {their_speed:.0f} by vLLM with its start"
    )


def predict_several(bench: Bench) -> str:
    words = ("model=tiny", "dataset=toy_sort", "limit=8", "n=4", "engine=vllm")
    first, _ = answers_of(bench, *words)
    again, _ = answers_of(bench, *words, "batch_size=3")
    assert [row["completion"] for row in first] == [row["completion"] for row in again]
    answers = defaultdict(set)
    for row in first:
        answers[row["row"]].add(row["completion"])
    several = sum(len(texts) > 1 for texts in answers.values())
    assert several > 2, answers
    return f"4 samples of 8 prompts, {several} prompts with different ones; the same again"


def predict_long(bench: Bench) -> str:
    """More tokens of prompts than vLLM reads in one step."""
    path = bench.folder / "long.jsonl"
    lines = []
    for n in range(24):
        digits = " ".join(str((n + place * place) % 10) for place in range(220))
        turns = [{"role": "user", "content": f"Sort these digits: {digits}"}]
        lines.append(json.dumps({"prompt": turns}) + "\n")
    path.write_text("".join(lines))
    words = ("model=tiny", f"file={path}", "max_new_tokens=16")
    ours, _ = answers_of(bench, *words)
    theirs, _ = answers_of(bench, *words, "engine=vllm")
    assert [row["completion"] for row in ours] == [row["completion"] for row in theirs]
    bench.command("predict", *words, "engine=vllm", "n=2", f"to={bench.folder / 'sampled.jsonl'}")
    return f"{len(ours)} of {len(ours)} texts equal, and 2 samples of each"


def held_out(bench: Bench) -> str:
    """The held-out answers of a trainer that samples none itself."""
    words = [word for word in FEW if word != "metric=none"]
    bench.train("held_out", "trainer=sft", *words, "metric=exact", "engine=vllm", TWO_STEPS)
    lines = [
        line
        for line in read_metrics(bench.run("held_out") / "metrics.jsonl")
        if "eval_exact" in line
    ]
    assert [line["step"] for line in lines] == [0, 2], lines
    return f"eval_exact {lines[0]['eval_exact']:.2f} before and {lines[1]['eval_exact']:.2f} after"


def predict_system(bench: Bench) -> str:
    """Chats with a turn of the system, by a trained adapter."""
    bench.train("ppo_lora", *PPO, TWO_STEPS, "peft=lora")
    rows = ("dataset=local", f"dataset.path={write_chats(bench)}", "dataset.form=prompt")
    rows = (*rows, "dataset.split.eval=train")
    run = str(bench.run("ppo_lora"))
    ours, _ = answers_of(bench, run, *rows)
    theirs, _ = answers_of(bench, run, *rows, "engine=vllm")
    assert [row["completion"] for row in ours] == [row["completion"] for row in theirs]
    return f"{len(ours)} of {len(ours)} texts of a run with LoRA equal"


def evaluate(bench: Bench) -> str:
    words = ("evaluate", "model=tiny", "dataset=toy_sort", "limit=64", "temperature=0")
    tables = []
    for engine in ("auto", "vllm"):
        ended = bench.command(*words, f"engine={engine}", f"to={bench.folder / engine}.json")
        lines = [line for line in ended.stdout.splitlines() if line.startswith("  ")]
        tables.append(lines)
    assert tables[0] == tables[1], tables
    shown = ", ".join(" ".join(line.split()) for line in tables[0][1:])
    return f"the same metrics by both: {shown}"


# --- Ends ----------------------------------------------------------------------------------------


def resume(bench: Bench) -> str:
    """A run with an engine in its process is killed, and goes on to the same bits."""
    words = (*PPO, "trainer.args.max_steps=12", "trainer.args.save_steps=2")
    bench.train("alone", *words)
    started = bench.start(*words, "name=resumed")
    bench.wait_for_step("resumed", 5, started)
    started.kill()
    bench.wait(started)
    resumed = bench.command(*words, "name=resumed")
    assert "resumes" in resumed.text, resumed.text
    paths = [bench.run(name) / "model" / "model.safetensors" for name in ("alone", "resumed")]
    assert len({sha256(path) for path in paths}) == 1, "other bits"
    return "kill -9 after step 5; went on, and has the bits of an undisturbed run"


def crash(bench: Bench) -> str:
    """vLLM itself fails as it starts: more memory is asked for than there is."""
    ended = bench.wait(bench.start(*PPO, TWO_STEPS, "name=crash", VLLM_CPU_KVCACHE_SPACE="100000"))
    assert ended.code in (2, 5), ended.text
    assert "I/O operation on closed file" not in ended.text, ended.text
    assert "Traceback" not in ended.text, ended.text
    told = error_lines(ended)
    assert "emory" in told, ended.text
    return f"exit {ended.code}: {told}".replace(str(bench.folder), "")


def crash_grpo(bench: Bench) -> str:
    ended = bench.wait(
        bench.start(
            "trainer=grpo", *TRL, *GROUPS, "name=crash_grpo", VLLM_CPU_KVCACHE_SPACE="100000"
        )
    )
    assert ended.code in (2, 5), ended.text
    assert "I/O operation on closed file" not in ended.text, ended.text
    told = error_lines(ended)
    assert "emory" in told, ended.text
    return f"exit {ended.code}: {told}".replace(str(bench.folder), "")


def nothing_left(bench: Bench) -> str:
    """What the cases so far have left in the home, in the temporary folder and beside the runs."""
    left = [str(path) for path in bench.temporary.iterdir() if path.name != CODE_OF_TORCH]
    left += [str(path) for path in bench.home.glob(".config/vllm/*")]
    left += [str(path) for path in bench.folder.rglob(".vllm-weights")]
    left += [str(path) for path in bench.folder.rglob("usage_stats.json")]
    assert not left, left
    count = len([*bench.folder.glob("outputs/*/*/config.yaml")])
    return f"after {count} runs: no temporary file, no weights, no telemetry"


CASES = (
    ppo,
    ppo_lora,
    ppo_again,
    ppo_two,
    ppo_fsdp2,
    ppo_tensor_parallel,
    ppo_server,
    ppo_server_lora,
    ppo_server_two,
    sleep_mode,
    too_short,
    grpo,
    grpo_lora,
    rloo,
    online_dpo,
    distillation,
    gold,
    iw_opd,
    sdft,
    sdpo,
    trl_server,
    logprobs,
    importance,
    greedy,
    stops,
    seeds,
    order,
    system,
    tools,
    tools_server,
    predict,
    predict_several,
    predict_long,
    held_out,
    predict_system,
    evaluate,
    resume,
    crash,
    crash_grpo,
)
LAST = (nothing_left,)  # looks at what the others have left
