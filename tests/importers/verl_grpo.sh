#!/usr/bin/env bash
set -x
MODEL=Qwen/Qwen2.5-1.5B-Instruct
ray job submit --working-dir . -- \
    python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="['$HOME/data/gsm8k/train.parquet', '$HOME/data/math/train.parquet']" \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=64 \
    data.max_prompt_length=512 \
    data.max_response_length=$((256 * 4)) \
    data.filter_overlong_prompts=True \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.actor.optim.lr=3e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=5 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.002 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.entropy_coeff=0.001 \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.n=8 \
    ++actor_rollout_ref.rollout.temperature=0.9 \
    algorithm.norm_adv_by_std_in_grpo=False \
    +trainer.val_before_train=False \
    trainer.logger='["console","tensorboard"]' \
    trainer.project_name=tried trainer.experiment_name=first \
    trainer.n_gpus_per_node=4 trainer.nnodes=1 \
    trainer.save_freq=10 trainer.test_freq=5 \
    trainer.total_training_steps=100 "$@" 2>&1 | tee log.txt
