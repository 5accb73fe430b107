"""The rows of `limits.json` as documents show them: a cost never stands without its quality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from overhead_parts.targets import TARGETS

Results = Mapping[str, Any]

COLUMNS = {
    "as_before": "Spearman with exit 1 as it is",
    "rank_correlation": "Spearman with the exact loss",
    "recall": "recall of the exact top half",
    "recall_apart": "recall less the second stage's",
    "kept_loss": "μ",
}
PLAIN = tuple(name for name in COLUMNS if name != "recall_apart")


def rows(columns: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in [columns, ["---"] * len(columns), *lines]
    )


def of_row(row: str, results: Results) -> str:
    """A row as Markdown; where something of it was not measured, how to do that."""
    make, needed = ROWS[row]
    missing = [name for name in needed if name not in results]
    if missing:
        command = f"python benchmarks/overhead.py limits --only {' '.join(missing)}"
        return f"Not measured yet: `{command}`."
    return make(results)


def _summary(results: Results) -> str:
    """What was to be reached, and what was."""
    lines = []
    for name, (needed, check) in TARGETS.items():
        if all(one in results for one in needed):
            passed, got = check(results)
            lines.append([name, got, "yes" if passed else "**no**"])
        else:
            lines.append([name, "not measured yet", "–"])
    return rows(["to reach", "measured", "holds"], lines)


def _bert(row: str) -> Callable[[Results], str]:
    def make(results: Results) -> str:
        result, judged = results[row], results["ranking"]
        length = ranked_length(results, result["length"])
        quality = judged["lengths"][str(length)]
        lines = [
            [name, f"{value:.4f}", *_figures(quality[name], PLAIN)]
            for name, value in sorted(result["cost"].items(), key=lambda one: -one[1])
        ]
        table = rows(["scored", "cost", *(COLUMNS[name] for name in PLAIN)], lines)
        return (
            f"{table}\n\nCost: {result['model']}, {result['batch']} trained of twice as many, length "
            f"{result['length']}, score='loss'; FLOP ratio of exit 1 as it is {result['flops']:.3f}, the paper's "
            f"cost (length 512, A100) {result['paper_512']:.3f}. {_measured(result)} Quality: {judged['model']}; "
            f"{judged['batches']} batches of {judged['candidates']} candidates of length {length} that it has not "
            f"seen. {_measured(judged)}"
        )

    return make


def _resnet(results: Results) -> str:
    result = results["resnet"]
    shown = [name for name in COLUMNS if name != "as_before"]
    lines = [
        [name, f"{value:.4f}", *_figures(result["quality"][name], shown)]
        for name, value in sorted(result["cost"].items(), key=lambda one: -one[1])
    ]
    table = rows(["scored", "cost", *(COLUMNS[name] for name in shown)], lines)
    return (
        f"{table}\n\n{result['model']}, {result['batch']} trained of twice as many, "
        f"{result['accuracy']:.1%} right at the end; {result['batches']} batches of the later half. "
        f"{_measured(result)}"
    )


def _memory(results: Results) -> str:
    result, judged = results["memory"], results.get("ranking", {})
    parts = result["milliseconds"]
    table = rows(
        [
            "samples",
            "cost",
            "choosing, ms",
            "reading losses, ms",
            *(COLUMNS[name] for name in PLAIN),
        ],
        [
            [
                f"{result['samples']:,}",
                f"{result['cost']:.5f}",
                f"{parts['choosing']:.2f}",
                f"{parts['reading losses']:.2f}",
                *_figures(judged.get("memory"), PLAIN),
            ]
        ],
    )
    return (
        f"{table}\n\nCost: {result['megabytes']:.0f} MB, {result['batch']} trained of twice as many, "
        f"beside an update of {result['model']} ({result['update_seconds']:.1f} s). {_measured(result)} "
        + _quality_of(
            judged,
            "memory",
            "{memory_batches} batches of {candidates} sequences that it was trained on before, masked again",
        )
    )


def _llama(results: Results) -> str:
    result, judged = results["llama"], results.get("decoder", {})
    quality = judged.get("quality", {})
    grown = result["peak_growth_bytes"]
    peaks = {"as it is": "sifter", "rows: 1 in 8": "rows"}
    lines = [
        [
            name,
            f"{value:.3f}",
            f"{value / result['flops']:.2f}",
            f"{grown[peaks[name]] / grown['update']:.3f}" if name in peaks else "–",
            *_figures(quality.get(name), PLAIN),
        ]
        for name, value in result["cost"].items()
    ]
    columns = ["scored", "cost", "÷ FLOP ratio of all", "peak memory ÷ update's"]
    table = rows([*columns, *(COLUMNS[name] for name in PLAIN)], lines)
    return (
        f"{table}\n\nCost: {result['model']}, length {result['length']}, {result['batch']} trained of "
        f"twice as many; FLOP ratio of exit 1 as it is {result['flops']:.3f}. {_measured(result)} "
        + _quality_of(
            judged,
            "quality",
            "{batches} batches of {candidates} candidates that it has not seen",
            row="decoder",
        )
    )


def _ahead(results: Results) -> str:
    result, judged = results["ahead"], results.get("ranking", {})
    fresh = judged.get("lengths", {}).get("128", {}).get("as it is")
    lines = []
    for name, ratio in result["ratios"].items():
        low, high = result["spread"][name]
        quality = judged.get("late") if name == "ahead=1" else fresh
        wall = f"{ratio['wall']:.3f} ({low:.3f}–{high:.3f})"
        lines.append([name, wall, f"{ratio['cpu']:.3f}", *_figures(quality, PLAIN)])
    columns = ["scored", "step ÷ plain step", "its processor time", *(COLUMNS[n] for n in PLAIN)]
    load = max(result["load"])
    return (
        f"{rows(columns, lines)}\n\nTime on the wall, and in brackets its range over {result['rounds']} rounds: "
        f"{result['model']}, {result['batch']} trained of twice as many, one thread each to train and to score. "
        f"Made by `{result['command']}`{_at_commit(result)} ({result['machine']['cores']} cores of an "
        f"{result['machine']['processor']}; load at most {load:.1f}). "
        + _quality_of(
            judged,
            "late",
            "ahead=1 is judged while it learns, on {late_batches} batches scored before an update, by the exact "
            "losses after it",
        )
    )


def _at_commit(result: Mapping[str, Any]) -> str:
    """Where what was run is no longer there under its name."""
    return f" at commit {result['version']}" if "version" in result else ""


def ranked_length(results: Results, length: int) -> int:
    """The length of the candidates that were ranked: the one asked for, or 128 where that is all there is."""
    return length if str(length) in results["ranking"]["lengths"] else 128


def _quality_of(judged: Mapping[str, Any], part: str, said: str, row: str = "ranking") -> str:
    """What quality was measured on, or how to measure it."""
    if part not in judged:
        return (
            f"Its quality is not measured yet: `python benchmarks/overhead.py limits --only {row}`."
        )
    return f"Quality: {judged['model']}; {said.format_map(judged)}. {_measured(judged)}"


def _figures(found: Mapping[str, Any] | None, shown: Any) -> list[str]:
    if found is None:
        return ["–"] * len(shown)
    signs = {"recall_apart": "+"}
    return [
        f"{found[name]['mean']:{signs.get(name, '')}.3f} ± {found[name]['error']:.3f}"
        for name in shown
    ]


def _measured(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    loads = (machine["load_before"][0], machine["load_after"][0])
    return (
        f"Made by `{result['command']}` (processor time, one thread of an {machine['processor']}; load "
        f"{min(loads):.0f} to {max(loads):.0f} on {machine['cores']} cores)."
    )


ROWS: dict[str, tuple[Callable[[Results], str], tuple[str, ...]]] = {
    "summary": (_summary, ()),
    "bert-128": (_bert("bert-128"), ("bert-128", "ranking")),
    "bert-512": (_bert("bert-512"), ("bert-512", "ranking")),
    "memory": (_memory, ("memory",)),
    "resnet": (_resnet, ("resnet",)),
    "llama": (_llama, ("llama",)),
    "ahead": (_ahead, ("ahead",)),
}
