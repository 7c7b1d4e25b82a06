"""Estimate the time and disk space of a sweep, and check its data, before it starts."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import multiprocessing
import os
import tempfile
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Dict, Hashable, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, logs, progress, system
from adapter_bert.experiments import launchers, selection
from adapter_bert.experiments.cells import CellResult
from adapter_bert.experiments.sweep_file import Cell, Sweep
from adapter_bert.experiments.sweep_folder import SweepFolder
from adapter_bert.experiments.worker import MODES_WITH_PACKS, WORKFLOWS
from adapter_bert.model.heads import Head, SpanHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.pipeline import feature_store
from adapter_bert.settings.groups import Settings
from adapter_bert.training import classification, frozen_cache, span_extraction, workflow
from adapter_bert.training.engine import Engine
from adapter_bert.weights import checkpoints
from adapter_bert.weights.exchange import hub
from adapter_bert.weights.run_folder import RunFolder

# Steps of a measurement, and the time that a run takes outside its steps.
_PROBE_STEPS, _FIXED_SECONDS = 10, 4.0
# Sequences whose tokens are counted.
_SAMPLE = 1000
# While a run trains, its folder holds this many times the trained parameters: the pack, the newest checkpoints, and
# Adam's two moments, old and new.
_COPIES = 1 + checkpoints.KEPT + 2 * len(checkpoints.SLOTS)


class _Task(NamedTuple):
    examples: int  # in the training split
    sequences: int  # in all splits; for SQuAD, questions
    head: Head


class _Run(NamedTuple):
    """A cell of the grid, and how many of the remaining cells it stands for, with the other seeds."""

    cell: Cell
    settings: Settings
    task: _Task
    weight: float

    @property
    def kind(self) -> Tuple[str, int, int]:
        """Runs of one kind are assumed to have the same speed."""
        return self.settings.tuning_mode, self.settings.max_seq_length, self.settings.train_batch_size


class _Probe(NamedTuple):
    examples_per_second: float
    bytes_per_sequence: float  # of its features
    tokens_per_sequence: float


def check_data(sweep: Sweep, folder: SweepFolder, known: Mapping[str, CellResult]) -> None:
    """Raise a `UserError` if no task of the cells without known results can run, e.g. without base or data."""
    problems = {}
    for cell in sweep.grid_cells():
        if cell.name in known or cell.task in problems:
            continue
        try:
            _read_task(sweep, folder.settings(sweep, cell))
            return
        except errors.UserError as error:
            problems[cell.task] = error
    if problems:
        raise next(iter(problems.values()))


def _read_task(sweep: Sweep, settings: Any) -> _Task:
    settings.check_paths()
    if sweep.program == "run_squad.py":
        files = span_extraction.load_data(settings)
        assert files.train and files.dev, "a cell trains and evaluates"
        return _Task(files.train.num_questions, files.train.num_questions + files.dev.num_questions, SpanHead())
    data = classification.load_data(settings)
    sizes = {name: len(examples) for name, examples in data.splits.items()}
    return _Task(sizes["train"], sum(sizes.values()), classification.make_head(settings, data))


def estimate(sweep: Sweep, folder: SweepFolder, workers: int) -> str:
    """Return the number of runs, and the time and disk space that they need. Short runs measure the speed."""
    results = folder.status(sweep).results if folder.exists() else {}
    counts = f"tasks: {len(sweep.tasks)}, methods: {len(sweep.methods)}, seeds: {len(sweep.seeds)}"
    lines = [f"{sweep.num_cells} runs: {counts}" + (f"; {len(results)} are done" if results else "")]
    cores = launchers.core_groups(workers)[0]
    with tempfile.TemporaryDirectory() as scratch:
        tasks: Dict[str, _Task] = {}
        for task, cells in selection.group(sweep.grid_cells(), lambda cell: cell.task).items():
            try:
                tasks[task] = _read_task(sweep, SweepFolder(scratch).settings(sweep, cells[0]))
            except errors.UserError as error:
                lines.append(f"{task} cannot run: {error}")
        runs = list(_runs(sweep, SweepFolder(scratch), tasks, results.values()))
        if not runs:
            return "\n".join(lines)
        smallest = {run.kind: run for run in sorted(runs, key=lambda run: -run.task.examples)}
        probes = _measure_all(sweep, scratch, smallest.values(), cores)
    seconds = sum(run.weight * _seconds(run, probes[run.kind]) for run in runs)
    lines.append(f"About {progress.format_seconds(seconds / workers)} with --workers={workers}, each at these speeds:")
    for kind, run in smallest.items():
        measured = f"{_PROBE_STEPS} steps of {run.cell.task}, {run.cell.method}"
        mode, length, batch_size = kind
        speed = f"{probes[kind].examples_per_second:.0f} examples/s"
        lines.append(f"  {mode}, {length} tokens, batches of {batch_size}: {speed} ({measured})")
    return "\n".join([*lines, *_describe_space(runs, probes, workers)])


def _runs(
    sweep: Sweep, folder: SweepFolder, tasks: Mapping[str, _Task], results: Iterable[CellResult]
) -> Iterator[_Run]:
    done = selection.by_task_and_method(results)
    methods = {method.name: method for method in sweep.methods}
    groups = selection.group(sweep.grid_cells(), lambda cell: (cell.task, cell.method))
    for (task, method), cells in groups.items():
        remaining = sweep.num_cells_of(methods[method]) - len(done.get((task, method), ()))
        for cell in cells if task in tasks and remaining > 0 else ():
            yield _Run(cell, folder.settings(sweep, cell), tasks[task], remaining / len(cells))


def _measure_all(sweep: Sweep, scratch: str, runs: Iterable[_Run], cores: Sequence[int]) -> Dict[Hashable, _Probe]:
    """Measure one run of each kind in another process, which uses these cores."""
    context = multiprocessing.get_context("spawn")
    try:
        with futures.ProcessPoolExecutor(1, context, system.end_with_parent) as process:
            process.submit(system.use_cores, cores).result()
            process.submit(logs.show_progress, -1).result()
            return {run.kind: process.submit(_measure, sweep, scratch, run).result() for run in runs}
    except BrokenProcessPool:
        raise errors.UserError(
            "The process that measures the speed was killed, most likely because the machine ran out of memory. Use a "
            "smaller --train_batch_size."
        ) from None


def _measure(sweep: Sweep, scratch: str, run: _Run) -> _Probe:
    """Run a few steps of a cell, without a cache of frozen layers, whose creation would take long."""
    folder = SweepFolder(os.path.join(scratch, "-".join(map(str, run.kind))))
    settings = folder.settings(sweep, run.cell)
    epochs = min(settings.num_train_epochs, (_PROBE_STEPS + 0.5) * settings.train_batch_size / run.task.examples)
    changes = dict.fromkeys(("do_eval", "do_predict", "cache_frozen_layers"), False)
    settings = dataclasses.replace(settings, num_train_epochs=epochs, **changes)
    WORKFLOWS[sweep.program](settings, Engine())
    history = RunFolder(settings.output_dir or "").history()
    paths = glob.glob(os.path.join(glob.escape(folder.file("features")), "*.tf_record"))
    sample = list(itertools.islice(tf.python_io.tf_record_iterator(paths[0]), _SAMPLE))
    tokens = [len(tf.train.Example.FromString(each).features.feature["input_ids"].int64_list.value) for each in sample]
    num_bytes = sum(map(os.path.getsize, paths)) / feature_store.num_records(paths)
    return _Probe(history.examples / history.seconds, num_bytes, sum(tokens) / len(tokens))


def _seconds(run: _Run, probe: _Probe) -> float:
    return run.task.examples * run.settings.num_train_epochs / probe.examples_per_second + _FIXED_SECONDS


def _describe_space(runs: Iterable[_Run], probes: Mapping[Any, _Probe], workers: int) -> List[str]:
    """Return the disk space of what is kept, and of the checkpoints of runs that train at the same time."""
    packs, peak = 0.0, 0
    features: Dict[Hashable, float] = {}
    caches: Dict[Hashable, float] = {}
    for run, spec in _with_specs(runs):
        settings, probe = run.settings, probes[run.kind]
        trained = 4 * spec.parameter_counts()["trained"]
        packs += run.weight * trained * (settings.tuning_mode in MODES_WITH_PACKS)
        peak = max(peak, trained * _COPIES)
        data = (run.cell.task, settings.max_seq_length)
        features[data] = run.task.sequences * probe.bytes_per_sequence
        if spec.cached_layers:
            tokens = 1 if frozen_cache.first_only(spec) else probe.tokens_per_sequence
            states = run.task.sequences * tokens * spec.config.hidden_size * tf.as_dtype(spec.precision).size
            is_stored = states + features[data] < settings.frozen_cache_limit_mb * 1e6
            caches[(data, spec.cached_layers, spec.precision)] = is_stored * (states + features[data])
    parts = {"packs": packs, "features": sum(features.values()), "frozen layers": sum(caches.values())}
    listed = ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in parts.items() if size)
    return [
        f"About {sum(parts.values()) / 1e6:,.1f} MB of disk space for finished runs: {listed}",
        f"Up to {workers * peak / 1e6:,.1f} MB more for checkpoints, which are removed when a run has finished",
    ]


def _with_specs(runs: Iterable[_Run]) -> Iterator[Tuple[_Run, ModelSpec]]:
    """Yield the runs with their models."""
    specs: Dict[Hashable, ModelSpec] = {}
    for run in runs:
        names = ("bert_config_file", "bert_hub_module_handle", "tuning_mode", "tune_top_layers", "adapter", "precision")
        key = (run.cell.task, run.settings.cache_frozen_layers, *(getattr(run.settings, name) for name in names))
        if key not in specs:
            settings = hub.use_module(run.settings)
            config, head = workflow.load_base(settings, Engine()).config, run.task.head
            spec = ModelSpec(config, head, settings.adapter, settings.tuning_mode, settings.tune_top_layers)
            spec = dataclasses.replace(spec, precision=settings.precision)
            specs[key] = frozen_cache.with_cached_layers(spec, settings)
        yield run, specs[key]
