"""Answers of a trained model.

Independent of the rows beside a prompt, written once, and continued exactly.
"""

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file
from tiny_ppo import letter_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from runner.__main__ import main
from runner.errors import EnvironmentFault, FolderError
from runner.generate import sampler
from runner.generate.completion import Completion, TextGenerator, generate
from runner.generate.prediction import PredictionFile
from runner.generate.sampler import Sampling
from runner.io.files import PACKAGE, read_json, write_json
from runner.launch.compose.stages import compose_runs
from runner.model.saved import load_adapter_weights
from runner.run import Run, open_run
from runner.run.seal import seal
from runner.run.weights import find_weights

TINY = PACKAGE / "model" / "tiny"
SORT = "Sort these digits: "


@pytest.fixture(scope="module")
def tiny():
    return AutoModelForCausalLM.from_pretrained(TINY).eval(), AutoTokenizer.from_pretrained(TINY)


@pytest.mark.slow
@pytest.mark.dear("a process of its own, which imports torch")
def test_an_answer_needs_no_library_of_training():
    words = ["predict", "model=hub", f"model.path={TINY}", "prompt=x", "max_new_tokens=1"]
    libraries = ["peft", "trl", "datasets", "bitsandbytes", "transformers.trainer"]
    code = f"""
import sys
from runner.__main__ import main
code = main({words})
print(code, [name for name in {libraries} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


TEXTS = [f"{SORT}{digits}" for digits in ("3 1 2 4", "9 8 7 4", "5 5", "0", "1 2 3 4 5 6", "7 3")]
CHATS = [[{"role": "user", "content": text}] for text in TEXTS]


def complete(model, tokenizer, how, *, prompts=CHATS, seed=0, **settings) -> list[Completion]:
    """One completion for each prompt."""
    return TextGenerator(model, tokenizer, how, seed, **settings).complete_all(
        [{"prompt": prompt} for prompt in prompts]
    )


@pytest.fixture
def predict(tmp_path, monkeypatch, capsys):
    """Run the verb in a folder of the test's own; return the exit code and both streams."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0):
        done = main(["predict", *words])
        streams = capsys.readouterr()
        assert done == code, streams.err
        return streams

    return call


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


TOY = ("model=tiny", "dataset=toy_sort", "limit=12", "batch_size=5")


# --- One completion -------------------------------------------------------------------------------


def test_nothing_is_appended_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    file = PredictionFile(tmp_path / "rows.jsonl", "0123")
    file.partial.symlink_to(tmp_path / "mine")
    with pytest.raises(FolderError, match="a link to"), file.lock():
        file.append([{"row": 1}])
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("size", [1, 4])
def test_greedy_is_what_transformers_generates(tiny, size):
    model, tokenizer = tiny
    for completion in complete(model, tokenizer, Sampling(12, temperature=0, rows=size)):
        ids = torch.tensor([completion.prompt_ids])
        generated = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )
        assert completion.token_ids == generated[0, len(completion.prompt_ids) :].tolist()


def test_a_completion_does_not_depend_on_its_batch(tiny):
    alone, together = (
        complete(*tiny, Sampling(12, temperature=1.5, rows=rows), seed=3) for rows in (1, 6)
    )
    assert [completion.token_ids for completion in alone] == [
        completion.token_ids for completion in together
    ]
    assert len({tuple(completion.token_ids) for completion in alone}) == 6
    log_probabilities = [completion.log_probability for completion in together]
    assert [completion.log_probability for completion in alone] == pytest.approx(
        log_probabilities, abs=1e-4
    )


def test_padding_takes_no_position():
    # which learns a vector for each position; rotations only know distances
    model = letter_model("gpt2")
    prompts = [[3, 4, 5, 6, 7, 8, 9], [5], [7, 3], [4, 4, 4]]
    how = Sampling(9, temperature=0)
    noise = torch.zeros(4, 9)
    alone, together = (
        sampler.sample(model, prompts, replace(how, rows=rows), noise).tokens for rows in (1, 4)
    )
    assert [noise.tolist() for noise in alone] == [noise.tolist() for noise in together]


def test_other_seeds_rows_and_samples_are_other_completions(tiny):
    hot = Sampling(12, temperature=2.0)
    prompts = CHATS[:1] * 2

    def sample(seed):
        completions = complete(*tiny, hot, prompts=prompts, seed=seed, n=2)
        return [tuple(completion.token_ids) for completion in completions]

    first = sample(seed=0)
    assert sample(seed=0) == first
    assert len({*first, *sample(seed=1)}) == 8


@pytest.mark.parametrize(
    "how", [Sampling(9, temperature=0), Sampling(9, temperature=1.5, top_p=0.9)]
)
def test_both_engines_complete_alike(tiny, how, monkeypatch):
    longest = max(len(completion.prompt_ids) for completion in complete(*tiny, how))
    how = replace(how, max_length=2 + longest)
    by_loop = complete(*tiny, how)
    monkeypatch.setattr(sampler, "choose_engine", lambda model: "generate")
    by_generate = complete(*tiny, how)
    assert [completion.token_ids for completion in by_loop] == [
        completion.token_ids for completion in by_generate
    ]
    assert [completion.finish for completion in by_loop] == [
        completion.finish for completion in by_generate
    ]
    assert [completion.log_probability for completion in by_loop] == pytest.approx(
        [completion.log_probability for completion in by_generate], abs=1e-4
    )
    short = max(by_loop, key=lambda completion: len(completion.prompt_ids))
    # the longest prompt leaves room for no more
    assert len(short.token_ids) == 2
    assert short.finish == "length"


def test_the_log_probability_is_that_of_the_model_at_temperature_one(tiny):
    model, tokenizer = tiny
    for completion in complete(model, tokenizer, Sampling(8, temperature=3.0, top_k=20)):
        ids = torch.tensor([[*completion.prompt_ids, *completion.token_ids]])
        with torch.no_grad():
            log_probs = model(ids).logits[0, len(completion.prompt_ids) - 1 : -1].log_softmax(-1)
        expected = log_probs.gather(1, torch.tensor(completion.token_ids)[:, None]).sum().item()
        assert completion.log_probability == pytest.approx(expected, abs=1e-4)


def test_a_learnt_prompt_precedes_the_text(tiny):
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(TINY),
        PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    ).eval()
    (completion,) = complete(model, tiny[1], Sampling(6, temperature=0), prompts=CHATS[:1])
    ids = torch.tensor([completion.prompt_ids])
    expected = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False
    )
    assert completion.token_ids == expected[0, ids.shape[1] :].tolist()


@pytest.mark.slow
def test_a_batch_that_is_out_of_memory_is_halved(tiny):
    model = AutoModelForCausalLM.from_pretrained(TINY).eval()
    how = Sampling(6)
    expected = [completion.token_ids for completion in complete(model, tiny[1], how)]
    sizes = []
    state = torch.get_rng_state()

    def small_memory(module, args, kwargs):
        sizes.append(len(kwargs["input_ids"]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("no more")

    hook = model.register_forward_pre_hook(small_memory, with_kwargs=True)
    assert [completion.token_ids for completion in complete(model, tiny[1], how)] == expected
    assert sizes[0] == 6
    assert max(sizes[-3:]) <= 2
    assert torch.equal(state, torch.get_rng_state())
    model.ds_id = torch.nn.Parameter(torch.zeros(1))
    # as of a weight that DeepSpeed has spread over processes, which must all halve
    model.ds_id.ds_id = 0
    with pytest.raises(torch.OutOfMemoryError):
        complete(model, tiny[1], how)
    del model.ds_id
    # PPO remembers by itself that it has to halve, so that a resume does.
    prompts = [[1, 2]] * 6
    noise = torch.rand(6, 6)
    with pytest.raises(torch.OutOfMemoryError):
        sampler.sample(model, prompts, how, noise)
    hook.remove()
    model.register_forward_pre_hook(
        lambda *args: (_ for _ in ()).throw(torch.OutOfMemoryError("no more"))
    )
    with pytest.raises(EnvironmentFault, match="shorter completions"):
        complete(model, tiny[1], how)


@pytest.mark.parametrize("prompts", [CHATS, TEXTS])
def test_an_evaluation_samples_the_same_in_any_batch_and_leaves_no_trace(tiny, prompts):
    model = AutoModelForCausalLM.from_pretrained(TINY).train()
    state = torch.get_rng_state()
    side = tiny[1].padding_side
    expected = generate(model, tiny[1], prompts, max_new_tokens=8)
    assert len({*expected}) > 1
    assert [generate(model, tiny[1], prompts[:1], max_new_tokens=8)] == [expected[:1]]
    assert generate(model, tiny[1], prompts, max_new_tokens=8, batch_size=2) == expected
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert tiny[1].padding_side == side


# --- A file of rows -------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_row_has_its_lines_in_order(predict, tmp_path):
    predict(*TOY, "n=2", "to=out.jsonl")
    rows = rows_of(tmp_path / "out.jsonl")
    assert [(row["row"], row["sample"]) for row in rows] == list(
        itertools.product(range(12), (0, 1))
    )
    for row in rows:
        assert list(row) == [
            "row",
            "sample",
            "prompt",
            "completion",
            "finish",
            "log_probability",
            "tokens",
        ]
    shipped = rows_of(PACKAGE / "dataset" / "toy_sort" / "eval.jsonl")
    assert [row["prompt"] for row in rows[::2]] == [row["prompt"] for row in shipped[:12]]
    for row in rows:
        assert row["finish"] in ("stop", "length")
        assert row["log_probability"] < 0 < row["tokens"]


@pytest.mark.slow
def test_the_batch_size_changes_nothing(predict, tmp_path):
    predict(*TOY[:3], "temperature=1", "batch_size=1", "to=one.jsonl")
    predict(*TOY[:3], "temperature=1", "batch_size=12", "to=all.jsonl")
    one_by_one = [row["completion"] for row in rows_of(tmp_path / "one.jsonl")]
    together = [row["completion"] for row in rows_of(tmp_path / "all.jsonl")]
    assert one_by_one == together
    assert len(set(one_by_one)) > 6


@pytest.mark.slow
def test_a_killed_command_resumes_to_the_same_file(predict, tmp_path):
    predict(*TOY, "n=2", "seed=5", "to=whole.jsonl")
    complete_file = (tmp_path / "whole.jsonl").read_text()
    key = read_json(tmp_path / "whole.jsonl.json")["key"]
    lines = complete_file.splitlines(keepends=True)
    part = tmp_path / f".again.jsonl.{key}.part"
    part.write_text("".join(reversed(lines[:14])) + lines[20][:30])
    streams = predict(*TOY, "n=2", "seed=5", "to=again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == complete_file
    assert "of them from before" in streams.out
    assert not part.exists()
    before = (tmp_path / "again.jsonl").stat().st_mtime_ns
    assert "nothing was changed" in predict(*TOY, "n=2", "seed=5", "to=again.jsonl").out
    assert (tmp_path / "again.jsonl").stat().st_mtime_ns == before


def test_a_file_of_another_origin_is_left_alone(predict, tmp_path):
    (tmp_path / "mine.jsonl").write_text("mine\n")
    assert "to=<another file>" in predict(*TOY, "to=mine.jsonl", code=FolderError.code).err
    assert (tmp_path / "mine.jsonl").read_text() == "mine\n"


@pytest.mark.slow
def test_greedy_answers_to_one_prompt_are_the_same(predict, tmp_path):
    predict(*TOY[:3], "n=3", "temperature=0", "to=out.jsonl")
    rows = rows_of(tmp_path / "out.jsonl")
    assert len(rows) == 36
    for n in range(0, 36, 3):
        assert len({row["completion"] for row in rows[n : n + 3]}) == 1


@pytest.mark.slow
def test_a_file_of_texts_is_continued_as_text(predict, tmp_path, tiny):
    texts = ["1 2 3", "The food"]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    )
    predict("model=tiny", "file=rows.jsonl", "max_new_tokens=3", "to=out.jsonl")
    model, tokenizer = tiny
    for row, text in zip(rows_of(tmp_path / "out.jsonl"), texts, strict=True):
        batch = tokenizer(text, return_tensors="pt")
        generated = model.generate(**batch, max_new_tokens=3, do_sample=False)[
            0, batch["input_ids"].shape[1] :
        ]
        assert (row["prompt"], row["completion"]) == (
            text,
            tokenizer.decode(generated, skip_special_tokens=True),
        )


@pytest.mark.slow
def test_a_changed_file_is_another_prediction(predict, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1 2"}\n')
    predict("model=tiny", "file=rows.jsonl", "max_new_tokens=2")
    rows.write_text('{"prompt": "1 2"}\n{"prompt": "3"}\n')
    predict("model=tiny", "file=rows.jsonl", "max_new_tokens=2")
    files = sorted(
        len(rows_of(path)) for path in (tmp_path / "outputs/predictions/tiny").glob("rows-*.jsonl")
    )
    assert files == [1, 2]


@pytest.mark.slow
def test_a_prompt_that_leaves_no_room_is_refused(predict, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1 " * 1100}) + "\n")
    assert "the 1024 that the model holds" in predict("model=tiny", "file=rows.jsonl", code=2).err


# --- One prompt -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_prompt_prints_the_completion_alone(predict):
    streams = predict("model=tiny", f"prompt={SORT}3 1 2 4")
    assert streams.out == "1 2 3 4\n"


@pytest.mark.slow
def test_a_prompt_may_be_continued_as_text(predict, tiny):
    streams = predict("model=tiny", "prompt=1 2 3", "as=text", "max_new_tokens=3")
    model, tokenizer = tiny
    generated = model.generate(
        **tokenizer("1 2 3", return_tensors="pt"), max_new_tokens=3, do_sample=False
    )[0]
    text = tokenizer.decode(
        generated[len(tokenizer("1 2 3")["input_ids"]) :], skip_special_tokens=True
    )
    assert streams.out == f"{text}\n"


# --- What is asked --------------------------------------------------------------------------------


def test_all_wrong_words_are_reported_at_once(predict):
    streams = predict(
        "model=tiny", "temprature=1", "n=0", "top_p=2", "trainer.args.max_steps=3", code=2
    ).err
    assert "4 faults" in streams
    assert "temperature=1" in streams
    assert "a key of training" in streams


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["prompt=x"], "a run, or a model"),
        (["model=tiny", "prompt=x", "file=rows.jsonl"], "leave the other out"),
        (["model=tiny", "prompt=x", "completion=y"], "a language model writes it"),
        (["model=tiny", "head=score", "prompt=x"], 'completion="<text>"'),
        (["model=tiny", "dataset=toy_sort", "dataset.pth=x"], "dataset.path"),
        (["model=tiny", "dataset=toy_sort", "dataset._target_=os.system"], "may not run"),
        (["model=tiny", "dataset=toy_sort", "set=nope"], "no rows in nope"),
        (
            ["model=tiny", "model.trust_remote_code=yes", "dataset=toy_sort"],
            "model.trust_remote_code",
        ),
    ],
)
def test_words_that_cannot_work_are_refused(predict, words, told):
    assert told in predict(*words, code=2).err


def test_a_missing_device_is_reported(predict):
    streams = predict(
        "model=tiny", "model.device_map={lm_head: cuda:9, model: cpu}", "prompt=x", code=5
    ).err
    assert "cuda:9, but" in streams
    assert "model.device_map=null" in streams


@pytest.fixture
def laid(tmp_path, monkeypatch):
    """A run folder without any training."""
    monkeypatch.chdir(tmp_path)
    (composed,) = compose_runs(["trainer=sft", "model=tiny", "dataset=toy_sort", "name=laid"])
    return open_run(composed.cfg, composed.overrides)


def lay_checkpoint(run: Run, step: int, best: int | None = None, sealed: bool = True) -> Path:
    folder = run.checkpoints / f"checkpoint-{step}"
    named = f"/elsewhere/checkpoints/checkpoint-{best}" if best else None
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "trainer_state.json", {"best_model_checkpoint": named, "global_step": step})
    if sealed:
        seal(folder)
    return folder


@pytest.mark.slow
def test_the_weights_that_are_meant(laid):
    with pytest.raises(FolderError, match="checkpoint=start"):
        find_weights(laid, None)
    lay_checkpoint(laid, 2)
    lay_checkpoint(laid, 4)
    lay_checkpoint(laid, 6, sealed=False)
    assert [find_weights(laid, wish).name for wish in (None, "last", "2")] == [
        "checkpoint-4",
        "checkpoint-4",
        "checkpoint-2",
    ]
    with pytest.raises(FolderError, match="one of 2, 4"):
        find_weights(laid, "6")
    lay_checkpoint(laid, 8, best=2)
    assert [find_weights(laid, wish).name for wish in (None, "best", "last")] == [
        "checkpoint-2",
        "checkpoint-2",
        "checkpoint-8",
    ]
    (laid.checkpoints / "checkpoint-2" / "trainer_state.json").write_text("{}")
    assert find_weights(laid, None).name == "checkpoint-8"
    laid.model.mkdir()
    write_json(laid.model / "config.json", {})
    seal(laid.model)
    assert find_weights(laid, "model").folder == laid.model
    assert find_weights(laid, None).name == "checkpoint-8"
    laid.set_status("finished")
    assert find_weights(laid, None).name == "model"
    assert find_weights(laid, "start").folder is None
    assert (laid.checkpoints / "checkpoint-6").is_dir()


def test_weights_that_only_their_trainer_reads_are_refused(predict, laid):
    folder = lay_checkpoint(laid, 2, sealed=False)
    (folder / "model.safetensors").touch()
    write_json(folder / "ppo_state.json", {})
    seal(folder)
    assert "checkpoint=model" in predict(str(laid), "prompt=x", code=FolderError.code).err


@pytest.mark.slow
def test_a_run_answers_from_its_frozen_configuration(predict, laid):
    predict(
        "laid",
        "checkpoint=start",
        "dataset.limit.eval=3",
        "max_new_tokens=8",
        "dataset.split.eval=train",
    )
    (path,) = (laid.folder / "predictions").glob("toy_sort-start-*.jsonl")
    shipped = rows_of(PACKAGE / "dataset" / "toy_sort" / "train.jsonl")
    assert [row["prompt"] for row in rows_of(path)] == [row["prompt"] for row in shipped[:3]]


@pytest.mark.slow
def test_a_typed_prompt_is_what_the_runs_own_samples_were(predict, laid):
    asked = (str(laid.folder), "checkpoint=start", "prompt=1 2 3", "max_new_tokens=4")
    chat, text = (predict(*asked, f"as={kind}").out for kind in ("chat", "text"))
    assert chat != text
    assert predict(*asked).out == chat
    (laid.folder / "samples.jsonl").write_text('{"step": 0, "prompt": "4 5", "completion": "6"}\n')
    assert predict(*asked).out == text


@pytest.mark.parametrize("continued", [False, True])
def test_an_adapter_of_a_checkpoint_is_put_on_what_the_training_began_with(tmp_path, continued):
    def adapted(seed: int):
        torch.manual_seed(seed)
        how = LoraConfig(
            task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False
        )
        return get_peft_model(AutoModelForCausalLM.from_pretrained(TINY), how).eval()

    trained = adapted(1)
    trained.save_pretrained(tmp_path)
    start = adapted(0) if continued else AutoModelForCausalLM.from_pretrained(TINY)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before = start.eval()(ids).logits
        expected = trained(ids).logits
        after = load_adapter_weights(start, tmp_path).eval()(ids).logits
    assert torch.equal(after, expected)
    assert not torch.allclose(before, expected, atol=1e-2)


# --- Of trainings ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wrong_word_is_reported_before_torch_is_imported():
    code = (
        "import sys; from runner.__main__ import main; "
        "main(['predict', 'model=tiny', 'dataset=toy_sort', 'n=0']);"
        "main(['evaluate', 'nowhere']); print([name for name in ('torch', "
        "'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CALLBACKS = """
from pathlib import Path
from transformers import TrainerCallback

class Tell(TrainerCallback):
    def __init__(self, folder, eval_dataset):
        self.folder, self.steps, self.rows = folder, 0, len(eval_dataset)

    def on_prediction_step(self, args, state, control, **given):
        self.steps += 1

    def on_predict(self, args, state, control, metrics, model, **given):
        told = f"{self.steps} {self.rows} {sorted(metrics)} {type(model).__name__}"
        Path("told.txt").write_text(told)

class TellAgain(Tell):
    pass
"""


@pytest.mark.slow
def test_callbacks_hear_of_a_prediction_and_logits_are_written(predict, tmp_path, monkeypatch):
    (tmp_path / "my_callbacks.py").write_text(CALLBACKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = (
        "callback._target_=my_callbacks.TellAgain",
        "allow=[my_callbacks]",
        "logits=true",
        "to=out.1",
    )
    predict("model=tiny", "dataset=toy_sort", "limit=5", "batch_size=2", *words)
    names = ["test_runtime", "test_samples", "test_stopped", "test_tokens"]
    assert Path("told.txt").read_text() == f"3 5 {names} LlamaForCausalLM"
    for row in rows_of(tmp_path / "out.1"):
        logits = load_file(f"out.1.logits/{row['row']}-0.safetensors")
        picked = logits["logits"].log_softmax(-1).gather(-1, logits["token_ids"][:, None])
        assert len(picked) == row["tokens"]
        assert picked.sum().item() == pytest.approx(row["log_probability"], abs=1e-4)


def test_logits_are_of_rows_that_a_language_model_answers(predict):
    assert (
        "true together with prompt"
        in predict("model=tiny", "prompt=hello", "logits=true", code=2).err
    )


@pytest.mark.slow
def test_a_policy_of_ppo_with_an_adapter_answers_from_its_checkpoints(train, predict):
    words = ["trainer=ppo", "peft=lora", "dataset=toy_sort", "metric=none", "learning_rate=3e-2"]
    # of a rate so high that the answers change within two steps
    words.append("tolerate.ended_worse=true")
    limits = ["dataset.limit.train=64", "dataset.limit.eval=8", "trainer.args.max_steps=4"]
    saves = ["trainer.args.save_strategy=steps", "trainer.args.save_steps=2", "model=tiny"]
    run = train(*words, *limits, *saves).run
    answers = {}
    for wish in ("start", "2", "last", "model"):
        predict(str(run.folder), f"checkpoint={wish}", f"to={wish}.jsonl", "temperature=1")
        answers[wish] = [
            (row["completion"], row["log_probability"]) for row in rows_of(Path(f"{wish}.jsonl"))
        ]
    assert answers["last"] == answers["model"]
    assert len(answers["model"]) == 8
    assert len({tuple(rows) for rows in answers.values()}) == 3


@pytest.mark.slow
def test_a_reward_model_scores_answers(train, predict):
    words = [
        "trainer=reward",
        "model=tiny",
        "dataset=toy_sort",
        "trainer.args.max_steps=10",
        "dataset.limit.train=320",
        "dataset.limit.eval=16",
    ]
    run = train(*words, "learning_rate=1e-3").run
    predict(str(run.folder), "to=scores.jsonl", "batch_size=3")
    rows = rows_of(Path("scores.jsonl"))
    assert [row["label"] for row in rows] == [True, False] * 16
    wins = sum(
        good["score"] > bad["score"] for good, bad in zip(rows[::2], rows[1::2], strict=True)
    )
    assert wins / 16 == pytest.approx(
        read_json(run.folder / "scores.json")["after"]["eval_accuracy"]
    )
    answer = rows[0]["completion"][0]["content"]
    streams = predict(
        str(run.folder), f"prompt={rows[0]['prompt'][0]['content']}", f"completion={answer}"
    )
    assert float(streams.out) == pytest.approx(rows[0]["score"], abs=1e-4)
