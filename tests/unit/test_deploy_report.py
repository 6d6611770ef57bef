"""The report: one self-contained page, every text shown as it was stored, whatever pieces a run has."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_run import CONFIG, HOSTILE, controls, episode, write_run

from deploy.report import build, render
from deploy.report.charts import chart, interval_row, short
from deploy.report.curves import time_split
from deploy.report.episodes import chosen_episodes
from deploy.report.read import read_controls, read_run
from deploy.report.scales import MAXIMUM_POINTS, Point, Series, thin, y_range
from deploy.runs import RunFolder
from deploy.writers import RunWriter

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and keeps what a browser would."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.stack[-1:] == ["script"] else self.text).append(data)

    def count(self, tag: str, **attributes: str) -> int:
        return sum(t == tag and all(a.get(k.rstrip("_")) == v for k, v in attributes.items()) for t, a in self.tags)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    return build(write_run(folder), controls(folder / "results.json")).read_text()


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_is_whole_and_small(html: str, page: Page) -> None:
    assert len(html.encode()) < 1_500_000
    assert page.count("h1") == 1
    headings = ("Beside its controls", "By task type and split", "pass@k", "Acting", "Predicting", "Optimising", "Speed",
                "Where the time went", "Episodes", "Provenance")  # fmt: skip
    assert all(heading in page.text for heading in headings)
    # Success, four plots of acting, four of predicting, six of optimising, two of speed.
    assert page.count("figure", class_="chart") == 17


def test_nothing_is_fetched(html: str, page: Page) -> None:
    assert not [a for _, a in page.tags if {"src", "href", "srcset", "action"} & set(a)]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", html)
    assert "http://" not in html
    assert "https://" not in html


def test_only_the_pages_own_script_may_run(page: Page) -> None:
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not [name for _, a in page.tags for name in a if name.startswith("on")]


def test_hostile_texts_show_literally(page: Page) -> None:
    for text in HOSTILE:  # once as an action, once as an observation
        assert page.text.count(text) == 2
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert page.count("think") == 0


def test_the_headline_is_the_summarys(page: Page) -> None:
    assert "22% → 87% +65 points" in page.words
    assert "16.9 to 27.1% of 256 episodes" in page.words
    assert "Greedy decoding: 38% → 89%" in page.words  # 0.22 + 0.2 x 0.78, 0.858 + 0.2 x 0.142
    assert "household · gigpo · policy_gradient · paw" in page.words
    assert "wall time 7:11" in page.words
    assert "commit 0123abc" in page.words


def test_controls_stand_beside_the_result(page: Page) -> None:
    for arm in ("this run", "PaW, the default", "without PaW", "more warm start", "noise-free warm start"):
        assert arm in page.text
    assert "31.0%" in page.words
    assert "Run once, with the seeds shown; 256 held-out games a seed." in page.words


def test_tasks_and_pass_at_k(page: Page) -> None:
    for task, before in (("pick", "22.0%"), ("heat", "14.0%"), ("cool", "6.0%")):
        assert re.search(rf"{task} 85 episodes before {before}", page.words)
    assert "k = 1 k = 2 k = 4 before 22.0%" in page.words


def test_the_pointer_finds_every_value(page: Page) -> None:
    hovers = [json.loads(a["data-hover"] or "") for t, a in page.tags if t == "figure"]
    success = hovers[0]
    assert [x for x, _, _ in success] == sorted(x for x, _, _ in success)
    by_heading = {heading: {label: value for _, label, value in rows} for _, heading, rows in success}
    assert by_heading["warm start, update 700"]["held out, sampled"] == "22.0 % (16.9 % to 27.1 %)"
    assert set(by_heading["reinforcement learning, update 25"]) == {
        "training games",
        "held out, sampled",
        "held out, greedy",
    }


def test_metrics_that_are_not_finite_leave_a_gap(html: str) -> None:
    figure = next(part for part in html.split("<figure")[1:] if "<b>Gradient norm</b>" in part)
    (points,) = re.findall(r'<polyline class="line c1" points="([^"]*)"', figure)
    assert len(points.split()) == 149  # the first of 150 was NaN


def test_a_bad_value_is_marked_and_the_rest_shown(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "r", CONFIG) as run, RunWriter(run) as writer:
        writer.episodes("train", 0, [episode([("look", "a room"), ("go", "on")], reward=float("nan"))])
    page = Page(render(run, tmp_path / "none"))
    assert page.text.count("reward not finite") == 2
    assert "a room" in page.text


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "r", "") as run:
        pass
    page = Page(render(run, tmp_path / "none.json"))
    assert "No evaluation yet" in page.words
    assert page.count("figure") == 0


@pytest.mark.parametrize("missing", ["metrics", "timings", "evaluations", "summary", "episodes", "config"])
def test_any_piece_may_be_missing(tmp_path: Path, missing: str) -> None:
    run = write_run(tmp_path, updates=30)
    path: Path = getattr(run, missing)
    if path.is_dir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    else:
        path.unlink()
    page = Page(render(run, tmp_path / "none.json"))
    assert ("22% →" in page.words) is True  # the summary's, or else the evaluations'


def test_broken_pieces_are_named_and_skipped(tmp_path: Path) -> None:
    run = write_run(tmp_path, updates=30)
    for file in (run.metrics, run.evaluations, run.episodes / "train.jsonl"):
        with file.open("a") as stream:
            stream.write('{"update": 3, "half a li\n[1]\n')
    run.summary.write_text('{"success_before": {"mean": null}, "success_after": 3, ')
    run.config.write_text("a = = 1")
    page = Page(render(run, tmp_path / "none.json"))
    assert "metrics.jsonl: 1 line could not be read" in page.text
    assert "train.jsonl: 1 line could not be read" in page.text
    assert any(text.startswith("summary.json: ") for text in page.text)
    assert any(text.startswith("config.toml: ") for text in page.text)
    assert "22% →" in page.words


def test_fields_of_another_kind_do_no_harm(tmp_path: Path) -> None:
    odd = {"success": {"mean": 0.5}, "by_task": {"<b>": 0.5}, "pass_at_k": {"1": None}, "nll": None}
    with RunFolder.create(tmp_path, "r", "environment = 3\ntraining = 4\n") as run, RunWriter(run) as writer:
        writer.evaluation({"update": 0, "success": None, "by_task": None})
        writer.evaluation({"update": 1, **odd})
        writer.metrics("<i>phase", 0, {"<b>name": 1.0, "paw/lambda": 0.5})
    lines = ('{"turns": [3, {"entropy": null, "versions": [[]]}], "steps": null}', '{"turns": 3}')
    (run.episodes / "x.jsonl").write_text("\n".join(lines))
    run.write_summary({"success_before": {"mean": None}, "list": [1.5, "<b>"], "wall_seconds": "long"})
    page = Page(render(run, tmp_path / "none.json"))
    assert "<b>name" in page.text
    assert page.count("i") == 0
    assert "50%" in page.words


def test_half_a_surrogate_does_not_stop_the_page(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "r", "") as run, RunWriter(run) as writer:
        writer.episodes("train", 0, [episode([("go \ud800", "on")])])
    assert r"go \ud800" in build(run, tmp_path / "none").read_text()


def test_only_the_end_of_a_large_episode_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.report.read.TAIL_BYTES", 4_000)
    with RunFolder.create(tmp_path, "r", "") as run, RunWriter(run) as writer:
        for update in range(50):
            writer.episodes("train", update, [episode([("look", "a room")])])
    data = read_run(run)
    assert 0 < len(data.episodes["train"]) < 20
    assert data.episodes["train"][-1]["update"] == 49
    assert data.flaws == ()


def test_the_episodes_shown_are_mixed() -> None:
    records = [{"update": 1, "task_id": f"t{i // 8}", "success": i % 8 < 2, "index": i} for i in range(32)]
    old = [{"update": 0, "task_id": "t9", "success": True}]
    (group,) = chosen_episodes({"train": [*old, *records]})
    assert [(e["task"], e["solved"]) for e in group["episodes"]] == [
        ("t0", True),
        ("t1", True),
        ("t0", False),
        ("t1", False),
    ]
    (group,) = chosen_episodes({"train": [r for r in records if r["success"]]})
    assert [e["task"] for e in group["episodes"]] == ["t0", "t1", "t2", "t3"]
    assert [g["name"] for g in chosen_episodes({"train": old, "eval-a": old, "b": []})] == ["eval-a", "train"]


def test_the_time_split_has_no_part_twice() -> None:
    timing = {
        "rollout/seconds": 5.0,
        "rollout/env_seconds": 1.0,
        "learner/seconds/forward": 2.0,
        "learner/seconds/step": 1.0,
        "learner/seconds/update": 3.0,  # of which the two above are parts
        "learner/seconds/fresh": 3.0,  # the same time by source
        "time/evaluation": 2.0,
        "time/x/y": 9.0,
    }
    parts = {part["name"]: part["share"] for part in time_split([timing, {"time/evaluation": None}])}
    assert parts == {
        "rollout: model": 40.0,
        "learner: forward": 20.0,
        "evaluation": 20.0,
        "rollout: environment": 10.0,
        "learner: step": 10.0,
    }
    assert time_split([]) == []


def test_long_series_are_thinned_and_keep_their_mean() -> None:
    points = [Point("policy", float(i), float(i % 2)) for i in range(10_000)]
    thinned = thin(points)
    assert len(thinned) <= MAXIMUM_POINTS
    assert sum(p.value for p in thinned) / len(thinned) == pytest.approx(0.5, abs=0.01)
    assert thinned[-1].update == 9_999
    assert thin(points[:5]) == points[:5]


@pytest.mark.parametrize(
    ("values", "share", "low", "high"),
    [
        ([0.2, 0.9], True, 0.0, 1.0),
        ([0.01, 0.02], True, 0.0, 0.02),
        ([3.0, 9.0], False, 0.0, 10.0),
        ([-0.05, 0.1], False, -0.05, 0.1),
        ([5.0, 5.0], False, 2.0, 8.0),
        ([0.0, 0.0], False, -0.5, 0.5),
        ([1e-9, 1e9], False, 0.0, 1e9),
    ],
)
def test_axes_hold_their_values_and_end_on_ticks(values: list[float], share: bool, low: float, high: float) -> None:
    bottom, top, ticks = y_range([Series("s", [Point("policy", 0, v) for v in values], 1)], share)
    assert (bottom, top) == (pytest.approx(low), pytest.approx(high))
    assert ticks[0] == pytest.approx(low)
    assert ticks[-1] == pytest.approx(high)
    assert 2 <= len(ticks) <= 7


def test_a_chart_of_one_point_and_hostile_names() -> None:
    series = [
        Series("<b>label", [Point("</svg>", 0, 0.5, 0.4, 0.6)], 1, dots=True),
        Series("other", [Point("policy", 1, 1.0)], 2),
    ]
    page = Page(str(chart("<script>t", series, caption='"c"')))
    assert "<b>label" in page.text
    assert page.count("script") == 0
    assert page.count("circle") == 2


def test_interval_bars_stay_on_their_scale() -> None:
    numbers = [float(n) for n in re.findall(r' x="([\d.-]+)"', str(interval_row(1.0, -0.2, 1.4, 1)))]
    assert all(0 <= n <= 200 for n in numbers)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.25"), (7.5e-4, "7.5e-4"), (1234, "1,234"), (15_000, "15k"), (-2, "-2")]
)
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


def test_controls_of_another_form_are_left_out(tmp_path: Path) -> None:
    for text in ("[]", '{"arms": 3}', '{"arms": [3]}', "nonsense"):
        (tmp_path / "c.json").write_text(text)
        assert read_controls(tmp_path / "c.json") == {}
