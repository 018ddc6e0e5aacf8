#!/bin/bash
# Two sets, of which one is cut to a number of rows.
python mason.py \
    --cluster our/cluster \
    --num_nodes 2 \
    --gpus 8 -- accelerate launch \
    --mixed_precision bf16 \
    --num_processes 8 \
    --use_deepspeed \
    --deepspeed_config_file configs/stage3.conf \
    open_instruct/finetune.py \
    --exp_name small_sft \
    --model_name_or_path Qwen/Qwen2.5-0.5B \
    --tokenizer_name Qwen/Qwen2.5-0.5B \
    --use_slow_tokenizer \
    --dataset_mixer_list trl-lib/Capybara 0.5 trl-lib/ultrafeedback_chat 2000 \
    --max_seq_length 2048 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --learning_rate 1e-5 \
    --warmup_ratio 0.03 \
    --num_train_epochs 2 \
    --gradient_checkpointing \
    --checkpointing_steps 500 \
    --with_tracking \
    --seed 3
