"""The JSON of TensorFlow Serving's REST API, version 1.

    POST /v1/models/sst2:predict   {"instances": ["a fine film", {"texts": "dull"}]}     one example each (rows)
                                   {"inputs": {"texts": ["a fine film", "dull"]}}        one list per input (columns)
    POST /v1/models/sst2:classify  {"examples": [{"texts": "a fine film"}]}
    POST /v1/models/stsb:regress   {"examples": [{"texts": "One.", "second_texts": "Two."}]}

As in TensorFlow Serving, a single output of predict appears without its name.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Dict, List, Mapping, Sequence

from adapter_bert.common import json_files
from adapter_bert.serving.engine import LoadedTask, Prediction
from adapter_bert.serving.server.examples import (
    Example,
    check_count,
    check_names,
    inputs_of,
    make_examples,
    output_types,
    output_values,
)
from adapter_bert.serving.server.request_body import RequestError, RequestLimits

_SIGNATURE = "serving_default"
_PREDICT_METHOD = "tensorflow/serving/predict"
_TYPES = {"BYTES": "DT_STRING", "FP32": "DT_FLOAT"}


def _check_signature(content: Mapping[str, Any], others: Sequence[str]) -> None:
    """Check the name of the signature, and that there are no keys besides those of the API."""
    name = content.get("signature_name", _SIGNATURE)
    if name not in ("", _SIGNATURE):
        raise RequestError(400, f"Unknown signature {json_files.describe(name)}; there is only {_SIGNATURE!r}.")
    unknown = sorted(set(content) - {"signature_name", *others})
    if unknown:
        raise RequestError(400, f"Unknown key {unknown[0]!r:.60}.")


def _decode(value: Any) -> Any:
    """Return the text of `{"b64": "…"}`, TensorFlow Serving's form of bytes; other values as they are."""
    if not isinstance(value, dict) or set(value) != {"b64"} or not isinstance(value["b64"], str):
        return value
    try:
        return base64.b64decode(value["b64"], validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        raise RequestError(400, "A value with b64 is not UTF-8 text in Base64.") from None


def parse_predict(task: LoadedTask, content: Mapping[str, Any], limits: RequestLimits) -> List[Example]:
    """Return the examples of a predict request."""
    _check_signature(content, ("instances", "inputs"))
    if ("instances" in content) == ("inputs" in content):
        raise RequestError(400, "Expected either 'instances' (rows) or 'inputs' (columns).")
    if "instances" in content:
        return make_examples(task, _columns(task, _list(content, "instances", limits)), limits)
    names, _ = inputs_of(task)
    columns = content["inputs"]
    if not isinstance(columns, dict) or set(columns) == {"b64"}:
        columns = {names[0]: columns}
    lists = {name: column if isinstance(column, list) else [column] for name, column in columns.items()}
    return make_examples(task, {name: [_decode(v) for v in column] for name, column in lists.items()}, limits)


def _list(content: Mapping[str, Any], key: str, limits: RequestLimits) -> List[Any]:
    found = content.get(key)
    if not isinstance(found, list) or not found:
        raise RequestError(400, f"{key!r} must be a list with at least one item, found {json_files.describe(found)}.")
    check_count(len(found), limits)
    return found


def _columns(task: LoadedTask, rows: Sequence[Any]) -> Dict[str, List[Any]]:
    """Return input -> values, given one value or one object of named values per example."""
    names, _ = inputs_of(task)
    decoded = map(_decode, rows)
    named = [row if isinstance(row, dict) else {names[0]: row} for row in decoded]
    for index, row in enumerate(named):
        check_names(task, row, f"Item {index}: unknown")
    given = [name for name in names if any(name in row for row in named)]
    return {name: [_decode(row.get(name)) for row in named] for name in given}


def parse_examples(task: LoadedTask, content: Mapping[str, Any], limits: RequestLimits) -> List[Example]:
    """Return the examples of a classify or regress request; values may be lists of one text, as in `tf.Example`."""
    _check_signature(content, ("examples", "context"))
    context = content.get("context", {})
    rows = []
    for row in _list(content, "examples", limits):
        if not isinstance(row, dict) or not isinstance(context, dict):
            raise RequestError(400, "'context' and the items of 'examples' must be objects.")
        features = {**context, **row}
        rows.append({name: v[0] if isinstance(v, list) and len(v) == 1 else v for name, v in features.items()})
    return make_examples(task, _columns(task, rows), limits)


def format_predict(task: LoadedTask, content: Mapping[str, Any], results: Sequence[Any]) -> Dict[str, Any]:
    """Return the answer to a predict request in the form, rows or columns, of the request."""
    columns = output_values(task, results)
    single = next(iter(columns.values())) if len(columns) == 1 else None
    if "inputs" in content:
        return {"outputs": columns if single is None else single}
    if single is not None:
        return {"predictions": single}
    return {"predictions": [dict(zip(columns, values)) for values in zip(*columns.values())]}


def check_method(task: LoadedTask, method: str) -> None:
    """Raise a `RequestError` unless the task supports a method."""
    config = task.pack_config
    if (method == "classify" and not config.labels) or (method == "regress" and config.head != "regression"):
        raise RequestError(400, f"The task is for {config.head}; {method} is not possible.")


def format_results(method: str, results: Sequence[Prediction]) -> Dict[str, Any]:
    """Return the answer to a classify or regress request."""
    if method == "regress":
        return {"results": [each.number for each in results]}
    return {"results": [[list(pair) for pair in each.probabilities.items()] for each in results]}


def format_status(version: int) -> Dict[str, Any]:
    """Return the status of a task, the JSON of `GetModelStatusResponse`."""
    status = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(version), "state": "AVAILABLE", "status": status}]}


def format_metadata(task: LoadedTask, name: str, version: int) -> Dict[str, Any]:
    """Return the metadata of a task, the JSON of `GetModelMetadataResponse`."""
    signature = {
        "inputs": {each: _tensor(each, "BYTES", [-1]) for each in inputs_of(task)[0]},
        "outputs": {each: _tensor(each, *described) for each, described in output_types(task).items()},
        "method_name": _PREDICT_METHOD,
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": {"signature_def": {_SIGNATURE: signature}}},
    }


def _tensor(name: str, kind: str, shape: Sequence[int]) -> Dict[str, Any]:
    dims = [{"size": str(size), "name": ""} for size in shape]
    return {"dtype": _TYPES[kind], "tensor_shape": {"dim": dims, "unknown_rank": False}, "name": f"{name}:0"}
