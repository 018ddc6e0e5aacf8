"""Small functions whose name says what they do, each by an example."""

import pytest
from torch import Tensor

from runner import metric
from runner.command._request import in_a_name
from runner.config.dialect import is_wanted
from runner.config.machines import processes_of
from runner.config.override import latest, refused
from runner.dataset.form import answer_columns, is_finite_number
from runner.dataset.head import shortest
from runner.dataset.request import slice_length, split_words
from runner.dataset.step import fill
from runner.generate.batch import split_by_rows, split_by_tokens
from runner.generate.budget import answer_tokens
from runner.generate.judge import _mean_and_error
from runner.io.distribution import to_install
from runner.io.files import strict
from runner.io.filetype import sniff
from runner.io.secrets import form_of
from runner.io.terminal import line_of
from runner.io.turns import text_of
from runner.metric import likelihood
from runner.metric.ask import kind_of, to_numbers
from runner.metric.binary import grouped_auc, pairs
from runner.ppo.batching import fill_by_tokens
from runner.reward import math, process, rule
from runner.schema.text import last_key, short_text
from runner.schema.type import shortened
from runner.schema.upstream import completion_length, passes
from runner.training.checkpoint import state_bytes
from runner.training.extension import mean_loss

NAMES = ("adamw_torch", "adamw_8bit", "lion_32bit", "adafactor", "sgd")
LOGGED = [{"step": 2, "loss": 3.0}, {"step": 2, "eval_loss": 9.0}, {"step": 3, "loss": 6.0}]
ARGS = {"max_steps": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
BOXED = [r"so \boxed{\frac{1}{2}}.", "0.5", r"\boxed{3}"]
WORDS = {"input": "Who are you?", "target": "I am {{NAME}}, by {{ AUTHOR }}."}
REVIEWS = ["A lovely bar. We loved it.", "awful", "Great, great, GREAT, great!", "a bar"]
SCORES = [0.9, 0.1, 0.2, 0.8, 0.5]
CUTS = ("train[10:]", "train[:3]", "train[90%:]", "train", "train[:1]+test")
KEYS = {"required": ["red", "the red"], "forbidden": ["dog"]}
PLACES = {"of": ["place", "topic"], "place": ["bar", "bar"], "topic": ["view", "food"]}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([is_finite_number(each) for each in ("-0.5", True, None)], [True, False, False]),
        (answer_columns({"prompt": "1+1=", "completion": "2"}), ("completion",)),
        (answer_columns({"prompt": "1+1="}), ()),
        (shortest([{"text": "long enough"}, {"text": "a"}, {"text": "bc"}], 2), [{"text": "a"}, {"text": "bc"}]),
        (fill(WORDS, {"NAME": "Ada"}), {"input": "Who are you?", "target": "I am Ada, by {{ AUTHOR }}."}),
        ([state_bytes(name, [Tensor(4, 8)]) for name in NAMES], [256, 64, 128, 48, 0]),
        (mean_loss(LOGGED), 4.0),
        (split_by_rows([3, 9, 3, 5], size=2), [[1, 3], [0, 2]]),
        ((answer_tokens([None, 256], 32), answer_tokens([None], None)), (256, 64)),
        (_mean_and_error([1.0, float("nan"), 3.0]), (2.0, 1.0)),
        (math.boxed_answer(BOXED, reference=["0.5", "0.5", "#### 4"]), [1.0, 0.0, 0.0]),
        (process.sorted_steps(["1 3 9 7", "1 3"], ["7 3 9 1"] * 2), [[0.25, 0.25, 0.0, 0.0], [0.25, -0.25]]),
        (process.to_steps("add 2\n\n so 4", "\n"), ["add 2", "so 4"]),
        (process.aggregate([0.5, 0.25, 0.75], "product"), 0.09375),
        (rule.distinct_characters(["abca", ""]), [3.0, 0.0]),
        ((rule.length(["abc"]), rule.length(["abc"], target=5)), ([3.0], [-2.0])),
        (rule.exact_match([" Paris. ", "Rome", "Oslo"], "city", city=["paris", "Bern", None]), [1.0, 0.0, None]),
        (rule.sorted_digits(["1 3 7 9", "1 3 9 7", "1 3"], ["7 3 9 1"] * 3), [1.0, 0.5, 0.0]),
        (rule.sentiment(REVIEWS), [0.5, -0.25, 1.0, 0.0]),
        (rule.format_match(["<think>2+2</think>4", "4"], r"<think>.*</think>\s*\d+"), [1.0, 0.0]),
        (rule.keywords(["The Red cat", "a dog", "reddish"], **KEYS), [1.0, -1.0, 0.0]),
        (processes_of({"launcher": {"num_processes": 4, "num_machines": 2}}), 8),
        (latest(["seed=1", "kl_coef=0.1", "++seed=2"]), ["kl_coef=0.1", "++seed=2"]),
        ((refused("hydra.launcher.n_jobs"), refused("hydra.callbacks.x")[:17]), ("", "hydra.callbacks.x")),
        ((short_text("a\nb"), last_key("dataset.files.0")), ("'a\\nb'", "files")),
        ((completion_length({"max_new_tokens": 64}), completion_length({"max_length": 64})), (64, None)),
        (passes(ARGS, 16, 1), 4.0),
        (metric.words(["The bar was so-so.", ""]), [5.0, 0.0]),
        (metric.repetition(["great, great, great bar", "a bar", ""]), [0.5, 0.0, 0.0]),
        (metric.mention(["The food at the bar.", "Great!"], **PLACES), [0.5, 0.0]),
        (metric.overlap(["a red dog", "A.", "", "a"], ["the red dog", "a", "a", None]), [2 / 3, 1.0, 0.0, None]),
        (likelihood.loss([[-1.0, -2.0], [-6.0], []]), 3.0),
        (strict({"loss": float("nan"), "steps": [1, 2.5]}), {"loss": None, "steps": [1, 2.5]}),
        ((sniff(b"PK\x03\x04", "rows.jsonl").found, sniff(b'{"a": 1}', "rows.jsonl")), ("a zip archive", None)),
        (form_of("https://me:pa55word@host/rows.jsonl"), "an address with a password"),
        (form_of("sk-learn/contributions-of-2024"), ""),
        (text_of([{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]), "2"),
        (in_a_name("../easy rows"), "easy-rows"),
        ([slice_length(cut, 4) for cut in CUTS], [0, 3, 0, 4, None]),
        (split_by_tokens([0, 1, 2, 3], lengths=[20, 90, 40, 39], budget=80), [[1], [2, 3], [0]]),
        (pairs([2.0, 1.0, 0.0, 3.0], label=[True, False, True, False]), {"": 0.5, "margin": -1.0}),
        ((to_numbers("size", [1.0, None, 2.0], 3), to_numbers("bleu", 31.5, 3)), ({"": 1.5}, {"": 31.5})),
        (split_words(share=80), "dataset.split.train='train[:80%]' dataset.split.eval='train[80%:]'"),
        ([is_wanted(*each) for each in ((True, "true"), (0, ["disabled"]), ("x", "enabled"))], [True] * 3),
        ((is_wanted(None, [None, "bnb"]), is_wanted("x", ["y"])), (True, False)),
        (math.find_answer(r"\boxed{1}, no, \boxed{\frac{1}{2}}"), r"\frac{1}{2}"),
        ((math.find_answer("Answer: 7"), math.find_answer("7", strict=False)), (None, "7")),
        (shortened(["sigmoid", "hinge", "ipo"], 18), "sigmoid, ... (3)"),
        (to_install("math-verify"), "pip install 'math-verify>=0.9'  (the extra math)"),
        (to_install("liger-kernel"), "pip install liger-kernel"),
        ((line_of("one\ntwo", 9), line_of("one two three", 9)), ("one two", "one tw...")),
        (line_of("one two three", 9, tail=True), "... three"),
        (fill_by_tokens([0, 1, 2, 3], lengths=[20, 50, 40, 39], budget=80), [[1, 0], [2, 3]]),
        (grouped_auc(SCORES, user_id=["a", "a", "b", "b", "c"], label=[1, 0, 1, 0, 1])["skipped"], 1.0),
        ([kind_of(each) for each in (["completions"], ["scores", "label"], ["path"])], ["sampled", "read", "sampled"]),
    ],
)
def test_an_example_gives_what_it_says(found, expected):
    assert found == expected
