"""Why a reference loss harms on wrong labels, and what of it can be mended: Fashion-MNIST, equal updates.

    OMP_NUM_THREADS=1 python benchmarks/references.py --seeds 0 1 2 --out references.jsonl
    OMP_NUM_THREADS=1 python benchmarks/references.py --noise 0.4 --rules baseline halves oracle --out …

Trains the network of `sift bench fashion-20` (1,600 updates on 64 of 128 candidates, exact losses) by each
rule, in a plain loop. Beside the accuracy on the clean test set it says of what was kept: the share of
wrong labels, how much is kept of what the model gets wrong though its label is right (half of it, at
random), the share of the classes that is kept least and most, and how many samples were drawn but never
kept. What a reference costs is in none of it. Results are added to a file, and those that are there are
not made again.

Rules: `loss` is the exact loss, `oracle…` know which labels are wrong, which nobody does: how much a perfect
reference could help. The others take a reference's loss off: `linear` of a linear map on pixels that learned
the 5,000 held-out samples, `held` of the same network that did, `halves` of two networks, each trained on
one half of the training set and asked of the other, `clean` of two that learned the true labels of
theirs. `…-capped` cut both losses off at that of guessing,
`…-explore` choose a quarter at random, `…-soft` draw in proportion to a softmax of the scores, `…-veto` pass
over what the reference finds worse than guessing and choose the rest at random, `…-veto-loss` by loss.
`--begin 0.5` selects in the second half of a run alone, `--drawn 640` chooses one in ten.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.bench.tasks import fashion
from sifting.bench.tasks.common import Data, classified, one_cycle
from sifting.bench.tasks.rows import TaskRows

KEPT = 64
GUESS = math.log(fashion.CLASSES)
Draw = Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]


def losses(model: nn.Module, rows: TaskRows) -> Tensor:
    """Of every sample, in order."""
    model.eval()
    with torch.no_grad():
        found = [F.cross_entropy(model(x), y, reduction="none") for x, y in rows.in_order()]
    model.train()
    return torch.cat(found)


def learn(model: nn.Module, rows: TaskRows, updates: int, *, rate: float = 3e-3) -> nn.Module:
    """Train a reference on some samples, in a random order."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    schedule = one_cycle(optimizer, updates)
    for _ in range(updates):
        x, y = rows.__getitems__(torch.randint(len(rows), (KEPT,)))
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model


def reference(name: str, data: Data, wrong_N: Tensor, updates: int) -> Tensor:
    """The loss that is taken off, of every sample of the training set."""
    torch.manual_seed(1234)
    if name == "oracle":
        return torch.where(wrong_N, 1e3, 0.0)
    if name == "linear":
        flat = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, fashion.CLASSES))
        made = learn(flat, data.held_out, 400, rate=1e-3)
    elif name == "held":
        made = learn(fashion.network(32), data.held_out, 400)
    else:
        size = len(data.train)
        taught = data.train
        if name == "clean":
            everything = torch.arange(size)
            taught = taught.some(everything, ready=lambda x, y, true: fashion.ready(x, true))
        sides = [torch.arange(size) % 2 == side for side in (0, 1)]
        found = torch.empty(size)
        for own, other in (sides, sides[::-1]):
            net = learn(fashion.network(32), taught.some(own), updates // 2)
            print(f"half: {classified(net, data.test)['accuracy']:.2%} of the test set", flush=True)
            found[other] = losses(net, data.train.some(other))
        return found
    print(f"{name}: {classified(made, data.test)['accuracy']:.2%} of the test set", flush=True)
    made.train()
    return losses(made, data.train)


def top(scores_B: Tensor, count: int = KEPT) -> Tensor:
    return scores_B.topk(count).indices


def soft(scores_B: Tensor, generator: torch.Generator) -> Tensor:
    """Drawn without replacement, in proportion to a softmax of the scores over their deviation."""
    noise_B = -(-torch.rand(len(scores_B), generator=generator).log()).log()
    return top((scores_B - scores_B.mean()) / scores_B.std().clamp_min(1e-6) + noise_B)


def explored(scores_B: Tensor, generator: torch.Generator) -> Tensor:
    """Three quarters by score, the rest at random."""
    kept = top(scores_B, KEPT * 3 // 4)
    rest = torch.ones(len(scores_B), dtype=torch.bool).index_fill(0, kept, False).nonzero()[:, 0]
    more = rest[torch.randperm(len(rest), generator=generator)[: KEPT - len(kept)]]
    return torch.cat([kept, more])


def rule_of(name: str) -> tuple[str | None, Draw]:
    """Whose losses are taken off, and how the kept are drawn from losses and references."""
    if name in ("random", "loss"):
        by_loss = name == "loss"
        return None, lambda x, r, u, g: top(x if by_loss else u)
    whose, _, how = name.partition("-")
    draws: dict[str, Draw] = {
        "": lambda x, r, u, g: top(x - r),
        "capped": lambda x, r, u, g: top(x.clamp_max(GUESS) - r.clamp_max(GUESS)),
        "explore": lambda x, r, u, g: explored(x - r, g),
        "soft": lambda x, r, u, g: soft(x - r.clamp_max(50.0), g),
        "veto": lambda x, r, u, g: top(torch.where(r > GUESS, u - 2, u)),
        "veto-loss": lambda x, r, u, g: top(torch.where(r > GUESS, -1e3 + x, x)),
    }
    return whose, draws[how]


def train(
    data: Data,
    wrong_N: Tensor,
    ref_N: Tensor | None,
    draw: Draw | None,
    seed: int,
    *,
    updates: int,
    begin: float,
    drawn: int,
) -> dict:
    """One run; `draw` of None is the baseline."""
    torch.manual_seed(seed)
    model = fashion.network(32)
    chance = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = one_cycle(optimizer, updates)
    queue, size = torch.empty(0, dtype=torch.long), len(data.train)
    kept_N, drawn_N = torch.zeros(size), torch.zeros(size)
    hard_drawn = hard_kept = 0
    for update in range(updates):
        selects = draw is not None and update >= begin * updates
        wanted = drawn if selects else KEPT
        while len(queue) < wanted:
            queue = torch.cat([queue, torch.randperm(size, generator=chance)])
        rows, queue = queue[:wanted], queue[wanted:]
        x, y = data.train.__getitems__(rows)
        if selects:
            model.eval()
            with torch.no_grad():
                logits = model(x)
            exact = F.cross_entropy(logits, y, reduction="none")
            model.train()
            off = torch.zeros(len(rows)) if ref_N is None else ref_N[rows]
            kept = draw(exact, off, torch.rand(len(rows), generator=chance), chance)
            drawn_N[rows] += 1
            kept_N[rows[kept]] += 1
            hard = (logits.argmax(dim=1) != y) & ~wrong_N[rows]
            hard_drawn, hard_kept = hard_drawn + int(hard.sum()), hard_kept + int(hard[kept].sum())
            x, y = x[kept], y[kept]
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    found = {"accuracy": 100 * classified(model, data.test)["accuracy"]}
    if draw is not None:
        true_N = data.train.tensors_N[2].long()
        shares = torch.zeros(fashion.CLASSES).index_add(0, true_N, kept_N) / kept_N.sum()
        found |= {
            "wrong": float((kept_N * wrong_N).sum() / kept_N.sum()),
            "hard": hard_kept / max(1, hard_drawn),
            "least": float(shares.min()),
            "most": float(shares.max()),
            "never": float(((drawn_N > 0) & (kept_N == 0)).sum() / (drawn_N > 0).sum()),
        }
    return found


def noisy(noise: float) -> tuple[Data, Tensor]:
    """The data of `fashion-20` and its like, with the true labels as a third member; and what is wrong."""
    config = replace(fashion.NOISY_20.presets["full"], random_labels=noise)
    files, test = fashion.read_files(config)
    pixels_N, labels_N = files.tensors_N
    given_N = fashion.with_random_labels(labels_N, noise)
    order = fashion.shuffled(len(given_N), seed=fashion.SPLIT)
    out = round(len(given_N) * fashion.SHARE)
    ready = fashion.ready

    def rows(chosen: Tensor) -> TaskRows:
        members = (pixels_N[chosen], given_N[chosen], labels_N[chosen])
        return TaskRows(*members, ready=lambda x, y, true: ready(x, y))

    data = Data(rows(order[out:]), rows(order[:out]), test, fashion.CLASSES)
    return data, given_N[order[out:]] != labels_N[order[out:]]


RULES = ["baseline", "random", "loss", "oracle", "oracle-veto", "linear", "held", "halves", "clean"]
RULES += [
    "linear-veto",
    "held-veto",
    "halves-veto",
    "halves-veto-loss",
    "held-capped",
    "halves-capped",
]
RULES += ["held-explore", "halves-explore", "halves-soft"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--updates", type=int, default=1600)
    parser.add_argument("--begin", type=float, default=0.1, help="share of the run before choosing")
    parser.add_argument("--drawn", type=int, default=128, help="candidates that 64 are chosen of")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    done = (
        [json.loads(line) for line in args.out.read_text().splitlines()]
        if args.out.exists()
        else []
    )
    how = {"updates": args.updates, "begin": args.begin, "drawn": args.drawn}
    about = {"noise": args.noise, **how}
    data, wrong_N = noisy(args.noise)
    references: dict[str, Tensor] = {}
    for seed in args.seeds:
        for name in args.rules:
            key = {**about, "rule": name, "seed": seed}
            if any(all(one[k] == v for k, v in key.items()) for one in done):
                continue
            whose, draw = (None, None) if name == "baseline" else rule_of(name)
            if whose is not None and whose not in references:
                references[whose] = reference(whose, data, wrong_N, args.updates)
            off_N = None if whose is None else references[whose]
            done.append({**key, **train(data, wrong_N, off_N, draw, seed, **how)})
            with args.out.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    table([one for one in done if all(one[k] == v for k, v in about.items())])


def table(runs: list[dict]) -> None:
    """Each rule's runs beside the baseline's of the same seeds."""
    print(
        "| rule | accuracy % | to the baseline | wrong labels of the kept | kept of the hard and right "
        "| least and most of a class | never kept | seeds |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    base = {one["seed"]: one["accuracy"] for one in runs if one["rule"] == "baseline"}
    for name in dict.fromkeys(one["rule"] for one in runs):
        mine = [one for one in runs if one["rule"] == name]
        values = torch.tensor([one["accuracy"] for one in mine])
        apart = torch.tensor(
            [one["accuracy"] - base[one["seed"]] for one in mine if one["seed"] in base]
        )
        spread = f" ± {float(values.std()):.2f}" if len(values) > 1 else ""
        shown = f"{float(apart.mean()):+.2f}" + (
            f" ± {float(apart.std()):.2f}" if len(apart) > 1 else ""
        )

        def mean(key: str, mine: list[dict] = mine) -> float:
            return sum(one[key] for one in mine) / len(mine)

        rest = "– | – | – | –"
        if "wrong" in mine[0]:
            rest = f"{mean('wrong'):.3f} | {mean('hard'):.3f} | {mean('least'):.3f}, {mean('most'):.3f}"
            rest += f" | {mean('never'):.3f}"
        print(f"| {name} | {float(values.mean()):.2f}{spread} | {shown} | {rest} | {len(mine)} |")


if __name__ == "__main__":
    main()
