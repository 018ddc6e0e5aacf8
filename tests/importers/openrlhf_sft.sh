set -x

read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \
   --data.max_len 1024 \
   --data.dataset org/chats \
   --data.input_key messages \
   --data.apply_chat_template \
   --data.multiturn \
   --eval.dataset org/chats \
   --eval.split test \
   --eval.steps -1 \
   --train.batch_size 64 \
   --train.micro_batch_size 4 \
   --train.max_epochs 3 \
   --model.model_name_or_path Qwen/Qwen3-0.6B \
   --model.aux_loss_coef 0.01 \
   --ckpt.output_dir ./checkpoint/chats \
   --ckpt.save_steps -1 \
   --ds.zero_stage 3 \
   --ds.param_dtype bf16 \
   --ds.lora.rank 32 \
   --ds.lora.alpha 64 \
   --ds.packing_samples \
   --adam.lr 2e-5 \
   --adam.betas 0.9 0.98 \
   --logger.wandb.project chats
EOF

if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
