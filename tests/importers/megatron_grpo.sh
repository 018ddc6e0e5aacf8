# 8 devices, of which two hold one copy of the model
SYSTEM="Think first.
Then answer in \\boxed{}."
FLAGS=(
    --lr 2e-5 --min_lr 2e-6   # a tenth of it
    --max_completion_length $((1024 * 2))
)
FLAGS+=(--seed 7)

MAX_PIXELS=602112 NPROC_PER_NODE=8 \
megatron rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen2.5-VL-3B-Instruct \
    --external_plugins examples/plugin.py \
    --reward_funcs external_acc format \
    --dataset 'hf::lmms-lab/multimodal-open-r1-8k-verified#2000' \
    --system "$SYSTEM" \
    --tuner_type lora --lora_rank 16 \
    --tensor_model_parallel_size 2 --sequence_parallel true \
    --micro_batch_size 2 --global_batch_size 64 --steps_per_generation 2 --num_generations 8 \
    --num_train_epochs 1 --lr_warmup_fraction 0.05 \
    --moe_aux_loss_coeff 1e-3 --recompute_granularity full --no_save_optim true \
    --use_vllm true --vllm_mode colocate --vllm_max_model_len 8192 --sleep_level 1 \
    "${FLAGS[@]}"

swift infer --adapters output
