#!/bin/bash
# the policy goes on from the adapter of the first stage
export CUDA_VISIBLE_DEVICES=0
MODEL=meta-llama/Meta-Llama-3-8B-Instruct

llamafactory-cli train \
    --stage ppo --do_train true \
    --model_name_or_path $MODEL \
    --reward_model saves/llama3-8b/lora/reward \
    --finetuning_type full \
    --dataset identity --dataset_dir data \
    --template llama3 --cutoff_len 2048 \
    --output_dir saves/llama3-8b/lora/ppo \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 \
    --learning_rate 1.0e-5 --num_train_epochs 3.0 --lr_scheduler_type cosine \
    --ppo_epochs 2 --ppo_whiten_rewards true \
    --max_new_tokens 512 --top_k 0 --top_p 0.9 --bf16
