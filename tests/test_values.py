"""Values that silently spoil a training are refused: out of range, unknown, or never read."""

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.schema.source import find_module
from runner.schema.upstream.trackers import TRACKERS

TINY = Path(__file__).parent.parent / "runner" / "model" / "tiny"
GENERATION = "trainer.args.generation_kwargs"
SCHEDULE = "trainer.args.lr_scheduler_kwargs"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder without finished runs, about which a dry run would report and stop."""
    monkeypatch.chdir(tmp_path)


def refuse(capsys, words: str, code: int = 2) -> str:
    assert main([*shlex.split(words), "--dry-run"]) == code, words
    return capsys.readouterr().err


# --- Numbers outside of the range in which an algorithm is defined ---


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("trainer", "field", "value"),
    [
        *(("ppo", field, 2) for field in ("gamma", "lam")),
        *(
            ("ppo", field, -1)
            for field in ("vf_coef", "gamma", "lam", "value_warmup_steps", "stop_token_id")
        ),
        *(
            ("ppo", field, 0)
            for field in (
                "kl_target",
                "cliprange",
                "num_ppo_epochs",
                "score_clip",
                "total_episodes",
            )
        ),
        ("ppo", "dual_clip", 0.5),
        *(
            ("grpo", field, -1)
            for field in ("entropy_target", "vespo_k_pos", "max_tool_calling_iterations")
        ),
        *(("grpo", field, 0) for field in ("sapo_temperature_neg", "off_policy_mask_threshold")),
        *(("a2po", field, 0) for field in ("beta1", "beta2", "num_value_samples")),
        ("online_dpo", "missing_eos_penalty", -1),
        ("sdft", "teacher_update_rate", 2),
        ("sdpo", "distillation_alpha", 2),
        ("tpo", "tpo_alpha", -1),
        ("cpo", "cpo_alpha", -1),
        ("dpo", "loss_weights", [-1]),
        ("gold", "uld_student_temperature", 0),
        ("dpo", "label_smoothing", 0.5),  # beyond it, the rejected side is learnt, or nothing
        ("cpo", "label_smoothing", 0.7),
        ("grpo", "delta", 0.1),
    ],
)
def test_a_number_outside_of_its_range(trainer, field, value, capsys):
    text = json.dumps(value)
    refusal = refuse(capsys, f"trainer={trainer} '++trainer.args.{field}={text}' dataset=toy_sort")
    assert f"trainer.args.{field}\n" in refusal
    assert re.search("expected  (at least|above)", refusal)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "words",
    [
        "peft=lora peft.lora_dropout=1",
        "peft=lora peft.layers_to_transform=[-1]",
        "loss=focal loss.gamma=-1",
        "weight=pattern weight.pattern=a weight.weight=-1",
        "optimizer=adamw optimizer.groups={layers:{lr_ratio:-1}}",
        "optimizer=adamw optimizer.betas=[0.9,1.0]",
        (
            "optimizer=adamw optimizer.scheduler._target_=torch.optim.lr_scheduler.StepLR "
            "optimizer.scheduler.step_size=0"
        ),
        (
            "trainer.args.lr_scheduler_type=cosine_with_restarts "
            "trainer.args.lr_scheduler_kwargs={num_cycles:0}"
        ),
        "callback=bema callback.bema.update_freq=0",
        "trainer=grpo reward=length reward.length.target=-5",
        f"trainer=grpo {GENERATION}={{typical_p:3}}",
    ],
)
def test_a_number_for_another_part_is_refused(words, capsys):
    assert re.search("expected  (at least|above)", refuse(capsys, words))


def test_bounds_are_in_order(capsys):
    words = "trainer=grpo trainer.args.use_adaptive_entropy=true trainer.args.entropy_coef_min=0.5"
    assert "trainer.args.entropy_coef_min=0.1" in refuse(
        capsys, f"{words} trainer.args.entropy_coef_max=0.1"
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("decay", [0.8, 0])
def test_a_number_that_must_be_below_zero(decay, capsys):
    refusal = refuse(capsys, f"optimizer=adafactor optimizer.decay_rate={decay}")
    assert "expected  below 0" in refusal
    assert "optimizer.decay_rate=-0.8" in refusal
    refuse(capsys, "optimizer=adafactor optimizer.decay_rate=-0.5", code=0)


@pytest.mark.parametrize("ends", ["[1,-1]", "[1,1]"])
def test_ends_of_a_range_that_leave_no_room(ends, capsys):
    refusal = refuse(capsys, f"trainer=rloo trainer.args.reward_clip_range={ends}")
    assert "trainer.args.reward_clip_range\n" in refusal
    assert "the lower end first" in refusal
    refuse(capsys, "trainer=rloo trainer.args.reward_clip_range=[-1,1]", code=0)


def test_weights_that_are_all_zero_are_refused(capsys):
    words = "trainer=kto trainer.args.desirable_weight=0"
    assert "nothing would be learnt" in refuse(capsys, f"{words} trainer.args.undesirable_weight=0")
    refuse(capsys, words, code=0)


def test_an_empty_list_of_numbers(capsys):
    refusal = refuse(capsys, "trainer=online_dpo trainer.args.beta=[]")
    assert "trainer.args.beta\n" in refusal
    assert "no number" in refusal


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("cosine_with_min_lr trainer.args.lr_scheduler_kwargs={min_lr:1}", "min_lr=1"),
        ("polynomial trainer.args.lr_scheduler_kwargs={lr_end:0.01}", "lr_end=1"),
        (
            "warmup_stable_decay trainer.args.lr_scheduler_kwargs={num_decay_steps:1000}",
            "num_decay_steps=8",
        ),
    ],
)
def test_a_schedule_that_never_has_the_rate_that_was_asked_for(words, fix, capsys):
    common = "learning_rate=1e-4 trainer.args.max_steps=80 trainer.args.lr_scheduler_type="
    refusal = refuse(capsys, common + words)
    assert "trainer.args.lr_scheduler_kwargs" in refusal
    assert fix in refusal
    typed = refusal.partition("type      ")[2].splitlines()[0].strip()
    refuse(capsys, f"{common}{words} {typed}", code=0)


def test_a_batch_of_generations_that_holds_no_whole_groups(capsys):
    refusal = refuse(capsys, "trainer=grpo trainer.args.generation_batch_size=7")
    typed = refusal.partition("type      ")[2].splitlines()[0]
    assert "trainer.args.generation_batch_size" in typed
    refuse(capsys, f"trainer=grpo trainer.args.generation_batch_size=7 {typed}", code=0)


def test_a_token_that_the_model_has_none_of(capsys):
    refusal = refuse(capsys, "trainer=ppo trainer.args.stop_token_id=99999")
    assert "expected  a token: below 535" in refusal


# --- Mappings that a library reads late ---


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("words", "where", "fix"),
    [
        (f"trainer=grpo {GENERATION}={{foo:1}}", f"{GENERATION}.foo", "leave"),
        (
            f"trainer=grpo {GENERATION}={{temprature:1}}",
            f"{GENERATION}.temprature",
            f"{GENERATION}.temperature=1",
        ),
        (
            f"trainer=grpo {GENERATION}={{temperature:2}}",
            f"{GENERATION}.temperature",
            "trainer.args.temperature=2",
        ),
        (f"trainer=grpo {GENERATION}={{num_beams:2}}", f"{GENERATION}.num_beams", "leave"),
        (
            f"trainer=grpo {GENERATION}={{max_new_tokens:3}}",
            f"{GENERATION}.max_new_tokens",
            "max_completion_length=3",
        ),
        (f"{SCHEDULE}={{foo:1}}", f"{SCHEDULE}.foo", "leave"),
        (
            f"trainer.args.lr_scheduler_type=cosine {SCHEDULE}={{num_cycle:1}}",
            f"{SCHEDULE}.num_cycle",
            "num_cycles=1",
        ),
        (
            "trainer.args.lr_scheduler_type=cosine_with_min_lr",
            SCHEDULE,
            f"{SCHEDULE}={{min_lr_rate:0.1}}",
        ),
        (
            "trainer.args.lr_scheduler_type=warmup_stable_decay",
            SCHEDULE,
            f"{SCHEDULE}={{num_decay_steps:10}}",
        ),
        (
            "trainer.args.lr_scheduler_type=greedy trainer.args.eval_strategy=steps "
            + SCHEDULE
            + "={mode:foo}",
            SCHEDULE,
            "leave",
        ),
        ("trainer.args.accelerator_config={foo:1}", "trainer.args.accelerator_config.foo", "leave"),
        (
            "trainer.args.accelerator_config={gradient_accumulation_kwargs:{foo:1}}",
            "trainer.args.accelerator_config.gradient_accumulation_kwargs.foo",
            "leave",
        ),
        (
            "trainer.args.gradient_checkpointing_kwargs={use_reentrnt:true}",
            "trainer.args.gradient_checkpointing_kwargs.use_reentrnt",
            "use_reentrant=true",
        ),
        ("trainer.args.dataset_kwargs={foo:1}", "trainer.args.dataset_kwargs.foo", "leave"),
        (
            "strategy=fsdp2 trainer.args.fsdp_config.reshard=1",
            "trainer.args.fsdp_config.reshard",
            "reshard_after",
        ),
        (
            "trainer.args.optim=sgd trainer.args.optim_args=\"'momentm=1'\"",
            "trainer.args.optim_args",
            "momentum=1",
        ),
        ("trainer.args.optim_args=foo", "trainer.args.optim_args", "=null"),
        (
            "trainer.args.chat_template_path=/x/y",
            "trainer.args.chat_template_path",
            "=<folder or org/name>",
        ),
        (
            (
                "trainer=grpo model.tokenizer.chat_template=qwen3 "
                "trainer.args.chat_template_kwargs={enable_thinkin:true}"
            ),
            "trainer.args.chat_template_kwargs.enable_thinkin",
            "enable_thinking=true",
        ),
    ],
)
def test_a_mapping_is_checked_against_what_takes_it(words, where, fix, capsys):
    refusal = refuse(capsys, words)
    assert f"  {where}\n" in refusal
    assert fix in refusal.partition("type      ")[2]


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "words",
    [
        "trainer.args.lr_scheduler_type=cosine_with_min_lr " + SCHEDULE + "={min_lr_rate:0.1}",
        "trainer.args.optim=sgd trainer.args.optim_args=\"'momentum=0.9, nesterov=true'\"",
        "strategy=fsdp2 trainer.args.fsdp_config.fsdp_version=2",
        "trainer.args.gradient_checkpointing_kwargs={use_reentrant:true}",
        f"trainer=grpo {GENERATION}={{no_repeat_ngram_size:3}}",
        (
            "trainer=grpo model.tokenizer.chat_template=qwen3 "
            "trainer.args.chat_template_kwargs={enable_thinking:true}"
        ),
    ],
)
def test_a_mapping_that_is_right(words, capsys):
    refuse(capsys, words, code=0 if "fsdp" not in words else 5)  # there is no GPU here


def test_the_tables_are_those_of_the_libraries():
    source = find_module("transformers.trainer_utils").text
    kinds = source.partition("class SchedulerType")[2].partition("\nclass ")[0]
    assert {*upstream.SCHEDULES} == {*re.findall(r'^    [A-Z_]+ = "(\w+)"', kinds, re.MULTILINE)}
    for schedule in upstream.SCHEDULES.values():
        if schedule.takes:
            assert {*schedule.example} <= {*read_signature(schedule.takes).parameters}
    source = find_module("transformers.training_args").text
    read = {name for name in re.findall(r'fsdp_config(?:\.get\(|\.setdefault\(|\[)"(\w+)"', source)}
    assert read == {*upstream.PASSED_ON["fsdp_config"].keys}
    source = find_module("transformers.trainer_optimizer").text
    named = {*re.findall(r'ctx\.optim_args\.(?:get|pop)\(\s*"(\w+)"', source)}
    named |= {*re.findall(r'"(\w+)" in ctx\.optim_args', source)}
    for names in re.findall(r"for key in \(([^)]*)\):\s*if key in ctx\.optim_args", source):
        named |= {*re.findall(r'"(\w+)"', names)}
    assert named == set(itertools.chain(*upstream.OPTIMIZER_ARGS.values()))


# --- Fields that nothing reads ---


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    "words",
    [
        "trainer=dpo trainer.args.label_smoothing=0.1",
        "trainer=dpo trainer.args.loss_type=ipo trainer.args.label_smoothing=0.1",
        "trainer=dpo trainer.args.f_alpha_divergence_coef=0.3",
        "trainer=dpo trainer.args.label_smoothing_factor=0.1",
        "trainer=sft trainer.args.loss_type=dft trainer.args.label_smoothing_factor=0.1",
        "trainer=cpo trainer.args.simpo_gamma=1",
        "trainer=grpo trainer.args.loss_type=sapo trainer.args.epsilon_high=0.1",
        "trainer=grpo trainer.args.vllm_importance_sampling_clip_max=1",
        "trainer=ppo trainer.args.kl_horizon=5",
        "trainer.args.lr_scheduler_type=constant trainer.args.warmup_steps=3",
        "trainer.args.optim_target_modules=[q_proj]",
        "optimizer=adamw trainer.args.optim=sgd",
        "optimizer=adamw trainer.args.weight_decay=0.5",
        "trainer.args.eval_steps=3",
        "trainer.args.liger_kernel_config={rope:true}",
        "trainer.args.hub_model_id=a/b",
        "trainer.args.dataset_text_field=content",
        "trainer.args.label_names=[labels]",
        "trainer.args.do_train=true",
        "trainer.args.eval_strategy=no trainer.args.eval_delay=3",
        "trainer.args.max_length=null trainer.args.truncation_mode=keep_end",
        (
            "trainer.args.gradient_checkpointing=false "
            "trainer.args.gradient_checkpointing_kwargs.use_reentrant=false"
        ),
        "trainer.args.activation_checkpointing=true trainer.args.gradient_checkpointing=false",
        "trainer=dpo trainer.args.precompute_ref_batch_size=3",
        "trainer=grpo trainer.args.vllm_server_port=3000",
        "peft=lora peft.megatron_core=some.core",
        "peft=lora peft.loftq_config={loftq_bits:4}",
        "peft=lora peft.eva_config._target_=peft.EvaConfig",
        "peft=lora peft.qalora_group_size=8",
        "peft=oft peft.eps=0.1",
        "peft=prompt peft.prompt_tuning_init_text=hello",
        "peft=p_tuning peft.encoder_num_layers=4",
        "peft=prefix peft.encoder_hidden_size=32",
        "peft._target_=peft.AdaLoraConfig peft.total_step=10 peft.r=4",
    ],
)
def test_a_typed_field_that_nothing_reads(words, capsys):
    refusal = refuse(capsys, words)
    assert re.search("nothing reads|does not read|replaces it", refusal)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "words",
    [
        "trainer=dpo trainer.args.loss_type=[robust] trainer.args.label_smoothing=0.1",
        "trainer=grpo trainer.args.loss_type=grpo trainer.args.epsilon_high=0.1",
        "trainer=gmpo trainer.args.epsilon=0.1",
        "trainer=cpo trainer.args.loss_type=simpo trainer.args.simpo_gamma=1",
        "trainer.args.warmup_steps=3 trainer.args.adam_beta1=0.5",
        "trainer.args.push_to_hub=true trainer.args.hub_model_id=a/b",
        (
            "trainer.args.activation_checkpointing=true "
            "trainer.args.gradient_checkpointing_kwargs.use_reentrant=true"
        ),
        (
            "trainer.args.gradient_checkpointing=true "
            "trainer.args.activation_checkpointing_kwargs={every_n_layers:2}"
        ),
        "peft=lora peft.use_qalora=true peft.qalora_group_size=8",
        "peft=prefix peft.prefix_projection=true peft.encoder_hidden_size=32",
    ],
)
def test_a_typed_field_that_is_read(words, capsys):
    refuse(capsys, words, code=0)


def test_fields_that_are_known_to_be_idle_are_fields():
    for owner, fields in upstream.READ_BESIDE.items():
        names = {
            "TrainingArguments": "transformers.TrainingArguments",
            "PPOConfig": "runner.ppo.PPOConfig",
        }
        signatures = [config for config in read_all_configs() if owner in config.lineage]
        signatures += [read_signature(names[owner])] if owner in names else []
        signatures = signatures or [
            signature for signature in [read_signature(f"peft.{owner}")] if signature
        ]
        assert signatures, owner
        for field, condition in fields.items():
            assert any(field in signature.parameters for signature in signatures), (
                f"{owner} {field}"
            )
            condition_fields = [condition[0]] if condition and condition[1] != [] else []
            for name in condition_fields:
                assert any(name in signature.parameters for signature in signatures), (
                    f"{owner} {field}"
                )


def read_all_configs():
    from runner.validate.context import ValidationContext

    return ValidationContext({}).trainer_configs.values()


# --- Names that match nothing ---


@pytest.mark.quick(7)
@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("peft.inference_mode=true", "peft.inference_mode"),
        ("peft.init_lora_weights=false", "peft.init_lora_weights"),
        ("peft.target_modules=[]", "peft.target_modules"),
        ("peft.modules_to_save=[lm_haed]", "peft.modules_to_save"),
        ("peft.exclude_modules=[nope]", "peft.exclude_modules"),
        ("peft.full=[nope]", "peft.full"),
        ("peft.rank_pattern={nope:4}", "peft.rank_pattern"),
        ("peft.target_modules=[q_proj] peft.layers_to_transform=[99]", "peft.layers_to_transform"),
        (
            "peft.target_modules=[q_proj] peft.layers_to_transform=[0] peft.layers_pattern=x",
            "peft.layers_pattern",
        ),
        ("peft.layers_to_transform=[0]", "peft.layers_to_transform"),  # beside all-linear
    ],
)
def test_a_name_of_an_adapter_that_fits_nothing(words, where, capsys):
    assert f"  {where}\n" in refuse(capsys, f"peft=lora {words}")


@pytest.mark.slow
def test_the_blocks_of_an_adapter_divide_its_layers(capsys):
    refusal = refuse(capsys, "peft=oft peft.oft_block_size=5")
    assert "5, which does not divide the inputs of the layers" in refusal
    assert "type      peft.oft_block_size=4" in refusal
    refuse(capsys, "peft=oft peft.oft_block_size=4", code=0)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("AdaptionPromptConfig", ["adapter_len", "adapter_layers"]),
        ("PromptTuningConfig", ["num_virtual_tokens"]),
        ("AdaLoraConfig", ["total_step"]),
        ("XLoraConfig", ["hidden_size", "adapters"]),
    ],
)
def test_a_field_of_an_adapter_whose_default_is_of_no_use(target, fields, capsys):
    refusal = refuse(capsys, f"peft._target_=peft.{target}")
    for field in fields:
        assert f"  peft.{field}\n    found     missing, but {target} needs it" in refusal


def test_an_optimizer_that_needs_a_closure(capsys):
    refusal = refuse(capsys, "optimizer._target_=torch.optim.LBFGS")
    assert "LBFGS, whose step needs a closure" in refusal
    assert "type      optimizer=adamw" in refusal
    refuse(capsys, "optimizer._target_=torch.optim.SGD", code=0)


def test_learnt_prompts_leave_room_for_the_rows(capsys):
    refused = refuse(capsys, "peft=prefix peft.num_virtual_tokens=5000")
    assert "  peft.num_virtual_tokens\n    found     5000, but the model has" in refused


@pytest.mark.slow
def test_a_pattern_of_parameter_groups_that_fits_no_weight(capsys):
    refusal = refuse(capsys, "optimizer=adamw 'optimizer.groups={nope: {lr_ratio: 0.1}}'")
    assert "optimizer.groups.nope\n" in refusal
    assert "another pattern" in refusal
    refuse(capsys, "optimizer=adamw 'optimizer.groups={embed: {lr_ratio: 0.1}}'", code=0)


@pytest.mark.parametrize("name", ["runtime", "loss", "samples_per_second", "solve_time"])
def test_a_metric_of_a_name_that_would_be_lost(name, capsys):
    refusal = refuse(capsys, f"metric.{name}._target_=trl.rewards.accuracy_reward")
    assert f"metric.{name}\n" in refusal
    assert "another name" in refusal


@pytest.mark.slow
def test_pairs_whose_rejected_side_always_scores_higher_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pair = {"prompt": "q", "chosen": "a", "rejected": "b", "score_chosen": 1, "score_rejected": 9}
    Path("pairs.jsonl").write_text(
        "".join(json.dumps(pair | {"prompt": str(n)}) + "\n" for n in range(4))
    )
    refusal = refuse(capsys, "trainer=dpo dataset=pairs.jsonl")
    fix = "dataset.columns.chosen=rejected dataset.columns.rejected=chosen"
    assert "score_chosen is below score_rejected in all 4 rows" in refusal
    assert f"type      {fix}" in refusal
    refuse(capsys, f"trainer=dpo dataset=pairs.jsonl {fix}", code=0)
    assert "no rows are held out" in refuse(
        capsys, f"trainer=dpo dataset=pairs.jsonl {fix} objective=eval_x"
    )


@pytest.mark.slow
def test_a_model_whose_files_would_spoil_a_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, file, key, value in (
        ("ended", "config.json", "eos_token_id", 9999),
        ("unknown", "config.json", "quantization_config", {"quant_method": "evil"}),
        ("stopping", "generation_config.json", "stop_strings", ["x"]),
    ):
        shutil.copytree(TINY, name)
        path = Path(name, file)
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert "eos_token_id is 9999" in refuse(capsys, "model=ended")
    refusal = refuse(capsys, "model=unknown")
    assert 'by the method "evil"' in refusal
    assert re.search("expected  one of .*awq.* gptq", refusal)
    assert "stop_strings" in refuse(capsys, "trainer=grpo model=stopping")
    refuse(capsys, "trainer=ppo model=stopping", code=0)
    shutil.copytree(TINY, "rounded")
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file("rounded/model.safetensors")
    name = next(name for name in weights if name.endswith("up_proj.weight"))
    save_file(
        weights | {name: weights[name].to(torch.int8)},
        "rounded/model.safetensors",
        {"format": "pt"},
    )
    assert f"{name} of rounded has 8 bits" in refuse(capsys, "model=rounded")


# --- Trackers ---


@pytest.mark.quick(4)
@pytest.mark.parametrize("tracker", sorted(TRACKERS))
def test_a_tracker_that_is_not_installed_is_the_environments_fault(tracker, capsys, monkeypatch):
    monkeypatch.setattr("runner.validate.libraries.find_spec", lambda name: None)
    refusal = refuse(capsys, f"tracker.report_to={tracker}", code=5)
    assert "type      pip install" in refusal or "type      export" in refusal


@pytest.mark.slow
def test_a_tracker_of_the_users_own_may_have_its_variables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("runner.validate.libraries.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    Path("my/tracker").mkdir(parents=True)
    Path("my/tracker/mine.yaml").write_text(
        "report_to: neptune\nenvironment: {NEPTUNE_PROJECT: mine}\n"
    )
    refusal = refuse(capsys, "tracker=mine --config-dir my", code=5)
    assert "pip install 'neptune" in refusal
    assert "export NEPTUNE_API_TOKEN=" in refusal
    assert "NEPTUNE_PROJECT" not in refusal


@pytest.mark.slow
def test_swanlab_must_be_installed(capsys, monkeypatch):
    monkeypatch.setattr("runner.validate.libraries.find_spec", lambda name: None)
    assert "pip install 'swanlab>=0.6.2'" in refuse(capsys, "tracker=swanlab", code=5)


def test_the_key_of_a_tracker_is_refused_with_its_own_variable(capsys):
    refusal = refuse(capsys, "tracker=swanlab +tracker.environment.SWANLAB_API_KEY=not-a-form-4711")
    assert "type      export SWANLAB_API_KEY=..." in refusal
    assert "4711" not in refusal


def test_an_unknown_mode_of_a_tracker_in_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("SWANLAB_MODE", "dryrun")
    refusal = refuse(capsys, "seed=1", code=5)
    assert "expected  cloud, offline or disabled" in refusal
    assert "type      unset SWANLAB_MODE" in refusal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "code"), [("offline", 0), ("local", 0), ("cloud", 2), ("''", 2), ("unknown", 2)]
)
def test_an_experiment_may_choose_a_tracker_that_sends_nothing(
    tmp_path, monkeypatch, capsys, mode, code
):
    monkeypatch.setattr("runner.validate.libraries.find_spec", lambda name: name)
    Path("my/experiment").mkdir(parents=True)
    Path("my/experiment/x.yaml").write_text(
        "# @package _global_\n"
        f"tracker: {{report_to: swanlab, environment: {{SWANLAB_MODE: {mode}}}}}\n"
    )
    refusal = refuse(capsys, "experiment=x --config-dir my", code=code)
    assert ("sends the figures to a server" in refusal) is (code == 2)


# --- What only a start shows ---
FEW = ("dataset.limit.train=8", "dataset.limit.eval=4", "metric=none", "trainer.args.max_steps=1")


@pytest.mark.slow
def test_an_objective_that_no_evaluation_gives(train, capsys):
    assert train("trainer=sft", "objective=eval_nothing", *FEW).code == 2
    assert "type      objective=eval_loss" in capsys.readouterr().err


@pytest.mark.slow
def test_an_objective_that_no_training_logs(train, capsys):
    done = train("trainer=sft", "objective=nonsense", *FEW)
    assert done.code == 2
    assert done.state() == "finished"
    stderr = capsys.readouterr().err
    assert "no finished run has 'nonsense'" in stderr
    assert "objective=eval_loss" in stderr.partition("type  ")[2]
    # which is logged in training
    assert train("trainer=sft", "objective=entropy", "seed=1", *FEW).code == 0


@pytest.mark.slow
def test_a_trainer_that_leaves_out_every_row(train, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "zero.py").write_text(
        "def zero(completions, **_): return [0.0] * len(completions)\n"
    )
    words = (
        "trainer=a2po",
        "reward._target_=zero.zero",
        "allow=[zero]",
        "trainer.args.num_value_samples=2",
    )
    assert train(*words, "dataset=toy_sort", *FEW).code == 2
    assert "filter_all_incorrect=false" in capsys.readouterr().err
