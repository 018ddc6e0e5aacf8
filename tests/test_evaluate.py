"""The measures of a trained model, and the certainty of a comparison of two."""

import itertools
import json
import math
import shutil
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from runner.__main__ import main
from runner.command._words import read_command_line
from runner.errors import ConfigError
from runner.io.files import PACKAGE, read_json
from runner.launch.compose.stages import compose_runs
from runner.metric.ask import ask_live
from runner.metric.harness import _task_manager
from runner.metric.paired import compare, resampled_means
from runner.run import open_run
from runner.run.seal import seal
from runner.training.components.scorers import build_metrics
from runner.training.held_out_scores import held_out_scores

TINY = PACKAGE / "model" / "tiny"
TOY = ("model=tiny", "dataset=toy_sort", "limit=10", "batch_size=4")


@pytest.fixture
def evaluate(tmp_path, monkeypatch, capsys):
    """Run the verb in the test's own folder; return the figures, the completions, the output."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0):
        done = main(["evaluate", *words, "to=out.json"])
        streams = capsys.readouterr()
        assert done == code, streams.err
        lines = Path("out.jsonl").read_text().splitlines() if Path("out.jsonl").exists() else []
        return read_json(Path("out.json")) or {}, [json.loads(line) for line in lines], streams

    return call


@pytest.fixture
def laid(tmp_path, monkeypatch):
    """A run folder without any training."""
    monkeypatch.chdir(tmp_path)
    words = ["trainer=grpo", "model=tiny", "dataset=toy_sort", "name=laid", "dataset.limit.eval=8"]
    (composed,) = compose_runs(words)
    return open_run(composed.cfg, composed.overrides)


# --- Two models on the same prompts ---------------------------------------------------------------


def test_wins_ties_and_losses_are_counted():
    comparison = compare([1.0, 2.0, 3.0, 3.0], [0.0, 2.0, 5.0, 1.0])
    assert [comparison[name] for name in ("wins", "ties", "losses", "prompts")] == [2, 1, 1, 4]
    assert comparison["win_rate"] == 0.625
    assert comparison["difference"] == 0.25
    assert comparison["win_rate_interval"][0] < 0.625 < comparison["win_rate_interval"][1]


def test_the_bootstrap_is_what_all_resamples_by_hand_come_to():
    values = [0.0, 0.5, 1.0]
    by_hand = sorted(sum(drawn) / 3 for drawn in itertools.product(values, repeat=3))
    means = resampled_means(values, count=27_000, seed=1)
    for mean in sorted({round(outcome, 9) for outcome in by_hand}):
        share = sum(round(outcome, 9) == mean for outcome in by_hand) / 27
        assert np.isclose(means, mean).mean() == pytest.approx(share, abs=0.01)


def test_the_bootstrap_is_seeded_and_takes_pairs():
    values = np.random.default_rng(0).normal(size=50)
    assert (resampled_means(values, 100, seed=2) == resampled_means(values, 100, seed=2)).all()
    assert (resampled_means(values, 100, seed=2) != resampled_means(values, 100, seed=3)).any()
    # A term that both sides share changes neither figure, however large it is.
    shifted = compare(values + 1e6 * np.arange(50) + 0.5, values + 1e6 * np.arange(50))
    plain = compare(np.full(50, 0.5), np.zeros(50))
    assert shifted["difference_interval"] == pytest.approx(plain["difference_interval"], abs=1e-6)
    assert shifted["win_rate"] == 1.0


NORMAL = (0.2, "normal")
SKEWED = (math.exp(0.5), "lognormal")
HALVES = (0.05, "halves")


def draw(generator, kind, size):
    """Differences of two rewards, or with a number its wins and losses at such a win rate."""
    if kind == "normal":
        return generator.normal(0.2, 1, size=size)
    if kind == "lognormal":
        return generator.lognormal(0, 1, size=size)
    if kind == "halves":
        return generator.choice([0, 0.5, 1.0], p=[0.92, 0.06, 0.02], size=size)
    return np.where(generator.random(size) < kind, 1.0, -1.0)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("truth", "kind", "prompts", "least"),
    [
        (0.98, 0.98, 20, 0.92),  # the plain bootstrap covers the truth in .32 and .62 of these two
        (0.98, 0.98, 50, 0.9),
        (0.9, 0.9, 20, 0.92),
        (0.5, 0.5, 10, 0.92),
        (*NORMAL, 10, 0.92),
        (*NORMAL, 100, 0.92),
        (*SKEWED, 20, 0.88),
        (*HALVES, 50, 0.92),
    ],
)
def test_intervals_cover_the_truth_about_as_often_as_they_say(truth, kind, prompts, least):
    """Near 0 and 1 too, and from few prompts."""
    generator = np.random.default_rng(3)
    held = 0
    for trial in range(200):
        comparison = compare(draw(generator, kind, prompts), np.zeros(prompts), seed=trial)
        low, high = comparison[
            "difference_interval" if isinstance(kind, str) else "win_rate_interval"
        ]
        held += low <= truth <= high
    assert least <= held / 200


def test_the_interval_of_wins_is_wilsons_and_ties_narrow_it():
    for wins, prompts in ((0, 5), (7, 20), (20, 20)):
        share = wins / prompts
        z = 1.959964
        middle = (share + z**2 / 2 / prompts) / (1 + z**2 / prompts)
        half = (
            z
            / (1 + z**2 / prompts)
            * math.sqrt(share * (1 - share) / prompts + z**2 / 4 / prompts**2)
        )
        interval = compare([1.0] * wins + [0.0] * (prompts - wins), [0.5] * prompts)[
            "win_rate_interval"
        ]
        assert interval == pytest.approx([middle - half, middle + half], abs=1e-6)
    tied = [
        compare([0.5] * ties + [1.0, 0.0] * ((20 - ties) // 2), [0.5] * 20) for ties in (0, 10, 20)
    ]
    intervals = [figures["win_rate_interval"] for figures in tied]
    widths = [high - low for low, high in intervals]
    # that 20 are tied does not mean that all would be
    assert widths[0] > widths[1] > widths[2] > 0.1


# --- Figures --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_loss_and_perplexity_are_those_of_the_known_answers(evaluate):
    figures, _, _ = evaluate(*TOY, "metric=none")
    model = AutoModelForCausalLM.from_pretrained(TINY).eval()
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    losses = []
    for line in (PACKAGE / "dataset/toy_sort/eval.jsonl").read_text().splitlines()[:10]:
        row = json.loads(line)
        how = {"return_dict": False}
        before = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, **how)
        ids = torch.tensor([tokenizer.apply_chat_template(row["prompt"] + row["chosen"], **how)])
        with torch.no_grad():
            log_probs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        losses += (-log_probs[len(before) - 1 :]).tolist()
    assert figures["scores"]["eval_loss"] == pytest.approx(
        math.fsum(losses) / len(losses), rel=1e-5
    )
    assert figures["scores"]["eval_perplexity"] == pytest.approx(
        math.exp(figures["scores"]["eval_loss"])
    )


@pytest.mark.slow
def test_metrics_and_rewards_are_means_over_prompts_with_their_errors(evaluate):
    figures, rows, streams = evaluate(*TOY, "n=3", "temperature=2", "seed=4")
    assert [(row["row"], row["sample"]) for row in rows] == list(
        itertools.product(range(10), range(3))
    )
    by_row = np.array([row["reward"] for row in rows]).reshape(10, 3).mean(1)
    assert figures["scores"]["eval_reward"] == pytest.approx(by_row.mean())
    assert figures["errors"]["eval_reward"] == pytest.approx(by_row.std(ddof=1) / math.sqrt(10))
    assert 0 < figures["errors"]["eval_exact"] < 0.2
    assert 0 < figures["scores"]["eval_exact"] < 1
    assert "reward" in streams.out
    assert "±" in streams.out


@pytest.mark.slow
def test_each_set_has_figures_under_its_name(evaluate):
    sets = "dataset.split.eval={first: 'eval[:4]', second: 'eval[4:10]'}"
    figures, _, _ = evaluate(*TOY[:2], sets, "metric=perplexity", "reward=none")
    assert figures["rows"] == {"first": 8, "second": 12}  # right and wrong answers
    single_set, _, _ = evaluate(*TOY[:3], "metric=perplexity", "reward=none")
    first, second = (figures["scores"][f"eval_{name}_loss"] for name in ("first", "second"))
    assert single_set["scores"]["eval_loss"] == pytest.approx(0.4 * first + 0.6 * second, rel=1e-5)
    assert figures["scores"]["eval_first_token_accuracy"] > 0.5


@pytest.mark.slow
def test_another_dataset_brings_its_metrics_and_the_rest_is_reported(evaluate, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 2 3"}\n{"prompt": "4 5"}\n')
    figures, rows, streams = evaluate(
        "model=tiny", "file=rows.jsonl", "reward=length", "metric=words", "max_new_tokens=4", code=2
    )
    assert "no option 'words'" in streams.err
    words = ["metric.words._target_=runner.metric.words", "reward=length", "max_new_tokens=4"]
    figures, rows, streams = evaluate("model=tiny", "file=rows.jsonl", *words)
    assert {"train_reward", "train_words"} <= set(figures["scores"])
    assert "train_loss" not in figures["scores"]
    assert "note      no known answers" in streams.out
    assert [row["reward"] for row in rows] == [float(len(row["completion"])) for row in rows]


def test_both_sides_are_asked_at_one_temperature(laid):
    from runner.command._evaluation import PARTS, Options, _other_request, read_request

    shutil.copytree(TINY, laid.folder / "model")
    seal(laid.folder / "model")
    laid.set_status("finished")
    line = read_command_line(
        ["evaluate", "laid", f"against={laid.folder}", "checkpoint=start", "temperature=0"]
    )
    request = read_request(line, Options, PARTS)
    other_request = _other_request(line, request, request.options.against)
    assert (request.options.temperature, other_request.options.temperature) == (0, 0)


@pytest.mark.slow
def test_a_model_against_itself_wins_half(evaluate, laid):
    figures, rows, streams = evaluate("laid", "checkpoint=start", "against=start", "limit=8")
    verdict = figures["comparison"]["eval"]
    assert (verdict["wins"], verdict["ties"], verdict["losses"]) == (0, 8, 0)
    low, high = verdict["win_rate_interval"]
    assert low <= 0.5 <= high
    assert verdict["win_rate"] == 0.5
    assert figures["scores"] == figures["against"]["scores"]
    assert len(rows) == 16
    assert "win rate  0.5" in streams.out
    assert "both draw by the same random numbers" in streams.out
    assert "8 prompts" in streams.out
    assert "fewer than 100" in streams.out


@pytest.mark.slow
def test_scores_of_the_training_stay_as_they_are(evaluate, laid):
    before = sorted(path.name for path in laid.folder.iterdir())
    assert (
        main(["evaluate", "laid", "checkpoint=start", "limit=2", "reward=none", "metric=none"]) == 0
    )
    assert sorted(path.name for path in laid.folder.iterdir()) == sorted([*before, "evaluations"])
    (paper,) = (laid.folder / "evaluations").glob("toy_sort-*.json")
    assert set(read_json(paper)["scores"]) == {"eval_loss", "eval_perplexity"}


@pytest.mark.slow
def test_a_run_to_compare_with_is_answered_under_its_key(laid, evaluate):
    words = (f"against={laid.folder.name}x", "reward=sorted_digits", "checkpoint=start")
    stderr = evaluate(str(laid.folder), *words, code=4)[2].err
    assert "no such folder" in stderr
    assert "type      against=" in stderr


# --- What is asked --------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*TOY, "against=nowhere", "reward=none"], "type      reward=exact_match"),
        ([*TOY, "against=nowhere"], "no such folder"),
        (
            ["model=tiny", "dataset=toy_sort", "head=score", "reward=sorted_digits"],
            "a reward model writes nothing",
        ),
        (
            ["model=tiny", "dataset=toy_sort", "head=score", "metric=exact"],
            "gives one score per text",
        ),
        (
            ["model=tiny", "dataset=toy_sort", "metric=exact", "metric.exact.colum=x"],
            "metric.exact.column",
        ),
        (["model=tiny", "dataset=toy_sort", "callback=samples"], "a key of training"),
        (["laid", "model=hub"], "together with laid"),
    ],
)
def test_words_that_cannot_work_are_refused(evaluate, words, told):
    code = 4 if "no such folder" in told else 2
    assert told in evaluate(*words, code=code)[2].err


# --- Of trainings ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trained_run_beats_its_start_and_another_run(train, evaluate):
    words = ["trainer=sft", "model=tiny", "dataset=toy_sort", "dataset.limit.eval=40"]
    words += ["dataset.limit.train=320", "learning_rate=1e-3"]
    good = train(*words, "trainer.args.max_steps=30").run
    other_run = train(*words, "trainer.args.max_steps=1", name="other").run
    held_out = good.folder / "scores.json"
    for against in ("start", str(other_run.folder)):
        figures, _, _ = evaluate(str(good.folder), f"against={against}", "reward=sorted_digits")
        verdict = figures["comparison"]["eval"]
        assert verdict["win_rate_interval"][0] > 0.5
        assert verdict["difference_interval"][0] > 0
        assert figures["scores"]["eval_loss"] < figures["against"]["scores"]["eval_loss"]
    assert figures["scores"]["eval_loss"] == pytest.approx(
        read_json(held_out)["after"]["eval_loss"], rel=0.02
    )
    assert figures["scores"]["eval_exact"] == pytest.approx(
        read_json(held_out)["after"]["eval_exact"], abs=0.25
    )


def test_scores_of_a_training_are_neither_clocks_nor_memory():
    figures = {
        "eval_loss": 1.0,
        "eval_runtime": 2.0,
        "memory/peak_gb": 0.5,
        "memory/reserved_gb": 0.7,
    }
    args = SimpleNamespace(metric_for_best_model=None, eval_strategy="no")
    assert held_out_scores(
        SimpleNamespace(eval_dataset=[0], evaluate=lambda: figures, args=args)
    ) == {"eval_loss": 1.0}


# --- lm-evaluation-harness ------------------------------------------------------------------------


@pytest.fixture
def harness(monkeypatch):
    """A stand-in for the library, which notes what it is asked and knows two tasks."""
    asked = []

    class Manager:
        def __init__(self, include_path=None):
            self.known = {"arc_easy", "sort"}

        def match_tasks(self, names):
            return [name for name in names if name in self.known]

    class Served:
        def __init__(self, pretrained, tokenizer, **settings):
            tokenizer.pad_token = tokenizer.eos_token  # as the library may
            self.model = pretrained

    def simple_evaluate(model, tasks, task_manager, **settings):
        asked.append((tasks, settings))
        share = sum(parameter.sum().item() for parameter in model.model.parameters()) % 1
        results = {}
        for task in tasks:
            results[task] = {"alias": task, "acc,none": share, "acc_stderr,none": 0.1, "n": 3}
            results[task]["em,strict"] = 1.0
        return {"results": results}

    for name, content in {
        "lm_eval": {"simple_evaluate": simple_evaluate},
        "lm_eval.models": {},
        "lm_eval.models.huggingface": {"HFLM": Served},
        "lm_eval.tasks": {"TaskManager": Manager},
    }.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    _task_manager.cache_clear()
    yield asked
    _task_manager.cache_clear()


def test_tasks_of_the_harness_are_written_and_shown_with_their_errors(evaluate, harness):
    words = ("model=tiny", "lm_eval=[arc_easy, sort]", "limit=7", "num_fewshot=2", "batch_size=4")
    figures, _, streams = evaluate(*words)
    ((tasks, settings),) = harness
    assert tasks == ["arc_easy", "sort"]
    assert settings.items() >= {"limit": 7, "num_fewshot": 2, "apply_chat_template": False}.items()
    assert figures["scores"].keys() == {
        *("arc_easy/acc", "arc_easy/em,strict", "sort/acc", "sort/em,strict")
    }
    assert figures["errors"] == {"arc_easy/acc": 0.1, "sort/acc": 0.1}
    assert figures["asked"]["num_fewshot"] == 2
    assert "± 0.1" in streams.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lm_eval=[arc_easy,nowhere]"], "no task nowhere"),
        (["lm_eval=[]"], "tasks for a language model"),
        (["head=score", "lm_eval=sort"], "a reward model, which writes nothing"),
        (["num_fewshot=2"], "lm_eval="),
        (["lm_eval=sort", "include_path=tasks"], "templates and metrics can run any code"),
        (["lm_eval=sort", "include_path=nowhere"], "no folder nowhere"),
    ],
)
def test_tasks_that_cannot_be_run_are_refused(evaluate, harness, tmp_path, words, told):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sort.yaml").write_text(
        "task: sort\ndoc_to_text: '{{ cycler.__init__.__globals__.os.getpid() }}'\n"
    )
    assert told in evaluate("model=tiny", *words, code=2)[2].err
    assert not harness
    if words[-1] == "include_path=tasks":
        evaluate("model=tiny", *words, "trust_remote_code=true")
        assert harness


def test_a_missing_harness_is_told_with_what_to_install(evaluate, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    told = evaluate("model=tiny", "lm_eval=[sort]", code=5)[2].err
    assert "pip install 'lm-eval>=0.4.13'" in told


def test_the_harness_as_a_metric_is_asked_with_the_model_and_its_limit(harness):
    metrics = compose_runs(["metric=lm_eval", "metric.lm_eval.limit=5"])[0].experiment.metrics
    model = AutoModelForCausalLM.from_pretrained(TINY)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    padding = tokenizer.pad_token
    (metric,) = build_metrics(metrics, tokenizer)
    state = torch.get_rng_state()
    numbers = ask_live(metric, model, tokenizer)
    assert list(numbers) == ["lm_eval_arc_easy/acc", "lm_eval_arc_easy/em,strict"]
    assert harness[0][1]["limit"] == 5
    assert tokenizer.pad_token == padding, "the library is given a copy"
    assert torch.equal(torch.get_rng_state(), state)


def test_a_reward_model_has_no_tasks_of_the_harness():
    with pytest.raises(ConfigError, match="a reward model gives one score per text"):
        compose_runs(["trainer=reward", "metric=lm_eval"])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_a_task_of_ones_own_with_the_real_harness(runner):
    tasks = runner.folder / "tasks"
    tasks.mkdir()
    lines = []
    for text in (PACKAGE / "dataset/toy_sort/eval.jsonl").read_text().splitlines()[:20]:
        row = json.loads(text)
        choices = [row["chosen"][0]["content"], row["rejected"][0]["content"]]
        lines.append(json.dumps({"digits": row["digits"], "choices": choices}))
    (tasks / "sort.jsonl").write_text("\n".join(lines))
    page = (Path(__file__).parent.parent / "conf" / "metric" / "README.md").read_text()
    task = page.partition("```yaml\n")[2].partition("```")[0]
    (tasks / "sort.yaml").write_text(task)
    words = ["lm_eval=[sort]", "include_path=tasks", "apply_chat_template=true"]
    words.append("trust_remote_code=true")
    done = runner("evaluate", "model=tiny", *words, "to=out.json")
    assert "sort/acc" in done.stdout
    figures = read_json(runner.folder / "out.json")
    assert figures["scores"]["sort/acc"] > 0.8
    assert "sort/acc" in figures["errors"]
    named = [f"metric.lm_eval.{word}" for word in words[1:]]
    few = ("trainer.args.max_steps=1", "dataset.limit.train=64", "dataset.limit.eval=8")
    runner("trainer=sft", "name=x", "metric=lm_eval", "metric.lm_eval.tasks=[sort]", *named, *few)
    (folder,) = runner.runs("x")
    scores = read_json(folder / "scores.json")
    assert scores["before"]["eval_lm_eval_sort/acc"] == figures["scores"]["sort/acc"]
    assert "eval_lm_eval_sort/acc" in scores["after"]
