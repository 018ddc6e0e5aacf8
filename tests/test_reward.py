"""Rewards: values by hand, texts and conversations alike, and reward models, if trained."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from runner.config.composition import compose
from runner.config.experiment import Experiment
from runner.errors import ConfigError, DataError, EnvironmentFault
from runner.io.files import shipped
from runner.reward import math, rule
from runner.reward.outcome import Classifier, join_texts, load_reward_model
from runner.reward.process import ProcessModel, aggregate
from runner.training.components.rewards import build_rewards
from runner.validate.start import find_environment_faults

TINY = shipped("runner://model/tiny")


def as_chat(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


CASES = [
    (rule.distinct_characters, ["aab b", ""], {}, [3.0, 0.0]),
    (rule.length, ["abc", ""], {}, [3.0, 0.0]),
    (rule.length, ["abc", "a" * 9], {"target": 5}, [-2.0, -4.0]),
    (rule.exact_match, [" Paris.", "Rome"], {"reference": ["paris", "Bern"]}, [1.0, 0.0]),
    (rule.exact_match, ["12", "1 2"], {"column": "answer", "answer": ["12", "12"]}, [1.0, 0.0]),
    (rule.exact_match, ["1.5"], {"reference": ["15"]}, [0.0]),
    (rule.exact_match, ["x", "x"], {"reference": [None, "x"]}, [None, 1.0]),
    (
        rule.sorted_digits,
        ["1 3 7 9", "1 3 9 7", "9 7 3 1"],
        {"digits": ["7 3 9 1"] * 3},
        [1.0, 0.5, 0.0],
    ),
    (
        rule.sorted_digits,
        ["1 3 7", "1 3 7 9 9", "", "no"],
        {"digits": ["7 3 9 1"] * 4},
        [0.25, 0.5, -0.5, -0.5],
    ),
    (rule.sorted_digits, ["0 0 2"], {"digits": ["0 2 0"]}, [1.0]),
    (rule.sentiment, ["It was lovely.", "A LOVELY, great bar", "rude"], {}, [0.25, 0.5, -0.25]),
    (
        rule.sentiment,
        ["great " * 9, "awful " * 9, "great but awful", ""],
        {},
        [1.0, -1.0, 0.0, 0.0],
    ),
    (
        rule.format_match,
        ["<a>1</a>", " <a>\n2</a> ", "x <a>1</a>"],
        {"pattern": "<a>.*</a>"},
        [1.0, 1.0, 0.0],
    ),
    (
        rule.appears_once,
        ["<a>1</a>", "<a>1</a></a>", "none"],
        {"texts": ["<a>", "</a>"]},
        [1.0, 0.5, 0.0],
    ),
    (rule.format_match, ["no. 12", "no"], {"pattern": r"\d+", "whole": False}, [1.0, 0.0]),
    (rule.keywords, ["Red, RED", "reddish", ""], {"required": ["red"]}, [1.0, 0.0, 0.0]),
    (
        rule.keywords,
        ["a b", "a", "c"],
        {"required": ["a", "b"], "forbidden": ["c"]},
        [1.0, 0.5, -1.0],
    ),
    (rule.keywords, ["a C++ course", "C"], {"required": ["c++"]}, [1.0, 0.0]),
    (
        math.boxed_answer,
        [r"\boxed{\frac{1}{2}}", r"\boxed{2}", "1/2"],
        {"reference": ["0.5", "0.5", "0.5"]},
        [1, 0, 0],
    ),
    (
        math.boxed_answer,
        [r"\boxed{4} \boxed{5}", "x"],
        {"reference": [r"so \boxed{5}", None]},
        [1.0, None],
    ),
    (
        math.boxed_answer,
        ["Answer: 7", "5 or 6"],
        {"reference": ["#### 7", "6"], "strict": False},
        [1.0, 1.0],
    ),
    (math.boxed_answer, [r"\boxed{12"], {"reference": ["12"]}, [0.0]),
    (rule.sentiment, ["gut schlecht gut"], {"praise": ["gut"], "complaint": ["schlecht"]}, [0.25]),
]


@pytest.mark.parametrize("written", [str, as_chat], ids=["text", "chat"])
@pytest.mark.parametrize(("reward", "texts", "columns", "values"), CASES)
def test_values_by_hand(reward, texts, columns, values, written):
    assert reward(completions=[written(text) for text in texts], **columns) == values


def test_only_the_last_turn_of_a_conversation_counts():
    chat = [{"role": "user", "content": "lovely lovely"}, {"role": "assistant", "content": "rude"}]
    assert rule.sentiment([chat]) == [-0.25]


def test_a_column_that_the_rows_lack_is_named():
    with pytest.raises(DataError) as error:
        rule.exact_match(["x"], column="answer", solution=["x"], prompts=["?"])
    assert error.value.faults[0].found == "the rows have no column answer"
    assert "prompts, solution" in error.value.faults[0].expected


SAME = [
    ("1,000", "1000", True),
    ("$5.00", "5", True),
    ("50\\%", "50", True),
    (r"\dfrac{3}{6}", "0.5", True),
    (r"\frac12", "1/2", True),
    ("-3", "3", False),
    ("x + 1", "x+1", True),
    (r"12\text{ cm}", "12", True),
    ("1/0", "1/0", True),
    ("1/0", "2", False),
    ("(1,2)", "(1,3)", False),
    ("1,23", "123", False),
    ("7.", "7", True),
    (r"2\sqrt{2}", r"\sqrt{8}", True),
    (r"\sqrt{8}", "3", False),
]


@pytest.mark.quick(14)
@pytest.mark.parametrize(("first", "second", "same"), SAME)
def test_answers_are_the_same_as_mathematics(first, second, same):
    assert math.is_same_answer(first, second) is math.is_same_answer(second, first) is same


def test_without_math_verify_a_boxed_answer_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'math-verify>=0.9'"):
        math.boxed_answer(["x"], reference=["x"])


@pytest.mark.slow
def test_a_missing_library_of_a_reward_or_metric_is_found_before_the_start(monkeypatch):
    composed = compose(["trainer=grpo", "reward=boxed_answer", "metric=translation"])
    monkeypatch.setattr("runner.validate.libraries.find_spec", lambda name: None)
    fixes = {
        fault.where: fault.fix for fault in find_environment_faults([composed], elsewhere=True)
    }
    assert fixes["reward.boxed_answer"] == "pip install 'math-verify>=0.9'  (the extra math)"
    assert {fixes[f"metric.{name}"] for name in ("bleu", "chrf", "rouge")} == {
        "pip install 'sacrebleu>=2.5' 'rouge-score>=0.1.2'  (the extra text)"
    }


def test_a_bad_pattern_and_missing_keywords_are_reported():
    with pytest.raises(ConfigError, match="missing \\)"):
        rule.format_match(["x"], pattern="(x")
    with pytest.raises(ConfigError, match="no words"):
        rule.keywords(["x"])


# --- Scores of models ---------------------------------------------------------------------------


def classifier(folder, labels: int = 1):
    """A reward model with a head that scores, saved with its tokenizer."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(TINY, num_labels=labels)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return model.eval(), tokenizer


def scores(model, tokenizer) -> torch.Tensor:
    with torch.no_grad():
        return model(**tokenizer(["1 3 7 9", "9 1"], return_tensors="pt", padding=True)).logits


def test_a_reward_model_scores_as_when_it_was_saved_and_is_frozen(tmp_path):
    saved, tokenizer = classifier(tmp_path)
    loaded = load_reward_model(str(tmp_path))
    assert torch.equal(scores(loaded, tokenizer), scores(saved, tokenizer))
    assert not loaded.training
    for weight in loaded.parameters():
        assert not weight.requires_grad
    assert loaded.config._name_or_path == str(tmp_path)  # where the trainer looks for the tokenizer


@pytest.mark.slow
def test_an_adapter_is_merged_and_keeps_its_own_name(tmp_path):
    _, tokenizer = classifier(tmp_path / "base")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    adapted = get_peft_model(
        base, LoraConfig(task_type="SEQ_CLS", init_lora_weights=False, target_modules="all-linear")
    )
    with torch.no_grad():
        adapted.base_model.model.score.modules_to_save["default"].weight.mul_(-2)
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    loaded = load_reward_model(str(tmp_path / "adapter"))
    assert torch.allclose(scores(loaded, tokenizer), scores(adapted.eval(), tokenizer), atol=1e-5)
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    assert loaded.config._name_or_path == str(tmp_path / "adapter")


def test_a_language_model_is_refused_because_its_scores_would_be_random():
    with pytest.raises(ConfigError, match=r"no weights for score\.weight"):
        load_reward_model("runner://model/tiny")


def test_a_classifier_of_several_classes_is_refused(tmp_path):
    classifier(tmp_path, labels=2)
    with pytest.raises(ConfigError, match="it returns 2 scores"):
        load_reward_model(str(tmp_path))


def test_a_missing_reward_model_is_a_fault_of_the_configuration(tmp_path):
    with pytest.raises(ConfigError, match="a folder, or org/name on the hub"):
        load_reward_model(str(tmp_path / "nowhere"))


def test_a_classifier_gives_the_class_that_is_asked_for(tmp_path):
    model, tokenizer = classifier(tmp_path, labels=3)
    with torch.no_grad():
        logits = model(**tokenizer(["1 3 7 9", "9 1"], return_tensors="pt", padding=True)).logits
    texts = ["3 7 9", "1"]
    prompts = ["1 ", "9 "]
    second = Classifier(str(tmp_path), label=1, batch_size=1)
    assert second(texts, prompts) == pytest.approx(logits[:, 1].tolist(), abs=1e-5)
    likely = Classifier(str(tmp_path), label="LABEL_2", gives="probability", reads="answer")
    assert likely(["1 3 7 9", "9 1"], ["not", "read"]) == pytest.approx(
        logits.softmax(-1)[:, 2].tolist(), abs=1e-5
    )
    with pytest.raises(ConfigError, match="one of LABEL_0, LABEL_1, LABEL_2"):
        Classifier(str(tmp_path))


def test_a_classifier_reads_a_chat_by_its_template_whether_the_answer_is_a_turn_or_a_text():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    prompt = [{"role": "user", "content": "Hi"}]
    turn = [{"role": "assistant", "content": "Ho"}]
    rendered = tokenizer.apply_chat_template(prompt + turn, tokenize=False)
    assert join_texts(tokenizer, prompt, turn) == join_texts(tokenizer, prompt, "Ho") == rendered
    tokenizer.chat_template = None
    assert join_texts(tokenizer, prompt, turn) == "Hi\nHo"
    assert join_texts(tokenizer, "Hi ", "Ho") == "Hi Ho"


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["Classifier", "load_reward_model"])
def test_a_template_of_a_reward_model_that_grows_is_refused(tmp_path, loader):
    classifier(tmp_path)
    cfg = {
        "reward": {"model": {"_target_": f"runner.reward.outcome.{loader}", "path": str(tmp_path)}}
    }
    build_rewards(Experiment.read(cfg))
    for text in (
        "{{ (messages[0].content * 10**9)|length }}",
        "{% if 0 %}{{ ('a' * 10**9)|length }}{% endif %}",
    ):
        (tmp_path / "chat_template.jinja").write_text(text + "{{ messages[1].content }}")
        with pytest.raises(
            ConfigError, match=r"reward\.model\.path\n.*takes more than 2 s(.|\n)*\.path=<another>"
        ):
            build_rewards(Experiment.read(cfg))


def test_a_single_reward_has_the_name_of_its_function_and_the_key_that_is_typed():
    cfg = {"reward": {"_target_": "runner.reward.rule.length"}}
    (scorer,) = build_rewards(Experiment.read(cfg)).functions
    assert (scorer.__name__, scorer.where) == ("length", "reward")
    cfg = {"reward": {"near": {"_target_": "runner.reward.rule.length"}}}
    (scorer,) = build_rewards(Experiment.read(cfg)).functions
    assert (scorer.__name__, scorer.where) == ("near", "reward.near")


def stepper(folder, kind):
    torch.manual_seed(0)
    model = kind.from_pretrained(TINY, num_labels=2).eval()
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return model, tokenizer


@pytest.mark.parametrize(
    "kind", [AutoModelForTokenClassification, AutoModelForSequenceClassification]
)
def test_a_process_model_scores_each_step_at_its_end(tmp_path, kind):
    model, tokenizer = stepper(tmp_path, kind)
    scorer = ProcessModel(str(tmp_path), aggregate=None)
    scores = scorer(["Sort: 2 1\n", "9"], ["1 2\n\nso 1 2", ""])

    def by_hand(*pieces):
        """Piece by piece, as TRL's trainer of such models makes its tokens."""
        ids = []
        for piece in pieces:
            ids += tokenizer(piece, add_special_tokens=False)["input_ids"]
        logits = model(input_ids=torch.tensor([ids])).logits.detach()
        return (logits[0, -1] if logits.ndim == 3 else logits[0]).softmax(-1)[1].item()

    first = ["Sort: 2 1\n", "1 2", "\n"]
    expected = [[by_hand(*first), by_hand(*first, "so 1 2", "\n")], [by_hand("9", "", "\n")]]
    assert [pytest.approx(row, abs=1e-5) for row in expected] == scores
    for by in ("last", "min", "mean", "product"):
        scorer.aggregate = by
        numbers = [aggregate(row, by) for row in expected]
        assert scorer(["Sort: 2 1\n", "9"], ["1 2\n\nso 1 2", ""]) == pytest.approx(
            numbers, abs=1e-5
        )


def test_a_process_model_without_a_trained_head_is_refused():
    with pytest.raises(ConfigError, match=r"no weights for score"):
        ProcessModel(TINY)
