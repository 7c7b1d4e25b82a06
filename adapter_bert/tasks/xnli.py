"""XNLI: MultiNLI in fifteen languages, in the layout that Google's BERT reads.

`XNLI` is Chinese, as in the original script; the others are `XNLI-de` and so on.
"""

from __future__ import annotations

from adapter_bert.tasks.task import Split, Task, register

LANGUAGES = ("zh", "ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi")

for _language in LANGUAGES:
    register(
        Task(
            name="XNLI" if _language == "zh" else "XNLI-" + _language,
            aliases=("XNLI-zh",) if _language == "zh" else (),
            train=Split(f"multinli/multinli.train.{_language}.tsv", text_a=0, text_b=1, label=2),
            dev=Split("xnli.dev.tsv", text_a=6, text_b=7, label=1, only=(0, _language)),
            test=Split("xnli.test.tsv", text_a=6, text_b=7, label=1, only=(0, _language)),
            labels=("contradiction", "entailment", "neutral"),
            # Only the translated training files use this spelling.
            spellings={"contradictory": "contradiction"},
        )
    )
