set -x
ACTORS=4

ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "/data/work"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --actor_num_nodes 1 \
   --actor_num_gpus_per_node $ACTORS \
   --ref_num_gpus_per_node $ACTORS \
   --vllm_num_engines 2 \
   --colocate_actor_ref \
   --pretrain EleutherAI/pythia-160m \
   --reward_pretrain org/reward-a,org/reward-b \
   --save_path out/pythia-rlhf \
   --micro_train_batch_size 8 \
   --train_batch_size 128 \
   --micro_rollout_batch_size 16 \
   --rollout_batch_size 256 \
   --n_samples_per_prompt 2 \
   --max_epochs 2 \
   --num_episodes 3 \
   --prompt_max_len 512 \
   --generate_max_len 256 \
   --zero_stage 2 \
   --bf16 \
   --actor_learning_rate 5e-7 \
   --critic_learning_rate 9e-6 \
   --init_kl_coef 0.02 \
   --kl_estimator k2 \
   --gamma 1.0 \
   --lambd 0.95 \
   --prompt_data org/prompts,org/more \
   --prompt_data_probs 0.7,0.3 \
   --input_key question \
   --input_template "User: {}
Assistant: " \
   --max_samples 5000 \
   --normalize_reward \
   --packing_samples \
   --flash_attn \
   --gradient_checkpointing \
   --use_wandb 0123456789abcdef0123456789abcdef01234567
