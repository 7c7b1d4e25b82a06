"""ONNX Runtime on Hugging Face's BertForSequenceClassification, in float32 or with weights and products in int8."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any, List

os.environ["USE_TF"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import onnxruntime
import torch
import transformers

from benchmarks.sides import common


def export(job: common.Job, folder: str) -> str:
    """Write the model as ONNX, quantized dynamically if the job says so; return the path."""
    options: Any = {"attn_implementation": "eager"}
    model = transformers.BertForSequenceClassification.from_pretrained(job["hf_dir"], **options).eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    path = os.path.join(folder, "model.onnx")
    example = tuple(torch.ones([2, 8], dtype=torch.int64) for _ in names)
    axes = {name: {0: "batch", 1: "length"} for name in names}
    with torch.inference_mode():
        options = {"input_names": names, "output_names": ["logits"], "opset_version": 17, "dynamo": False}
        torch.onnx.export(model, example, path, dynamic_axes={**axes, "logits": {0: "batch"}}, **options)
    if not job["quantized"]:
        return path
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantized = os.path.join(folder, "int8.onnx")
    quantize_dynamic(path, quantized, weight_type=QuantType.QInt8)
    return quantized


def predict(job: common.Job) -> common.Result:
    """Time warm predictions in batches of similar length."""
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["hf_dir"])
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        session = onnxruntime.InferenceSession(export(job, folder), options, providers=["CPUExecutionProvider"])

    def predict_texts(texts: List[str], batch_size: int) -> List[List[float]]:
        found: List[List[float]] = []
        texts = sorted(texts, key=len)
        for start in range(0, len(texts), batch_size):
            batch = texts[start : start + batch_size]
            inputs = tokenizer(batch, truncation=True, max_length=job["length"], padding=True, return_tensors="np")
            (logits,) = session.run(None, {name: values.astype(np.int64) for name, values in inputs.items()})
            powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
            found.extend((powers / powers.sum(axis=-1, keepdims=True)).tolist())
        return found

    return common.timed_predictions(predict_texts, job)


if __name__ == "__main__":
    common.answer({"predict": predict}, sys.argv)
