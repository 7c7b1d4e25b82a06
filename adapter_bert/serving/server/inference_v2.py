"""The messages of the Open Inference Protocol, version 2 (KServe, Triton), with extensions that Triton's client uses.

Extensions: binary tensors after the JSON (`Inference-Header-Content-Length`), classification (`class_count`), and the
model repository. Inputs are of type BYTES and of shape [n] or [n, 1].
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.common import json_files
from adapter_bert.serving.engine import LoadedTask
from adapter_bert.serving.server.examples import (
    Example,
    check_count,
    inputs_of,
    make_examples,
    output_types,
    output_values,
)
from adapter_bert.serving.server.request_body import RequestError, RequestLimits, parse_object

HEADER_LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ("binary_tensor_data", "classification", "model_repository")
_NUMBERS = ("probabilities", "values")


class InferRequest(NamedTuple):
    """A request to be answered."""

    examples: List[Example]
    content: Mapping[str, Any]  # its JSON
    seconds: Optional[float]  # of its parameter `timeout`


def parse(task: LoadedTask, body: bytes, header: Optional[str], limits: RequestLimits) -> InferRequest:
    """Return the examples of a request; `header` is the value of `Inference-Header-Content-Length`."""
    size = len(body)
    if header is not None:
        if not (header.isascii() and header.isdigit()) or len(header) > 12 or int(header) > size:
            raise RequestError(400, f"{HEADER_LENGTH} must be a number of bytes in the body.")
        size = int(header)
    content, binary = parse_object(body[:size]), body[size:]
    columns: Dict[str, List[str]] = {}
    tensors = content.get("inputs")
    if not isinstance(tensors, list) or not all(isinstance(each, dict) for each in tensors):
        raise RequestError(400, "'inputs' must be a list of tensors.")
    for tensor in tensors:
        name = tensor.get("name")
        if not isinstance(name, str) or name in columns:
            raise RequestError(400, "Each input needs a name of its own.")
        columns[name], binary = _texts(tensor, f"The input {name!r:.60}", binary, limits)
    if binary:
        raise RequestError(400, f"{len(binary)} bytes of the body belong to no input.")
    timeout = _parameters(content).get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0):
        raise RequestError(400, "The parameter 'timeout' must be a number of microseconds.")
    return InferRequest(make_examples(task, columns, limits), content, timeout / 1e6 if timeout else None)


def _parameters(content: Mapping[str, Any]) -> Mapping[str, Any]:
    found = content.get("parameters", {})
    if not isinstance(found, dict):
        raise RequestError(400, "'parameters' must be an object.")
    return found


def _texts(tensor: Mapping[str, Any], where: str, binary: bytes, limits: RequestLimits) -> Tuple[List[str], bytes]:
    """Return the texts of a tensor, and the rest of the binary data."""
    shape = tensor.get("shape")
    if (
        not isinstance(shape, list)
        or not all(type(size) is int and size > 0 for size in shape)
        or len(shape) not in (1, 2)
        or shape[1:] not in ([], [1])
    ):
        raise RequestError(400, f"{where} has the shape {json_files.describe(shape)}; expected [n] or [n, 1].")
    check_count(shape[0], limits)
    if tensor.get("datatype") != "BYTES":
        raise RequestError(400, f"{where} must be of datatype BYTES.")
    size = _parameters(tensor).get("binary_data_size")
    if size is None:
        values = _flat(tensor.get("data"))
    elif type(size) is not int or not 0 <= size <= len(binary) or "data" in tensor:
        raise RequestError(400, f"{where}: binary_data_size must be a number of bytes after the JSON.")
    else:
        values, binary = _split(binary[:size], shape[0], where), binary[size:]
    if len(values) != shape[0]:
        raise RequestError(400, f"{where} has {len(values)} values; its shape is {shape}.")
    return values, binary


def _flat(data: Any) -> List[Any]:
    """Return the values of a tensor in JSON, which may be nested."""
    if not isinstance(data, list):
        raise RequestError(400, "'data' must be a list.")
    return [value for item in data for value in (item if isinstance(item, list) else [item])]


def _split(data: bytes, count: int, where: str) -> List[str]:
    """Return texts, each of which follows its length in four bytes; at most one more than `count`."""
    found: List[str] = []
    start = 0
    while start < len(data) and len(found) <= count:
        end = start + 4
        if end <= len(data):
            end += struct.unpack_from("<I", data, start)[0]
        if end > len(data):
            raise RequestError(400, f"{where}: a value ends after the data.")
        try:
            found.append(data[start + 4 : end].decode("utf-8"))
        except UnicodeDecodeError:
            raise RequestError(400, f"{where}: a value is not UTF-8 text.") from None
        start = end
    return found


def check_outputs(task: LoadedTask, content: Mapping[str, Any]) -> None:
    """Check the requested outputs, before anything is computed."""
    wanted, names = content.get("outputs"), list(output_types(task))
    if wanted is not None and (not isinstance(wanted, list) or not all(isinstance(each, dict) for each in wanted)):
        raise RequestError(400, "'outputs' must be a list of objects.")
    for each in wanted or ():
        if each.get("name") not in names:
            found = json_files.describe(each.get("name"))
            raise RequestError(400, f"Unknown output {found}; expected one of {', '.join(names)}.")
        classes = _parameters(each).get("classification")
        if classes is not None and (
            type(classes) is not int or classes < 1 or each["name"] != "probabilities" or not task.pack_config.labels
        ):
            raise RequestError(400, "'classification' must be a positive number, for the 'probabilities' of classes.")


class InferAnswer(NamedTuple):
    """The body of an answer, and its header `Inference-Header-Content-Length`, if it has binary data."""

    body: bytes
    header_length: Optional[int]


def format_answer(
    task: LoadedTask, name: str, version: int, content: Mapping[str, Any], results: Sequence[Any]
) -> InferAnswer:
    """Return the requested outputs, as JSON or in binary form."""
    columns = output_values(task, results)
    is_binary = _parameters(content).get("binary_data_output") is True
    tensors, blocks = [], []
    for each in content.get("outputs") or [{"name": name} for name in columns]:
        classes, given = _parameters(each).get("classification"), _parameters(each).get("binary_data", is_binary)
        tensor, block = _output(task, each["name"], columns[each["name"]], classes, given is True)
        tensors.append(tensor)
        blocks.append(block)
    answer = {"model_name": name, "model_version": str(version), "outputs": tensors}
    if isinstance(content.get("id"), str):
        answer["id"] = content["id"]
    text = json.dumps(answer).encode()
    binary = b"".join(blocks)
    return InferAnswer(text + binary, len(text) if binary else None)


def _output(
    task: LoadedTask, name: str, values: Sequence[Any], classes: Optional[int], is_binary: bool
) -> Tuple[Dict[str, Any], bytes]:
    """Return a tensor in JSON and its binary data."""
    if classes is not None:
        values = [_best(row, task.pack_config.labels)[:classes] for row in values]
    is_number = name in _NUMBERS and classes is None
    array = np.array(values, np.float32 if is_number else object)
    tensor: Dict[str, Any] = {
        "name": name,
        "datatype": "FP32" if is_number else "BYTES",
        "shape": list(array.shape),
    }
    if not is_binary:
        tensor["data"] = array.reshape(-1).tolist()
        return tensor, b""
    texts = [] if is_number else [str(value).encode("utf-8") for value in array.reshape(-1)]
    block = array.tobytes() if is_number else b"".join(struct.pack("<I", len(text)) + text for text in texts)
    tensor["parameters"] = {"binary_data_size": len(block)}
    return tensor, block


def _best(row: Sequence[float], labels: Sequence[str]) -> List[str]:
    """Return `probability:index:label`, the most probable first."""
    order = sorted(range(len(row)), key=lambda index: -row[index])
    return [f"{row[index]:f}:{index}:{labels[index]}" for index in order]


def describe(task: LoadedTask, name: str, version: int) -> Dict[str, Any]:
    """Return the metadata of a task."""
    return {
        "name": name,
        "versions": [str(version)],
        "platform": "adapter_bert",
        "inputs": [{"name": each, "datatype": "BYTES", "shape": [-1]} for each in inputs_of(task)[0]],
        "outputs": [{"name": key, "datatype": v[0], "shape": v[1]} for key, v in output_types(task).items()],
        "parameters": {"labels": list(task.pack_config.labels), "head": task.pack_config.head},
    }
