"""Follows the questions of a SQuAD file to features and back to answers: what is lost on the way, and what it costs.

    python scripts/check_squad.py dev-v1.1.json --vocab_file=$BERT/vocab.txt
    python scripts/check_squad.py dev-v2.0.json --vocab_file=$BERT/vocab.txt --version_2_with_negative

Printed are:
* how many questions and windows there are;
* of how many annotations the text is cut out again, to the last character, by the tokens that stand for it;
* what a model would score that is sure of the right tokens, and why it is not all: no model of these lengths can do
  better, but by luck;
* time and memory of making the features, in one process and in several, in turn, each time by a fresh process. `loaded`
  is its memory before the first feature, `peak` the most until the last; `forked` is the most that one of the processes
  has that it forks, `its own` what it does not share. Linux only.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Counter, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from adapter_bert.common import system

system.configure_tensorflow()

import numpy as np
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.common import errors, files, parallel
from adapter_bert.evaluation import squad_metrics
from adapter_bert.evaluation.answer_decoding import AnswerDecoder
from adapter_bert.evaluation.answers import AnswerRules
from adapter_bert.pipeline import records, spans
from adapter_bert.tasks import squad
from adapter_bert.tasks.squad.dataset import Dataset, GoldAnswer, Question

SURE = 10.0
LOOK_SECONDS = 0.2

NOT_THERE = "stands nowhere in the paragraph"
NO_TOKEN = "no token stands for it"
INSIDE = "begins or ends inside a token"
SPACE = "begins or ends with what is not to be seen"
TOO_LONG = "longer than --max_answer_length"
NO_WINDOW = "in no window whole"
LITTLE_CONTEXT = "never whole where its start has most context"
WITHOUT_WORDS = "right, but has no words to count, such as `.`"
UNASKED = "unanswerable, but answered"
ELSE = "something else"


class Gold(NamedTuple):
    """A question and the tokens of its answer.

    Attributes:
      question: the question.
      context: its paragraph.
      answer: the annotation that a model is trained on; None if there is none.
      document: the tokenised paragraph.
      tokens: the first and the last that stand for the answer.
      windows: of the paragraph, beside this question.
    """

    question: Question
    context: str
    answer: Optional[GoldAnswer]
    document: spans.Document
    tokens: Optional[Tuple[int, int]]
    windows: List[spans.Window]

    @property
    def text(self) -> str:
        """What the tokens stand for."""
        if self.tokens is None:
            return ""
        return self.context[self.document.starts[self.tokens[0]] : self.document.ends[self.tokens[1]]]


class Losses:
    """Counts causes, and keeps some examples of each."""

    def __init__(self, num_examples: int) -> None:
        self._num_examples = num_examples
        self._counts: Counter[str] = collections.Counter()
        self._examples: Dict[str, List[str]] = collections.defaultdict(list)

    def add(self, cause: str, gold: Gold, found: str) -> None:
        """Counts one; `found` is the text that is there instead of the annotated one."""
        self._counts[cause] += 1
        if len(self._examples.get(cause, ())) < self._num_examples:
            wanted = _shown(gold.answer.text) if gold.answer else "no answer"
            self._examples[cause].append(f"{gold.question.id}: {wanted}, found {_shown(found)}{_around(gold)}")

    def print(self) -> None:
        """A table, then the examples."""
        if not self._counts:
            print("Nothing is lost.")
            return
        print("| cause | questions |\n|---|---|")
        for cause, count in self._counts.most_common():
            print(f"| {cause} | {count:,} |")
        for cause, examples in self._examples.items():
            print("\n  ".join([f"\n{cause}:", *examples]))


def _shown(text: str, limit: int = 50) -> str:
    return repr(text if len(text) <= limit else text[: limit - 10] + " … " + text[-7:])


def _around(gold: Gold, characters: int = 12) -> str:
    """The text around an annotation."""
    if gold.answer is None or gold.answer.start is None or len(gold.answer.text) > 40:
        return ""
    start, end = gold.answer.start, gold.answer.start + len(gold.answer.text)
    return f", in {gold.context[max(0, start - characters) : end + characters]!r}"


# ----------------------------------------------------------------------------------------------- what is lost


def golds_of(dataset: Dataset, tokenizer: Any, lengths: spans.WindowConfig) -> Iterator[Gold]:
    """The questions in the order of the file."""
    for paragraph in dataset.paragraphs:
        document = spans.tokenize_document(paragraph.context, tokenizer)
        for question in paragraph.questions:
            answer = question.found or next(iter(question.answers), None)
            query = spans.tokenize_query(question.text, tokenizer, lengths)
            windows = spans.make_windows(document, len(query), lengths)
            yield Gold(question, paragraph.context, answer, document, document.find(answer), windows)


def cause_of_text(gold: Gold) -> Optional[str]:
    """Why the tokens of an annotation do not give its text; None if they do."""
    if gold.answer is None or gold.text == gold.answer.text:
        return None
    if gold.answer.start is None:
        return NOT_THERE
    if gold.tokens is None:
        return NO_TOKEN
    start, end = gold.answer.start, gold.answer.start + len(gold.answer.text)
    if gold.document.starts[gold.tokens[0]] < start or gold.document.ends[gold.tokens[1]] > end:
        return INSIDE
    return SPACE


def cause_of_loss(gold: Gold, rules: AnswerRules) -> str:
    """Why the right tokens do not give an answer that is scored as right."""
    if gold.question.is_impossible:
        return UNASKED
    if gold.tokens is None:
        return cause_of_text(gold) or ELSE
    first, last = gold.tokens
    if last - first >= rules.max_answer_length:
        return TOO_LONG
    holding = [w for w in gold.windows if w.begin <= first and last < w.begin + len(w.starts)]
    if not holding:
        return NO_WINDOW
    if not any(window.has_max_context[first - window.begin] for window in holding):
        return LITTLE_CONTEXT
    return cause_of_text(gold) or ELSE


def sure_rows(dataset: Dataset, tokenizer: Any, lengths: spans.WindowConfig) -> Iterator[Dict[str, Any]]:
    """The predictions of a model that is sure of the right tokens: high logits there, 0 elsewhere."""
    number = 0
    for paragraph in dataset.paragraphs:
        for features in spans.paragraph_features(paragraph, number, tokenizer, lengths):
            logits = np.zeros((2, lengths.max_seq_length), np.float32)
            logits[[0, 1], [features.start_position, features.end_position]] = SURE
            ids = {"question_ids": features.question_id, "window_ids": features.window_id}
            yield {**ids, "logits": logits, "loss": 0.0}
        number += len(paragraph.questions)


def report_texts(golds: Sequence[Gold], num_examples: int) -> None:
    """Prints how many annotations are cut out again as they are."""
    annotated = [gold for gold in golds if gold.answer]
    losses = Losses(num_examples)
    lost = 0
    for gold in annotated:
        cause = cause_of_text(gold)
        if cause:
            lost += 1
            losses.add(cause, gold, gold.text)
    recovered = len(annotated) - lost
    share = 100.0 * recovered / max(len(annotated), 1)
    print(f"\nAnnotations cut out again by their tokens: {recovered:,} of {len(annotated):,} ({share:.2f} %)\n")
    losses.print()


def report_scores(
    dataset: Dataset,
    golds: Sequence[Gold],
    tokenizer: Any,
    lengths: spans.WindowConfig,
    rules: AnswerRules,
    examples: int,
) -> None:
    """Prints what a model that is sure of the right tokens scores, and why it is not all."""
    answerer = AnswerDecoder(dataset, tokenizer, lengths, rules)
    rows = list(sure_rows(dataset, tokenizer, lengths))
    started = time.perf_counter()
    answers = answerer.answer(rows)
    scores = answerer.score_answers(answers, rows)
    seconds = time.perf_counter() - started
    figures = "  ".join(f"{name} {value:.4f}" for name, value in {**scores.metrics, **scores.details}.items())
    print(f"\nScores of the right tokens: {figures}  (answers and scores: {seconds:.1f} s)\n")
    losses = Losses(examples)
    f1 = squad_metrics.f1_v2 if rules.version_2 else squad_metrics.f1_v1
    for gold in golds:
        texts, found = [answer.text for answer in gold.question.answers] or [""], answers[gold.question.id].text
        if not any(squad_metrics.exact(found, text) for text in texts):
            losses.add(cause_of_loss(gold, rules), gold, found)
        elif not any(f1(found, text) == 1 for text in texts):
            losses.add(WITHOUT_WORDS, gold, found)
    losses.print()


# ----------------------------------------------------------------------------------------------- what it costs


class Forked(threading.Thread):
    """Looks at the processes that this one forks, from time to time: the greatest memory of any of them, in MB.

    `resource` would tell of all that this process ever started, those of imported libraries included.

    Attributes:
      peak: what one had in memory at most.
      own: the part of it, at most, that it did not share.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = self.own = 0.0
        self._is_over = threading.Event()

    def run(self) -> None:
        """Looks, until `stop` is called."""
        while not self._is_over.wait(LOOK_SECONDS):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    if _figures(f"/proc/{pid}/status", "PPid") == os.getpid():
                        self.peak = max(self.peak, _figures(f"/proc/{pid}/status", "VmHWM") / 1024)
                        self.own = max(self.own, _figures(f"/proc/{pid}/smaps_rollup", "Private_") / 1024)

    def stop(self) -> None:
        """Ends it."""
        self._is_over.set()
        self.join()


def _figures(path: str, name: str) -> int:
    """The sum of what a file of Linux says under names that start so; of memory, in kB."""
    with open(path) as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(name))


def measure(args: argparse.Namespace, processes: int) -> Dict[str, float]:
    """Makes the features once, here."""
    dataset, tokenizer, lengths = squad.read(args.file), tokenizer_of(args), lengths_of(args)
    loaded = _figures("/proc/self/status", "VmRSS") / 1024
    forked = Forked()
    forked.start()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "features.tf_record")
        started = time.perf_counter()
        made = spans.iterate_records(dataset.paragraphs, tokenizer, lengths, processes=processes)
        count = records.write_serialized(made, path)
        seconds = time.perf_counter() - started
        size = os.path.getsize(path)
    forked.stop()
    peaks = {"peak": _figures("/proc/self/status", "VmHWM") / 1024, "forked": forked.peak, "own": forked.own}
    return {"seconds": seconds, "windows": count, "bytes": size, "loaded": loaded, **peaks}


def measure_afresh(processes: int) -> Dict[str, float]:
    """The same in a process that has done nothing else: peaks are those since its start."""
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], f"--measure={processes}"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode:
        raise errors.UserError(f"Making features in {processes} processes failed; the reason stands above.")
    return json.loads(done.stdout.decode().strip().split("\n")[-1])


def report_costs(rounds: Sequence[Tuple[int, Dict[str, float]]]) -> None:
    """Prints a table of measurements, (processes, figures) in the order they were taken."""
    print("\n| processes | seconds | windows/s | loaded, MB | peak, MB | forked, MB | its own, MB |")
    print("|---|---|---|---|---|---|---|")
    for processes, cost in rounds:
        memory = " | ".join(f"{cost[name]:.0f}" for name in ("loaded", "peak", "forked", "own"))
        print(f"| {processes} | {cost['seconds']:.2f} | {cost['windows'] / cost['seconds']:,.0f} | {memory} |")
    cost = rounds[-1][1]
    size = cost["bytes"] / 2**20
    print(f"\nRecords: {size:.1f} MB, {cost['bytes'] / max(cost['windows'], 1):,.0f} bytes a window.")
    load = os.getloadavg()[0]
    print(f"Load of this machine meanwhile: {load:.1f}; cores to use: {parallel.num_processes()}.")


# ------------------------------------------------------------------------------------------------- entry point


def tokenizer_of(args: argparse.Namespace) -> Any:
    """The tokenizer that is asked for."""
    return tokenization.create_tokenizer(args.vocab_file, args.spm_model_file, args.do_lower_case == "true")


def lengths_of(args: argparse.Namespace) -> spans.WindowConfig:
    """How paragraphs are cut, checked."""
    lengths = spans.WindowConfig(args.max_seq_length, args.doc_stride, args.max_query_length)
    lengths.check()
    return lengths


def check(args: argparse.Namespace) -> None:
    """Prints everything."""
    tokenizer, lengths = tokenizer_of(args), lengths_of(args)
    version_2 = args.version_2_with_negative == "true"
    rules = AnswerRules(max_answer_length=args.max_answer_length, version_2=version_2)
    dataset = squad.read(args.file)
    squad.check_version(dataset, version_2)
    if not dataset.has_answers:
        raise errors.UserError(f"{args.file} has no answers to compare with; give a file that has.")
    rounds = []
    if sys.platform.startswith("linux"):
        rounds = [(processes, measure_afresh(processes)) for processes in [1, args.processes] * args.rounds]
    golds = list(golds_of(dataset, tokenizer, lengths))
    print("  ".join(f"{name} {count:,}" for name, count in squad.describe(dataset).items()))
    windows = [len(gold.windows) for gold in golds]
    tokens = sum(len(window.starts) for gold in golds for window in gold.windows)
    print(
        f"windows {sum(windows):,} ({sum(windows) / len(golds):.3f} a question, at most {max(windows)}; "
        f"{tokens / max(sum(windows), 1):.0f} tokens of the paragraph each)"
    )
    report_texts(golds, args.examples)
    report_scores(dataset, golds, tokenizer, lengths, rules, args.examples)
    if rounds:
        report_costs(rounds)


def make_parser() -> argparse.ArgumentParser:
    """The options; those of run_squad.py have its names and defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE", help="a SQuAD file with answers")
    parser.add_argument("--vocab_file", help="WordPiece vocabulary")
    parser.add_argument("--spm_model_file", help="SentencePiece model, instead of a vocabulary")
    parser.add_argument("--do_lower_case", choices=("true", "false"), default="true", help="default: %(default)s")
    defaults = spans.WindowConfig()
    for name in ("max_seq_length", "doc_stride", "max_query_length"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name), help="default: %(default)s")
    parser.add_argument(
        "--max_answer_length", type=int, default=AnswerRules().max_answer_length, help="default: %(default)s"
    )
    parser.add_argument(
        "--version_2_with_negative",
        choices=("true", "false"),
        nargs="?",
        const="true",
        default="false",
        help="whether the file is SQuAD 2.0; default: %(default)s",
    )
    parser.add_argument("--examples", type=int, default=5, help="shown of each cause; default: %(default)s")
    parser.add_argument(
        "--processes",
        type=int,
        default=max(2, parallel.num_processes()),
        help="to compare with one; default: %(default)s",
    )
    parser.add_argument("--rounds", type=int, default=2, help="of measuring; 0: none; default: %(default)s")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    return parser


@errors.exits_on_user_error
def main() -> None:
    """Options -> tables."""
    args = make_parser().parse_args()
    tf.logging.set_verbosity(tf.logging.ERROR)
    with files.user_errors():
        if args.measure:
            print(json.dumps(measure(args, args.measure)))
        else:
            check(args)


if __name__ == "__main__":
    main()
