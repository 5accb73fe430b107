"""The page in a real browser: it opens, shows everything, runs nothing, fits a phone."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sifting.report import collect, write_html
from sifting.verdict import Verdict, advice
from tests.helpers.run_folders import made, write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")

HOSTILE = "<img src=x onerror=top.hacked=1></title><script>top.hacked=1</script>$\\frac{\x00\u202e"

# measures both frames once they have loaded, and leaves what it found as JSON
HARNESS = """<!doctype html><meta charset="utf-8"><body>
<iframe id="desk" src="report.html" style="width:1200px;height:900px"></iframe>
<iframe id="phone" src="report.html" style="width:360px;height:700px"></iframe>
<script>
const colour = (c) => c.match(/[0-9.]+/g).slice(0, 3).map(Number);
const light = (c) => { const [r, g, b] = colour(c).map(v => (v /= 255) <= 0.04045 ? v / 12.92 :
  ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05); };
function look(id) {
  const w = document.getElementById(id).contentWindow, d = w.document;
  const all = (q, root) => [...(root || d).querySelectorAll(q)];
  const paper = w.getComputedStyle(d.body).backgroundColor;
  const meets = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
    a.top < b.bottom - 1 && b.top < a.bottom - 1;
  return {
    title: d.title, hacked: [w.hacked, window.hacked].some(x => x !== undefined),
    scripts: all("script, img, iframe, object, link").length, links: all("[href]").map(a =>
      a.getAttribute("href")).filter(h => !h.startsWith("#")),
    wide: d.documentElement.scrollWidth - d.documentElement.clientWidth,
    landmarks: ["header", "main", "footer"].map(q => all(q).length),
    headings: all("h1, h2, h3, h4").map(h => Number(h.tagName[1])),
    twice: all("[id]").map(e => e.id).filter((x, i, xs) => xs.indexOf(x) !== i),
    figures: all("figure").map(f => {
      const s = all("svg[role=img]", f).find(s => s.getClientRects().length); return {
      id: f.id, width: s.getBoundingClientRect().width, height: s.getBoundingClientRect().height,
      title: s.querySelector("title").textContent, desc: s.querySelector("desc").textContent,
      texts: all("text", s).map(t => t.textContent), rows: all("details tbody tr", f).length,
      lines: all("path", s).length, shown: all("svg[role=img]", f).filter(s =>
        s.getClientRects().length).length, letters: Math.min(...all("text", s).map(t =>
        parseFloat(w.getComputedStyle(t).fontSize) * s.getScreenCTM().a)),
      overlapping: all("text", s).flatMap((t, i, ts) => ts.slice(i + 1).filter(u => meets(
        t.getBoundingClientRect(), u.getBoundingClientRect())).map(u =>
        t.textContent + " / " + u.textContent)) }; }),
    tables: all("table").map(t => all("tr", t).map(r => [...r.cells].map(c => c.textContent))),
    scroll: all(".scroll").every(b => b.tabIndex === 0 && b.getAttribute("aria-label")),
    skipped: all("#skipped ~ ul li").map(l => l.textContent),
    overall: d.querySelector(".overall").textContent, paper,
    legends: all("h3 + .legend").map(l => all("li", l).map(i => i.textContent)),
    warned: all("h3").filter(h => h.textContent.startsWith("Warnings")).map(h =>
      h.nextElementSibling.textContent),
    columns: all(".verdict + .scroll thead th").map(h => [h.textContent,
      h.getBoundingClientRect().right <= d.documentElement.clientWidth]),
    shadows: all(".scroll").every(b => w.getComputedStyle(b).backgroundAttachment.includes("local")),
    least: Math.min(...all("p, li, th, td, caption, h1, h2, h3, h4, summary, figure text").map(e =>
      contrast(w.getComputedStyle(e)[e.tagName === "text" ? "fill" : "color"], paper))),
    series: [...Array(8).keys()].map(i => contrast("rgb(" + [1, 3, 5].map(k => parseInt(
      w.getComputedStyle(d.documentElement).getPropertyValue("--s" + i).trim().slice(k, k + 2), 16)
      ).join() + ")", paper)),
  };
}
onload = () => { let found; try { found = {desk: look("desk"), phone: look("phone")}; }
  catch (e) { found = {error: String(e)}; }
  const out = document.createElement("pre"); out.id = "found";
  out.textContent = JSON.stringify(found); document.body.append(out); };
</script>"""


@dataclass(frozen=True)
class Seen:
    light: dict[str, Any]
    dark: dict[str, Any]
    console: list[str]
    verdict: Verdict


def visit(page: Path, profile: Path, *options: str) -> tuple[dict[str, Any], list[str]]:
    """What the harness finds, and what the console says."""
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
            "--allow-file-access-from-files",
        ),
        *("--enable-logging=stderr", *options, "--dump-dom", page.as_uri()),
    ]
    home = {**os.environ, "HOME": str(profile)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=90, check=False, env=home
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    # a frame's content cannot be text with tags: the browser wrote them as entities
    text = found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u00a0")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(text.replace("&amp;", "&")), console


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("page")
    runs = folder / "runs"
    speeds = {"baseline": 1.0, "random-keep": 1.0, "sift": 1.3, HOSTILE: 0.9}
    for number, (arm, speed) in enumerate(speeds.items()):
        for seed in range(3):
            run = made(
                arm, seed, speed=speed, scoring=0.1 * number, noise=0.01, points=8, note=HOSTILE
            )
            path = run.path.with_name(f"{number}-{seed} <script>top.hacked=1<")
            said = ["scoring takes <b>most</b> of the time"] if arm == "sift" else []
            summary = {**(run.summary or {}), "warnings": said}
            write(replace(run, path=path, summary=summary), runs)
    (runs / "<b>half").mkdir()
    (runs / "<b>half" / "run.json").write_text('{"form')
    material = collect([runs], target=0.6)
    write_html(material, folder / "report.html")
    (folder / "harness.html").write_text(HARNESS)
    light, console = visit(folder / "harness.html", folder / "profile")
    dark, more = visit(
        folder / "harness.html", folder / "profile2", "--blink-settings=preferredColorScheme=0"
    )
    assert "error" not in light, light
    return Seen(light, dark, console + more, material.experiments[0].verdict)


def test_it_opens_without_a_word_in_the_console(seen: Seen) -> None:
    assert seen.console == []


def test_hostile_names_are_shown_and_run_nothing(seen: Seen) -> None:
    for frame in (seen.light["desk"], seen.dark["phone"]):
        assert frame["hacked"] is False
        assert frame["scripts"] == 0
        assert frame["links"] == []
    shown = [row[0] for row in seen.light["desk"]["tables"][0]]
    assert any("<img src=x onerror=top.hacked=1>" in name for name in shown)
    assert any("<b>half" in line and "damaged" in line for line in seen.light["desk"]["skipped"])


def test_every_figure_is_there_with_its_name_and_its_data(seen: Seen) -> None:
    figures = seen.light["desk"]["figures"]
    assert [f["id"] for f in figures] == [
        f"e0-{key}" for key in ("time", "samples", "clocks", "rho", "recall")
    ]
    for figure in figures:
        assert figure["shown"] == 1, "in one of its two sizes"
        assert figure["width"] > 300
        assert figure["height"] > 150
        assert len(figure["title"]) > 5
        assert len(figure["desc"]) > 20
        assert figure["rows"] >= 4
        assert figure["lines"] > 10
        assert len(figure["texts"]) > 5, "text is text, not outlines"
        assert figure["overlapping"] == []


def test_the_tables_have_the_runs_numbers(seen: Seen) -> None:
    columns, rows = seen.verdict.table()
    tables = seen.light["desk"]["tables"]
    assert tables[0][0] == columns
    assert [row[1:] for row in tables[0][1:]] == [row[1:] for row in rows]
    said = seen.light["desk"]["overall"].replace("\u00a0", " ")
    assert said == advice.overall(seen.verdict).bare()
    learning = next(t for t in tables if t[0][:2] == ["arm", "updates"])
    run = [m for m in made("baseline", 0, noise=0.01, points=8).metrics if m["kind"] == "eval"]
    runs = [made("baseline", s, noise=0.01, points=8).metrics for s in range(3)]
    final = sum(m[-1]["accuracy"] for m in runs) / 3
    last = next(row for row in learning if row[:2] == ["baseline", "400"])
    seconds = sum(v for k, v in run[-1]["seconds"].items() if k != "evaluation")
    assert last[2:] == [f"{seconds:.4g}", f"{100 * final:.2f}", "3"]
    clocks = next(t for t in tables if t[0][:2] == ["arm", "data"])
    sift = dict(zip(clocks[0], next(row for row in clocks if row[0] == "sift"), strict=True))
    assert (sift["forward"], sift["backward"], sift["scoring"]) == ("8", "12", "4")
    exits = next(t for t in tables if t[0][0] == "exit")
    assert exits[1] == ["1", "sift", "10 ms", "20 ms", "30 ms", "0.200"]


def test_headings_are_in_order_and_landmarks_are_there(seen: Seen) -> None:
    frame = seen.light["desk"]
    assert frame["landmarks"] == [1, 1, 1]
    levels = frame["headings"]
    assert levels[:2] == [1, 2]
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert frame["twice"] == []
    assert frame["scroll"] is True


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_page(seen: Seen, scheme: str) -> None:
    for frame in getattr(seen, scheme).values():
        assert frame["wide"] <= 0
    phone = getattr(seen, scheme)["phone"]
    assert all(280 < figure["width"] <= 360 for figure in phone["figures"])
    for frame in getattr(seen, scheme).values():
        assert all(figure["letters"] >= 13 for figure in frame["figures"]), "as large as the text"


def test_on_a_phone_what_decides_comes_first_and_tables_show_that_they_scroll(seen: Seen) -> None:
    columns = seen.light["phone"]["columns"]
    assert [name for name, _ in columns[:2]] == ["arm", "points to baseline"]
    assert [whole for _, whole in columns[:3]] == [True] * 3, "the time to the target too"
    assert not columns[-1][1]
    assert seen.light["phone"]["shadows"] is True


def test_legends_list_what_is_there(seen: Seen) -> None:
    learning, quality = seen.light["desk"]["legends"]
    assert [name for name in learning if "<" not in name][:3] == ["baseline", "random-keep", "sift"]
    assert learning[-1] == "target"
    assert "baseline" not in quality
    assert quality[-2:] == ["break-even", "random choice"]


def test_warnings_of_the_runs_are_on_the_page(seen: Seen) -> None:
    (warned,) = seen.light["desk"]["warned"]
    assert "scoring takes <b>most</b> of the time (sift, seeds 0, 1, 2)" in warned


def test_both_colour_schemes_are_legible(seen: Seen) -> None:
    assert seen.light["desk"]["paper"] == "rgb(255, 255, 255)"
    assert seen.dark["desk"]["paper"] == "rgb(20, 23, 27)"
    for frame in (seen.light["desk"], seen.dark["desk"]):
        assert frame["least"] >= 4.5  # WCAG AA for text
        assert min(frame["series"]) >= 3.0  # and for graphics
