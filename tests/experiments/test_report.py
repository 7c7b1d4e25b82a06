"""The report of a sweep is one safe page that shows every cell, and that fits on a phone."""

from __future__ import annotations

import html.parser
import json
import os
import re
import shutil
import subprocess

import pytest

from adapter_bert.experiments import cells, figures, report, report_data, sweep_file, web_page
from adapter_bert.experiments.summaries import expected_maximum
from adapter_bert.experiments.sweep_folder import SweepFolder, Times
from adapter_bert.experiments.tables import ResultTable
from tests.experiments.sweeps import make_cell, sweep
from tests.helpers import assert_mentions, message_of, run_command

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&\x1b[31m\x00"
DESCRIPTION = {
    "program": "run_classifier.py",
    "tasks": ["CoLA", "MRPC"],
    "seeds": [1, 2, 3],
    "grid_seeds": [1],
    "flags": {"num_train_epochs": 3},
    "task_flags": {"CoLA": {"max_seq_length": 64}},
    "methods": [
        {"name": "full", "flags": {"tuning_mode": "full"}, "swept": {}, "grid": {"learning_rate": [2e-5, 1e-4]}},
        {"name": "head", "flags": {"tuning_mode": "head"}, "swept": {}, "grid": {}},
    ],
}


def write_json(*parts) -> None:
    path = os.path.join(*parts[:-1])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(parts[-1], file)


def write_log(folder, name, text) -> None:
    os.makedirs(os.path.join(folder, "cells", name), exist_ok=True)
    with open(os.path.join(folder, "cells", name, "log.txt"), "w", encoding="utf-8") as file:
        file.write(text)


def write_run(folder, cell, evaluations=4) -> None:
    """Write the files of a finished cell."""
    path = os.path.join(folder, "cells", cell.name)
    write_json(path, "result.json", {"version": 1})
    write_log(folder, cell.name, f"Step 1: loss 0.7\nResults of seed {cell.seed}\n")
    steps = [{"step": 100 * (i + 1), "loss": 0.6, "metrics": {cell.metric: 0.5 + i / 20}} for i in range(evaluations)]
    losses = [None if index in (20, 21) else 0.7 / (1 + index / 9) for index in range(50)]
    history = {"evaluations": steps, "seconds": 60.0, "steps": 400, "examples": 12800, "losses": losses}
    write_json(path, "run", "training.json", history)
    write_json(path, "run", "settings.json", {"learning_rate": 3e-4, "task_name": cell.task, "seed": cell.seed})


def write_sweep(folder, results, **changes) -> str:
    write_json(folder, "sweep.json", {"version": 1, "sweep": {**DESCRIPTION, **changes}})
    cells.write(os.path.join(folder, "results.csv"), results)
    for cell in results:
        write_run(folder, cell)
    return str(folder)


def small_sweep():
    """Two learning rates of full fine-tuning and one of adapters, with three seeds, on two tasks."""
    return [
        make_cell(0.8 + 0.01 * seed - shift, seed, **{
            "name": f"{task}/{method}/learning_rate={rate}/seed={seed}",
            "task": task,
            "method": method,
            "kind": kind,
            "settings": {"learning_rate": rate, **size},
            "trained_params": params,
            "collapsed": seed == 3 and kind == "adapter" and task == "MRPC",
        })
        for task in ("CoLA", "MRPC")
        for method, kind, rate, shift, params, size in (
            ("full", "full", 2e-5, 0.0, 109_483_778, {}),
            ("full", "full", 1e-4, 0.1, 109_483_778, {}),
            ("adapters 64", "adapter", 3e-4, 0.02, 2_419_202, {"adapter_size": 64}),
        )
        for seed in (1, 2, 3)
    ]  # fmt: skip


def read_report(folder, output="") -> str:
    with open(report.write([str(folder)], output), encoding="utf-8") as file:
        return file.read()


class Outline(html.parser.HTMLParser):
    """Collect elements, texts and attributes of a page, and check that all elements are closed."""

    VOID = ("meta", "img", "path", "circle", "polyline", "br", "wbr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A sweep with its report. Read only."""
    path = write_sweep(tmp_path_factory.mktemp("sweep"), small_sweep())
    report.write([path])
    return path


@pytest.fixture(scope="module")
def page(folder) -> str:
    with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
        return file.read()


def test_the_page_is_well_formed_and_needs_nothing_else(page):
    outline = Outline(page)
    assert not outline.all("script") and not outline.all("link") and not outline.all("iframe")
    sources = [each["src"] for each in outline.all("img")]
    assert sources and all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    links = [each["href"] for each in outline.all("a")]
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert links and sorted(links) == sorted("#" + each for each in ids)
    assert "http" not in re.sub(r"http-equiv|base64,[^\"]*", "", page)


def test_the_page_is_accessible(page):
    outline = Outline(page)
    assert all(each["alt"] for each in outline.all("img"))
    assert all(each["role"] == "img" and each["aria-label"] for each in outline.all("svg"))
    assert all(each["scope"] in ("row", "col") for each in outline.all("th"))
    assert len(outline.all("caption")) == len(outline.all("table")) > 3
    levels = [int(tag[1]) for tag, _ in outline.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1 and all(after - before <= 1 for before, after in zip(levels, levels[1:]))
    assert [each["lang"] for each in outline.all("html")] == ["en"]
    assert "prefers-color-scheme: dark" in page


def test_the_page_shows_all_sections_and_cells(page):
    texts = Outline(page).texts
    for heading in ("Summary", "Comparison of methods", "Next to the paper", "Figures", "Settings", "Cells"):
        assert heading in texts
    assert page.count("<details>") == page.count("<polyline") / 3 == 18  # the loss has a gap
    assert page.count("Results of seed 2\n") == 6
    assert "18 done" in page and "1 (all predictions are the same)" in page
    assert "adapters 64 - full" in page and "[-2.00, -2.00]" in page
    assert "max_seq_length=64" in texts and "learning_rate=[2e-05, 0.0001]" in texts


def test_tables_and_figures_are_files_too(folder):
    tables = {"comparison_dev", "summary_dev", "glue"}
    assert {f"{stem}.{ending}" for stem in tables for ending in ("md", "csv", "tex")} == set(
        os.listdir(os.path.join(folder, "tables"))
    )
    per_task = ("params", "learning_rate", "expected_performance")
    stems = {"trade_off", "reproduction", *(f"{name}_{task}" for name in per_task for task in ("CoLA", "MRPC"))}
    assert {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg")} == set(
        os.listdir(os.path.join(folder, "figures"))
    )


def test_the_same_folder_gives_the_same_page(folder, page, tmp_path):
    copy = os.path.join(str(tmp_path), os.path.basename(folder))
    shutil.copytree(folder, copy)
    assert read_report(copy, os.path.join(str(tmp_path), "new", "page.html")) == page


def test_hostile_text_is_escaped(tmp_path):
    task = HOSTILE.replace("\x00", "")  # CSV files cannot contain null characters
    name = f"task/{'<script>x<'}/seed=1"
    result = make_cell(0.5, 1, name=name, task=task, method=task, metric=task, fingerprint=task, settings={task: task})
    write_sweep(tmp_path, [result], tasks=[HOSTILE], flags={HOSTILE: HOSTILE}, task_flags={HOSTILE: {"a": HOSTILE}})
    write_log(tmp_path, "failed/<b>", HOSTILE)
    write_json(tmp_path, "cells", "failed/<b>", "failure.json", {"error": HOSTILE, "log": []})
    text = read_report(tmp_path)
    outline = Outline(text)
    assert not outline.all("script") and not outline.all("b")
    assert not any("onerror" in attributes for _, attributes in outline.elements)
    assert not re.search("[\x00-\x08\x0b-\x1f]", text)
    assert "[31m" in text and "default-src 'none'" in text


def test_unfinished_failed_and_damaged_cells_are_shown(tmp_path):
    write_sweep(tmp_path, [])
    write_log(tmp_path, "CoLA/full/seed=1", "Step 1\n")
    write_json(tmp_path, "cells/CoLA/full/seed=2/failure.json", {"error": "out of memory", "log": ["its", "end"]})
    write_json(tmp_path, "cells/CoLA/full/seed=3/result.json", {"version": 1})
    write_json(tmp_path, "cells/CoLA/full/seed=3/run/training.json", [])
    record = report_data.read(str(tmp_path))
    assert [cell.state for cell in record.cells] == ["unfinished", "failed", "done"]
    # 2 learning rates with 1 seed, the best one with 2 more; and 3 seeds of the head; on two tasks.
    assert record.not_started == 2 * (2 + 2 + 3) - 3
    text = read_report(tmp_path)
    assert "1 done, 1 failed, 1 unfinished, 11 to start" in text
    assert "out of memory" in text and "its\nend" in text and "training.json" in text
    assert "1 finished cells" in text
    assert os.listdir(os.path.join(str(tmp_path), "figures")) == []


def test_a_sweep_that_has_not_started_has_a_report(tmp_path):
    write_json(tmp_path, "sweep.json", {"version": 1, "sweep": DESCRIPTION})
    assert "0 done, 14 to start" in read_report(tmp_path)


def test_long_logs_are_cut(tmp_path):
    write_sweep(tmp_path, [])
    write_log(tmp_path, "CoLA/full/seed=1", "".join(f"line {number}\n" for number in range(1000)))
    (cell,) = report_data.read(str(tmp_path)).cells
    assert cell.log.startswith("Last 200 lines:\nline 800\n") and cell.log.endswith("line 999\n")


def test_a_cell_may_have_the_name_of_a_file(tmp_path):
    write_sweep(tmp_path, [make_cell(name="run/result.json/seed=1")])
    assert [cell.name for cell in report_data.read(str(tmp_path)).cells] == ["run/result.json/seed=1"]


@pytest.mark.parametrize("content, expected", [
    ({"version": 2, "sweep": DESCRIPTION}, "version 2"),
    ({"version": 1}, "sweep"),
    ({"version": 1, "sweep": {**DESCRIPTION, "seeds": "1"}}, "seeds"),
    ({"version": 1, "sweep": {**DESCRIPTION, "methods": [{"name": 1}]}}, "methods"),
])  # fmt: skip
def test_another_or_damaged_description_is_reported(tmp_path, content, expected):
    write_json(tmp_path, "sweep.json", content)
    assert_mentions(message_of(report.write, [str(tmp_path)]), "sweep.json", expected)


def test_results_of_another_version_are_reported(tmp_path):
    write_sweep(tmp_path, [make_cell()])
    path = os.path.join(str(tmp_path), "results.csv")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("\n1,", "\n9,"))
    assert_mentions(message_of(report.write, [str(tmp_path)]), "results.csv", "version 1", "9")
    assert not os.path.exists(os.path.join(str(tmp_path), "report.html"))


def test_folders_without_a_sweep_are_reported_by_the_command(tmp_path):
    run = run_command({"sweep": tmp_path}, "scripts/make_report.py")
    assert run.returncode == 1
    assert_mentions(run.stdout, "sweep.json")
    assert "Traceback" not in run.stdout


def test_the_command_prints_the_path(tmp_path):
    write_sweep(tmp_path, [make_cell()])
    run = run_command({"sweep": tmp_path, "output": tmp_path / "page.html"}, "scripts/make_report.py")
    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, str(tmp_path / "page.html"))


def test_several_sweeps_share_a_report(tmp_path):
    full, other = make_cell(method="full", kind="full", name="CoLA/full/seed=1"), make_cell(0.7, 2)
    first = write_sweep(tmp_path / "first", [make_cell(), full])
    second = write_sweep(tmp_path / "second", [make_cell(0.9), other])
    with open(report.write([first, second]), encoding="utf-8") as file:
        text = " ".join(Outline(file.read()).texts)
    assert_mentions(text, "Sweeps first, second", "adapters 64 - full")
    with open(os.path.join(first, "tables", "summary_dev.csv")) as file:
        rows = [line.split(",") for line in file.read().splitlines()]
    (adapters,) = [row for row in rows if row[1] == "adapters 64"]
    assert adapters[4:6] == ["2", "75.00"], "80 from the first sweep, 70 from the second"
    assert not os.path.exists(os.path.join(second, "tables"))


def test_the_command_includes_cells_that_finished_since_the_last_one(tmp_path):
    folder = SweepFolder(str(tmp_path))
    folder.start(sweep_file.read(sweep_file.preset_path("reproduction"), {"bert_dir": "minilm"}))
    for cell in folder.sweep().grid_cells()[:2]:
        named = {name: getattr(cell, name) for name in ("name", "task", "method")}
        folder.write_result(cell, make_cell(0.7, cell.seed, **named), Times(1.0))
    run = run_command({"sweep": tmp_path}, "scripts/make_report.py")
    assert run.returncode == 0, run.stdout
    assert len(cells.read(folder.file("results.csv"))) == 2
    assert (tmp_path / "tables" / "summary_dev.md").exists()


def test_all_suites_of_a_sweep_have_tables_and_figures():
    stems = [each.stem for each in report.tables_of(sweep())]
    assert stems == [
        *("comparison_dev", "comparison_test", "summary_dev", "summary_test", "glue", "sizes", "additional")
    ]
    stems = [each.stem for each in report.figures_of(sweep())]
    assert {"trade_off", "params_SQuAD"} < set(stems)
    scales = [make_cell(settings={"adapter_init_scale": scale}) for scale in (1e-3, 1e-2)]
    assert [each.stem for each in report.figures_of(scales)] == ["init_scale", "expected_performance_CoLA"]


def test_without_full_fine_tuning_methods_are_compared_with_the_first():
    runs = [make_cell(0.7 + 0.01 * seed, seed, method="plain") for seed in (1, 2, 3)]
    runs += [make_cell(0.72 + 0.01 * seed, seed, method="parallel") for seed in (1, 2, 3)]
    (table,) = [each.table for each in report.tables_of(runs, "plain") if each.stem == "comparison_dev"]
    (row,) = table.rows
    assert (row[1], row[4]) == ("parallel - plain", "+2.00")


def test_sweeps_with_different_metrics_are_compared_on_a_common_one(tmp_path):
    full = [
        make_cell(0.6, seed, method="full", kind="full", metric="matthews", metrics={"matthews": 0.6, "accuracy": 0.82})
        for seed in (1, 2)
    ]
    top = [make_cell(0.8, seed, method="top_layers 1", kind="top_layers") for seed in (1, 2)]
    folders = [write_sweep(tmp_path / name, runs) for name, runs in (("one", full), ("other", top))]
    report.write(folders)
    differences = (tmp_path / "one" / "tables" / "comparison_dev.csv").read_text().splitlines()
    assert differences[1].startswith('CoLA,top_layers 1 - full,"accuracy, dev",2,-2.00')
    assert len(cells.read(str(tmp_path / "one" / "tables" / "all_cells.csv"))) == 4


def test_sweeps_of_squad_have_no_tables_of_the_paper():
    squad = [cell for cell in sweep() if cell.task == "SQuAD"]
    assert [each.stem for each in report.tables_of(squad)] == ["comparison_dev", "summary_dev"]
    assert "trade_off" in [each.stem for each in report.figures_of(squad)]


def test_columns_of_numbers_are_aligned_to_the_right():
    content = ResultTable(["task", "metric", "mean", "interval", "none"], [["CoLA", "f1", "+1.0", "[-2.0, 4.0]", "–"]])
    cells_of_row = Outline(web_page.table("Scores", content)).all("td")
    assert [each.get("class") for each in cells_of_row] == ["left", None, None, None]


def test_curves_have_gaps_and_numbers():
    curve = web_page.curve("loss", "step", [(1, 0.5), (2, 0.25), (3, None), (4, 0.75), (5, 1.0)])
    first, second = re.findall(r'points="([^"]*)"', curve)
    assert len(first.split()) == len(second.split()) == 2
    heights = [float(point.split(",")[1]) for point in (first + " " + second).split()]
    assert heights[1] > heights[0] > heights[2] > heights[3]  # y points down
    assert ">0.25<" in curve and ">1<" in curve and ">5<" in curve
    assert web_page.curve("loss", "step", [(1, None)]) == web_page.curve("loss", "step", []) == ""
    assert "<circle" in web_page.curve("loss", "step", [(1, 0.5)])


def test_the_expected_performance_has_a_line_for_each_method():
    trials = {1: (0.5, 0.7, 0.6), 2: (0.4, 0.8, None), 3: (0.9,)}  # seed 3 has only run the best setting
    grid = [
        make_cell(score, seed, settings={"learning_rate": rate}, majority=0.3)
        for seed, scores in trials.items() for rate, score in zip((1e-4, 2e-4, 3e-4), scores)
    ]  # fmt: skip
    axes = figures.expected_performance_figure([*grid, make_cell(0.6, method="full")]).axes[0]
    line, single = axes.lines
    curves = [expected_maximum(scores) for scores in ((50, 70, 60), (40, 80, 30))]
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == pytest.approx([(one + other) / 2 for one, other in zip(*curves)])
    assert (list(single.get_ydata()), single.get_label()) == ([60.0], "full")


# ------------------------------------------------------------------------------------------------------ in a browser

# The page is shown in a frame, because a window of a headless Chromium has a minimum width.
_FRAME = """<!DOCTYPE html><meta charset="utf-8">
<style>body {{ margin: 0 }} iframe {{ border: 0; display: block }}</style>
<iframe id="page" style="width: {width}px; height: {height}px" srcdoc="{page}"></iframe>
<script>onload = () => {{
  const page = document.getElementById("page").contentDocument;
  const images = [...page.images].map(each => each.naturalWidth > 0 && each.getBoundingClientRect().width);
  const texts = [...page.querySelectorAll("p, h1, h2, h3, dd, summary")];
  document.title = JSON.stringify({{width: page.documentElement.clientWidth, title: page.title, images,
    content: page.documentElement.scrollWidth, right: Math.max(...texts.map(e => e.getBoundingClientRect().right)),
    tables: [...page.querySelectorAll(".scroll")].map(each => each.getBoundingClientRect().right)}});
}}</script>"""
CHROMIUM = shutil.which("chromium")


def browse(folder, text: str, width: int, height: int = 3000) -> dict:
    """Show a page with all cells open at this width; write a screenshot, and return what a script measures."""
    opened = text.replace("<details>", "<details open>")
    path = os.path.join(folder, f"frame_{width}.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_FRAME.format(width=width, height=height, page=opened.replace("&", "&amp;").replace('"', "&quot;")))
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
        "--virtual-time-budget=5000", f"--user-data-dir={os.path.join(folder, 'profile')}",
        f"--window-size={max(width, 500)},{height}",
    ]  # fmt: skip
    for action in (f"--screenshot={os.path.join(folder, f'{width}.png')}", "--dump-dom"):
        shown = subprocess.run([*command, action, f"file://{path}"], capture_output=True, text=True, timeout=120)
        assert shown.returncode == 0, shown.stderr
    return json.loads(re.findall("<title>(.*?)</title>", shown.stdout)[0])


@pytest.fixture(scope="module")
def large_page(tmp_path_factory) -> str:
    """A page with all tables and figures, and with long words."""
    folder = write_sweep(tmp_path_factory.mktemp("large") / "glue", sweep())
    name = "CoLA/full/" + "x" * 120
    write_log(folder, name, HOSTILE + "no_spaces_" * 100)
    write_json(folder, "cells", name, "failure.json", {"error": HOSTILE + "y" * 300, "log": []})
    return read_report(folder)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="Needs the program chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_in_a_browser(tmp_path, large_page, width):
    shown = browse(str(tmp_path), large_page, width)
    assert shown["title"] == "Sweep glue"
    assert shown["width"] == shown["content"] == width
    assert shown["right"] <= width
    assert shown["tables"] and max(shown["tables"]) <= width
    assert shown["images"] and all(0 < each <= width for each in shown["images"])
    assert os.path.getsize(tmp_path / f"{width}.png") > 50_000
