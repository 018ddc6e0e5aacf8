#!/usr/bin/env bash
set -e
nproc_per_node=4
BASE=${BASE:-Qwen/Qwen2.5-0.5B-Instruct}
HF_TOKEN=hf_ABCDEFGHIJKLMNOPQRSTUVWXYZ012345

NPROC_PER_NODE=$nproc_per_node \
swift rlhf --rlhf_type dpo \
    --model "$BASE" --use_hf true \
    --tuner_type full \
    --dataset 'hf::trl-lib/ultrafeedback_binarized:default#2000' \
    --hub_token $HF_TOKEN \
    --rpo_alpha 0.1 \
    --per_device_train_batch_size 2 \
    --num_train_epochs 1 \
    --learning_rate 5e-7 \
    --max_length 1024 \
    --truncation_strategy right \
    --attn_impl flash_attn \
    --deepspeed zero2 \
    --report_to wandb tensorboard \
    --eval_strategy no \
    --output_dir output/dpo 2>&1 | tee dpo.log
