#!/usr/bin/env bash
# Train one GLUE task with five seeds, using the flags of the original BERT, and print the scores of each seed and their
# means.
#
#   scripts/sweep_glue.sh CoLA glue_data/CoLA bert runs/cola_seeds [further flags of run_classifier.py]
#
# The same command continues an interrupted sweep. scripts/run_sweep.py is faster and can do more.
set -euo pipefail
if [ $# -lt 4 ]; then
  echo "Usage: $0 TASK DATA_DIR BERT_DIR OUTPUT_DIR [flags]" >&2
  exit 2
fi
task=$1 data=$2 bert=$3 output=$4
shift 4
python=${PYTHON:-python}
root=$(dirname "$0")/..

for seed in 1 2 3 4 5; do
  "$python" "$root/run_classifier.py" --task_name="$task" --do_train=true --do_eval=true --data_dir="$data" \
    --vocab_file="$bert/vocab.txt" --bert_config_file="$bert/bert_config.json" \
    --init_checkpoint="$bert/bert_model.ckpt" --max_seq_length=128 --train_batch_size=32 --learning_rate=3e-4 --num_train_epochs=3.0 \
    --seed=$seed --output_dir="$output/seed_$seed" "$@"
done

echo
for seed in 1 2 3 4 5; do
  sed -n "s/^eval_/seed $seed  /p" "$output/seed_$seed/eval_results.txt"
done | grep -v loss | LC_ALL=C sort -k3,3 -k2,2n | awk '
  function flush() { if (n) printf "mean    %-12s %.4f  (%d seeds)\n", name, sum / n, n; n = sum = 0 }
  $3 != name { flush(); name = $3 }
  { printf "%s %-2s %-12s %.4f\n", $1, $2, $3, $5; sum += $5; n++ }
  END { flush() }'
