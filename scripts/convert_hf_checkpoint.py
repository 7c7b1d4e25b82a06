"""Convert a Hugging Face BERT folder (safetensors) to Google's layout, which the entry points read, or back.

    python scripts/convert_hf_checkpoint.py --hf_dir bert-base-uncased --output_dir bases/bert-base-uncased
    python scripts/convert_hf_checkpoint.py --base_dir bases/my-bert --output_dir hf/my-bert --do_lower_case true

Writes `bert_config.json`, `vocab.txt` and `bert_model.ckpt.*`, or in the other direction `config.json`, `vocab.txt`,
`tokenizer_config.json` and `model.safetensors`.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Dict, List

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import files
from adapter_bert.common.errors import UserError, exits_on_user_error
from adapter_bert.weights import bases
from adapter_bert.weights.exchange import huggingface

# Settings of tokenizer_config.json -> keys of the normalizer in tokenizer.json
_TOKENIZER_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def tokenizer_settings(hf_dir: str) -> Dict[str, Any]:
    """Return the settings in `tokenizer_config.json`, or else in `tokenizer.json`; those of neither are None."""
    slow, fast = (os.path.join(hf_dir, name) for name in (huggingface.HF_TOKENIZER, huggingface.HF_FAST_TOKENIZER))
    settings = files.read_json_object(slow) if os.path.isfile(slow) else {}
    normalizer = files.read_json_object(fast).get("normalizer") if os.path.isfile(fast) else None
    return {name: settings.get(name, (normalizer or {}).get(key)) for name, key in _TOKENIZER_SETTINGS.items()}


def describe_tokenizer(settings: Dict[str, Any], lower: bool) -> List[str]:
    """Return the `--do_lower_case` to use, and warnings about settings that this project's tokenizer lacks."""
    unknown = " (by default; its files do not say)" if settings["do_lower_case"] is None else ""
    case = f"{'lower-cases' if lower else 'keeps case'}{unknown}"
    lines = [f"Tokenizer: {case}: use --do_lower_case={str(lower).lower()}"]
    for key, ours in (("strip_accents", lower), ("tokenize_chinese_chars", True)):
        if settings[key] not in (None, ours):
            lines.append(
                f"Warning: the tokenizer has {key} = {str(settings[key]).lower()}, which is not supported; text is "
                f"tokenized with {str(ours).lower()}."
            )
    return lines


def describe_weights(done: huggingface.Conversion) -> List[str]:
    """Return lines about the weights that were read and written."""
    config = done.config
    return [
        f"Read: {', '.join(done.sources)} ({config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {config.vocab_size} WordPieces, activation {config.hidden_act})",
        f"Wrote: {done.tensors} tensors, {done.parameters:,} parameters, to {done.output_dir}",
    ]


def convert(args: argparse.Namespace) -> List[str]:
    """Convert to Google's layout; return the lines of a report."""
    settings = tokenizer_settings(args.hf_dir)
    lower = settings["do_lower_case"] is not False
    done = huggingface.convert(args.hf_dir, args.output_dir, args.overwrite)
    lines = [*describe_weights(done), f"Skipped: {', '.join(done.skipped) or 'nothing'}"]
    if done.pooler_is_random:
        lines.append(
            "Warning: the weights have no pooler, like those of masked language models; a random one was written. "
            "Adapter tuning freezes it, so it stays random."
        )
    flags = [
        "--task_name=CoLA --do_train=true --do_eval=true --data_dir=glue_data/CoLA --output_dir=runs/cola",
        *(f"--{name}={value}" for name, value in bases.Base.find(done.output_dir).flags().items()),
        f"--do_lower_case={str(lower).lower()} --max_seq_length={min(128, done.config.max_position_embeddings)}",
    ]
    command = " \\\n    ".join(["  python run_classifier.py", *flags])
    return [*lines, *describe_tokenizer(settings, lower), "Next, for example:", command]


def convert_back(args: argparse.Namespace) -> List[str]:
    """Convert to Hugging Face's layout; return the lines of a report."""
    if args.do_lower_case is None:
        raise UserError("--base_dir needs --do_lower_case=true or =false: Google's layout does not record it.")
    base = bases.Base.find(args.base_dir)
    done = huggingface.export_base(base, args.output_dir, args.do_lower_case == "true", args.overwrite)
    loading = f"  transformers.BertModel.from_pretrained({done.output_dir!r})"
    return [*describe_weights(done), "Next, for example:", loading]


@exits_on_user_error
def main() -> None:
    """Parse the flags, convert, and print a report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--hf_dir", help="input folder with config.json, model.safetensors, vocab.txt")
    source.add_argument("--base_dir", help="input folder with bert_config.json, bert_model.ckpt.*, vocab.txt")
    parser.add_argument("--output_dir", required=True, help="output folder; created if necessary")
    parser.add_argument("--do_lower_case", choices=("true", "false"), help="with --base_dir: whether it lower-cases")
    parser.add_argument("--overwrite", action="store_true", help="replace existing results")
    args = parser.parse_args()
    print("\n".join(convert(args) if args.hf_dir else convert_back(args)))


if __name__ == "__main__":
    main()
