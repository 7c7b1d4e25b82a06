"""Convert a Hugging Face BERT folder (safetensors) to Google's layout, which the entry points read, or back.

    python scripts/convert_hf_checkpoint.py --hf_dir bert-base-uncased --output_dir bases/bert-base-uncased
    python scripts/convert_hf_checkpoint.py --base_dir bases/my-bert --output_dir hf/my-bert --do_lower_case true

Writes `bert_config.json`, `vocab.txt` and `bert_model.ckpt.*`, or in the other direction `config.json`, `vocab.txt`,
`tokenizer_config.json` and `model.safetensors`.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Dict, List, Mapping, Optional

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import files, json_files
from adapter_bert.common.errors import UserError, exits_on_user_error
from adapter_bert.common.streams import printable
from adapter_bert.model import parameters
from adapter_bert.weights import bases
from adapter_bert.weights.exchange import huggingface

# Settings of tokenizer_config.json -> keys of the normalizer in tokenizer.json
_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def tokenizer_settings(hf_dir: str) -> Dict[str, Any]:
    """Return the settings in `tokenizer_config.json`, or else in `tokenizer.json`; None for those in neither."""
    slow, fast = (os.path.join(hf_dir, name) for name in (huggingface.HF_TOKENIZER, huggingface.HF_FAST_TOKENIZER))
    settings = json_files.read_object(slow) if os.path.isfile(slow) else {}
    tokenizer = json_files.read_object(fast) if os.path.isfile(fast) else {}
    json_files.check_types(tokenizer, {"normalizer": Optional[Mapping[str, Any]]}, fast)
    normalizer = tokenizer.get("normalizer") or {}
    return {name: settings.get(name, normalizer.get(key)) for name, key in _SETTINGS.items()}


def print_weights(base: bases.Base, sources: List[str], output_dir: str) -> None:
    """Report the weights that were read and written."""
    config, shapes = base.config, base.shapes
    print(
        f"Read: {printable(', '.join(sources))} ({config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {config.vocab_size} WordPieces, activation {config.hidden_act})"
    )
    print(f"Wrote: {len(shapes)} tensors, {parameters.count(shapes):,} parameters, to {os.path.realpath(output_dir)}")


def convert(args: argparse.Namespace) -> None:
    """Convert to Google's layout, and print a report."""
    settings = tokenizer_settings(args.hf_dir)
    done = huggingface.convert(args.hf_dir, args.output_dir, args.overwrite)
    base = bases.Base.find(os.path.realpath(args.output_dir))
    print_weights(base, done.sources, args.output_dir)
    print(f"Skipped: {printable(', '.join(done.skipped)) or 'nothing'}")
    if done.pooler_is_random:
        print("Warning: the weights have no pooler, like those of masked language models; a random one was written.")
        print("Adapter tuning freezes it, so it stays random.")
    lower = settings["do_lower_case"] is not False
    flag = f"--do_lower_case={str(lower).lower()}"
    unknown = " (by default; its files do not say)" if settings["do_lower_case"] is None else ""
    print(f"Tokenizer: {'lower-cases' if lower else 'keeps case'}{unknown}: use {flag}")
    for key, ours in (("strip_accents", lower), ("tokenize_chinese_chars", True)):
        if settings[key] not in (None, ours):
            found, used = json_files.describe(settings[key]), json_files.describe(ours)
            print(f"Warning: the tokenizer has {key} = {found}, which is not supported; text is tokenized with {used}.")
    flags = [
        "  python run_classifier.py",
        "--task_name=CoLA --do_train=true --do_eval=true --data_dir=glue_data/CoLA --output_dir=runs/cola",
        *(f"--{name}={value}" for name, value in base.flags().items()),
        f"{flag} --max_seq_length={min(128, base.config.max_position_embeddings)}",
    ]
    print("Next, for example:", " \\\n    ".join(flags), sep="\n")


def convert_back(args: argparse.Namespace) -> None:
    """Convert to Hugging Face's layout, and print a report."""
    if args.do_lower_case is None:
        raise UserError("--base_dir needs --do_lower_case=true or =false: Google's layout does not record it.")
    base = bases.Base.find(args.base_dir)
    huggingface.export_base(base, args.output_dir, args.do_lower_case == "true", args.overwrite)
    print_weights(base, [base.checkpoint], args.output_dir)
    print(f"Next, for example:\n  transformers.BertModel.from_pretrained({os.path.realpath(args.output_dir)!r})")


@exits_on_user_error
def main() -> None:
    """Parse the flags and convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--hf_dir", help="input folder with config.json, model.safetensors, vocab.txt")
    source.add_argument("--base_dir", help="input folder with bert_config.json, bert_model.ckpt.*, vocab.txt")
    parser.add_argument("--output_dir", required=True, help="output folder; created if necessary")
    parser.add_argument("--do_lower_case", choices=("true", "false"), help="with --base_dir: whether it lower-cases")
    parser.add_argument("--overwrite", action="store_true", help="replace existing results")
    args = parser.parse_args()
    with files.user_errors():
        convert(args) if args.hf_dir else convert_back(args)


if __name__ == "__main__":
    main()
