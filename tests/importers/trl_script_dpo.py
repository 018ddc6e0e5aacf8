"""Preferences with a small adapter, started by hand: python trl_script_dpo.py --beta 0.2."""

import argparse
import os

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import DPOConfig, DPOTrainer

BASE = os.environ.get("BASE_MODEL", "Qwen/Qwen2.5-0.5B-Instruct")
HUB_TOKEN = "hf_ABCDEFGHIJKLMNOPQRSTUVWXYZ12345678"
ROWS = 2_000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--beta", type=float, default=0.05)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    bits = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    model = AutoModelForCausalLM.from_pretrained(
        BASE, quantization_config=bits, torch_dtype=torch.bfloat16, token=HUB_TOKEN
    )
    tokenizer = AutoTokenizer.from_pretrained(BASE, token=HUB_TOKEN)
    tokenizer.pad_token = tokenizer.eos_token

    rows = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
    rows = rows.shuffle(seed=1).select(range(ROWS))
    parts = rows.train_test_split(test_size=0.1, seed=1)

    batch = 4
    config = DPOConfig(
        output_dir=args.out,
        beta=args.beta,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=16 // batch,
        learning_rate=5e-6,
        num_train_epochs=1,
        eval_strategy="steps",
        eval_steps=50,
        bf16=torch.cuda.is_bf16_supported(),
        warmup_ratio=0.1,
        seed=len(rows),
    )
    adapter = LoraConfig(r=32, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    trainer = DPOTrainer(
        model=model,
        args=config,
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        processing_class=tokenizer,
        peft_config=adapter,
    )
    trainer.train()
    trainer.push_to_hub(token=HUB_TOKEN)


if __name__ == "__main__":
    main()
