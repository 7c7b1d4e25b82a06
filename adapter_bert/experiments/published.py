"""Published numbers to compare with, in percent.

Tables 1 and 2 and Section 3.6 of Houlsby et al. (2019), "Parameter-Efficient Transfer Learning for NLP", and a course's
reproduction of the paper (University of Virginia, CS 6316, fall 2019).
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple


class Published(NamedTuple):
    """A method of the paper: its scores in the order of the tasks, and the last number of its row or column."""

    total_params: Optional[float]  # of all tasks, as a multiple of one BERT
    trained_percent: Optional[float]  # per task, in percent of one BERT
    scores: Tuple[float, ...]
    sems: Optional[Tuple[float, ...]]
    average: float


# Table 1, test sets scored by the GLUE server; BERT-large. Column of the paper -> task, metric. The last number is
# not the mean of the others, but the server's score, which includes WNLI and the second metrics of MRPC, STS-B and QQP.
GLUE_TASKS = {
    "CoLA": ("CoLA", "matthews"),
    "SST": ("SST-2", "accuracy"),
    "MRPC": ("MRPC", "f1"),
    "STS-B": ("STS-B", "spearman"),
    "QQP": ("QQP", "f1"),
    "MNLI-m": ("MNLI", "accuracy"),
    "MNLI-mm": ("MNLI-mm", "accuracy"),
    "QNLI": ("QNLI", "accuracy"),
    "RTE": ("RTE", "accuracy"),
}
GLUE = {
    "Full fine-tuning": Published(9.0, 100.0, (60.5, 94.9, 89.3, 87.6, 72.1, 86.7, 85.9, 91.1, 70.1), None, 80.4),
    "Adapters (8-256)": Published(1.3, 3.6, (59.5, 94.0, 89.5, 86.9, 71.8, 84.9, 85.1, 90.7, 71.5), None, 80.0),
    "Adapters (64)": Published(1.2, 2.1, (56.9, 94.2, 89.6, 87.3, 71.8, 85.3, 84.6, 91.4, 68.8), None, 79.6),
}

# Table 2, test accuracy; BERT-base. Mean and s.e.m. over seeds.
_ADDITIONAL: Dict[str, Tuple[float, ...]] = {
    # no BERT, then score and s.e.m. of: fine-tuning, variable fine-tuning, adapters
    "20 newsgroups": (91.1, 92.8, 0.1, 92.8, 0.1, 91.7, 0.2),
    "Crowdflower airline": (84.5, 83.6, 0.3, 84.0, 0.1, 84.5, 0.2),
    "Crowdflower corporate messaging": (91.9, 92.5, 0.5, 92.4, 0.6, 92.9, 0.3),
    "Crowdflower disasters": (84.9, 85.3, 0.4, 85.3, 0.4, 84.1, 0.2),
    "Crowdflower economic news relevance": (81.1, 82.1, 0.0, 78.9, 2.8, 82.5, 0.3),
    "Crowdflower emotion": (36.3, 38.4, 0.1, 37.6, 0.2, 38.7, 0.1),
    "Crowdflower global warming": (82.7, 84.2, 0.4, 81.9, 0.2, 82.7, 0.3),
    "Crowdflower political audience": (81.0, 80.9, 0.3, 80.7, 0.8, 79.0, 0.5),
    "Crowdflower political bias": (76.8, 75.2, 0.9, 76.5, 0.4, 75.9, 0.3),
    "Crowdflower political message": (43.8, 38.9, 0.6, 44.9, 0.6, 44.1, 0.2),
    "Crowdflower primary emotions": (33.5, 36.9, 1.6, 38.2, 1.0, 33.9, 1.4),
    "Crowdflower progressive opinion": (70.6, 71.6, 0.5, 75.9, 1.3, 71.7, 1.1),
    "Crowdflower progressive stance": (54.3, 63.8, 1.0, 61.5, 1.3, 60.6, 1.4),
    "Crowdflower US economic performance": (75.6, 75.3, 0.1, 76.5, 0.4, 77.3, 0.1),
    "Customer complaint database": (54.5, 55.9, 0.1, 56.4, 0.1, 55.4, 0.1),
    "News aggregator dataset": (95.2, 96.3, 0.0, 96.5, 0.0, 96.2, 0.0),
    "SMS spam collection": (98.5, 99.3, 0.2, 99.3, 0.2, 95.1, 2.2),
}
ADDITIONAL_TASKS = tuple(_ADDITIONAL)
_COLUMNS = tuple(zip(*_ADDITIONAL.values()))
ADDITIONAL = {
    "No BERT baseline": Published(None, None, _COLUMNS[0], None, 72.7),
    "Full fine-tuning": Published(17, 100.0, _COLUMNS[1], _COLUMNS[2], 73.7),
    "Variable fine-tuning": Published(9.9, 52.9, _COLUMNS[3], _COLUMNS[4], 74.0),
    "Adapters": Published(1.19, 1.14, _COLUMNS[5], _COLUMNS[6], 73.3),
}

# Section 3.6: adapter size -> mean validation accuracy over the tasks of Table 1 without STS-B; BERT-large.
SIZES = {8: 86.2, 64: 85.8, 256: 85.7}

# The reproduction: dev accuracy after 15 epochs at 2e-5, number of runs not given; BERT-base, adapters of size 64.
REPRODUCTION = {
    "Full fine-tuning": {"CoLA": 82.74209, "MRPC": 85.04902},
    "Adapters (64)": {"CoLA": 81.78332, "MRPC": 85.784316},
}
