"""Converts a Hugging Face BERT folder (safetensors) to Google's layout, which the entry points read, or back.

    python scripts/convert_hf_checkpoint.py --hf_dir bert-base-uncased --output_dir bases/bert-base-uncased
    python scripts/convert_hf_checkpoint.py --base_dir bases/my-bert --output_dir hf/my-bert --do_lower_case true

Writes `bert_config.json`, `vocab.txt` and `bert_model.ckpt.*`, or, the other way, `config.json`, `vocab.txt`,
`tokenizer_config.json` and `model.safetensors`. The work is done in `adapter_bert/weights/exchange/huggingface.py`.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Dict, List

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common.errors import UserError, exits_on_user_error
from adapter_bert.weights import bases
from adapter_bert.weights.exchange import huggingface


def tokenizer_settings(hf_dir: str) -> Dict[str, Any]:
    """What a folder says of its tokenizer: `tokenizer_config.json` or, where silent, `tokenizer.json`."""
    settings: Dict[str, Any] = {}
    fast, slow = (os.path.join(hf_dir, name) for name in ("tokenizer.json", "tokenizer_config.json"))
    normalizer = huggingface.read_json(fast).get("normalizer") if os.path.isfile(fast) else None
    if isinstance(normalizer, dict):
        names = {
            "do_lower_case": "lowercase",
            "strip_accents": "strip_accents",
            "tokenize_chinese_chars": "handle_chinese_chars",
        }
        settings = {slow_name: normalizer.get(fast_name) for slow_name, fast_name in names.items()}
    if os.path.isfile(slow):
        settings.update(huggingface.read_json(slow))
    return settings


def describe_tokenizer(settings: Dict[str, Any]) -> List[str]:
    """Which `--do_lower_case` to use, and where this project's tokenizer does something else."""
    lower = settings.get("do_lower_case")
    says = {True: "lower-cases", False: "keeps the case"}.get(
        lower, "does not say whether it lower-cases (Hugging Face then does)"
    )
    lower = lower is not False
    lines = [f"Tokenizer: {says}: use --do_lower_case={str(lower).lower()}"]
    for key, ours in (("strip_accents", lower), ("tokenize_chinese_chars", True)):
        if settings.get(key) not in (None, ours):
            lines.append(
                f"Warning: the tokenizer has {key} = {str(settings[key]).lower()}, which is not "
                f"known here: text is split as with {str(ours).lower()}."
            )
    return lines


def describe_weights(done: huggingface.Conversion) -> List[str]:
    """What was read and what was written."""
    config = done.config
    return [
        f"Read: {', '.join(done.sources)} ({config['num_hidden_layers']} layers, hidden size "
        f"{config['hidden_size']}, {config['num_attention_heads']} heads, {config['vocab_size']} WordPieces, "
        f"activation {config['hidden_act']})",
        f"Wrote: {done.tensors} tensors, {done.parameters:,} parameters, to {done.output_dir}",
    ]


def describe(done: huggingface.Conversion, settings: Dict[str, Any]) -> str:
    """The report that is printed at the end."""
    base, config = done.output_dir, done.config
    lines = [*describe_weights(done), f"Skipped: {', '.join(done.skipped) or 'nothing'}"]
    if done.pooler_is_random:
        lines.append(
            "Warning: the weights have no pooler (a masked language model's have none), so a random "
            "one was written. In adapter mode it is frozen, so it stays random."
        )
    lines.extend(describe_tokenizer(settings))
    lower = str(settings.get("do_lower_case") is not False).lower()
    flags = [
        "--task_name=CoLA --do_train=true --do_eval=true --data_dir=glue_data/CoLA --output_dir=runs/cola",
        f"--bert_config_file={os.path.join(base, bases.CONFIG_NAME)}",
        f"--vocab_file={os.path.join(base, bases.VOCAB_NAME)}",
        f"--init_checkpoint={os.path.join(base, bases.CHECKPOINT_NAME)}",
        f"--do_lower_case={lower} --max_seq_length={min(128, config['max_position_embeddings'])}",
    ]
    command = " \\\n    ".join(["  python run_classifier.py", *flags])
    return "\n".join([*lines, "Next, for example:", command])


def convert(args: argparse.Namespace) -> str:
    """Converts to Google's layout; returns the report."""
    settings = tokenizer_settings(args.hf_dir)
    return describe(huggingface.convert(args.hf_dir, args.output_dir, args.overwrite), settings)


def convert_back(args: argparse.Namespace) -> str:
    """Converts to Hugging Face's layout; returns the report."""
    if args.do_lower_case is None:
        raise UserError("--base_dir needs --do_lower_case=true or =false: Google's layout does not say which.")
    base = bases.Base.find(args.base_dir)
    done = huggingface.export_base(base, args.output_dir, args.do_lower_case == "true", args.overwrite)
    lines = [*describe_weights(done), "Next, for example:"]
    return "\n".join([*lines, f"  transformers.BertModel.from_pretrained({done.output_dir!r})"])


@exits_on_user_error
def main() -> None:
    """Reads the flags, converts, reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--hf_dir", help="to be read: config.json, model.safetensors, vocab.txt")
    source.add_argument("--base_dir", help="to be read: bert_config.json, bert_model.ckpt.*, vocab.txt")
    parser.add_argument("--output_dir", required=True, help="where the results go; made if needed")
    parser.add_argument(
        "--do_lower_case", choices=("true", "false"), help="with --base_dir: what its tokenizer is to do"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace results that are already there")
    args = parser.parse_args()
    if "://" in args.output_dir:
        raise UserError(f"--output_dir={args.output_dir} is no local folder: convert to one, then copy it.")
    print(convert(args) if args.hf_dir else convert_back(args))


if __name__ == "__main__":
    main()
