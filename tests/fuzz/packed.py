"""Packed batches: taking documents must give what the collator gives for those documents alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from transformers import DataCollatorWithFlattening

from sifting import Sifter
from sifting.data.documents import document_of_position
from sifting.data.samples import Samples
from tests.fuzz import Fuzz, refusal, register

Document = dict[str, list[int]]


def flattened(documents: list[Document], *, start: int, marks: frozenset[str]) -> Any:
    """transformers' collator, with the marks wanted and no others."""
    collate = DataCollatorWithFlattening(
        return_position_ids="positions" in marks,
        return_flash_attn_kwargs="lengths" in marks,
        return_seq_idx="numbers" in marks,
        position_ids_start=start,
    )
    return collate(documents)


def in_rows(documents: list[Document], *, capacity: int, masked: bool) -> Any:
    """Documents one after the other in padded rows, as packed data sets are collated."""
    rows: list[list[Document]] = [[]]
    for document in documents:
        used = sum(len(d["input_ids"]) for d in rows[-1])
        if rows[-1] and used + len(document["input_ids"]) > capacity:
            rows.append([])
        rows[-1].append(document)
    width = max(sum(len(d["input_ids"]) for d in row) for row in rows)
    batch: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "position_ids": []}
    masks = []
    for row in rows:
        tokens = [t for d in row for t in d["input_ids"]]
        labels = [v for d in row for v in (-100, *d["labels"][1:])]
        places = [i for d in row for i in range(len(d["input_ids"]))]
        empty = width - len(tokens)
        batch["input_ids"].append(tokens + [0] * empty)
        batch["labels"].append(labels + [-100] * empty)
        batch["position_ids"].append(places + [0] * empty)
        masks.append([1] * len(tokens) + [0] * empty)
    packed = {name: torch.tensor(values) for name, values in batch.items()}
    return packed | ({"attention_mask": torch.tensor(masks)} if masked else {})


@dataclasses.dataclass
class Case:
    documents: list[Document]
    chosen: list[int]
    collate: Callable[[list[Document]], Any]
    about: str

    def __repr__(self) -> str:
        lengths = [len(document["input_ids"]) for document in self.documents]
        return f"{self.about}, lengths {lengths}, taking {self.chosen}"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = draw(st.lists(st.integers(2, 6), min_size=1, max_size=8))
    documents = []
    for number, length in enumerate(lengths):
        tokens = [100 * (number + 1) + t for t in range(length)]
        asked = draw(st.integers(0, length - 1))  # a prompt, which is not learned
        documents.append({"input_ids": tokens, "labels": [-100] * asked + tokens[asked:]})
    chosen = draw(
        st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=len(lengths), unique=True)
    )
    if draw(st.booleans()):
        every = ["positions", "lengths", "numbers"]
        marks = draw(st.frozensets(st.sampled_from(every), min_size=1))
        start = draw(st.sampled_from([0, 2]))
        return Case(
            documents,
            chosen,
            lambda d: flattened(d, start=start, marks=marks),
            f"one row, {sorted(marks)}",
        )
    capacity, masked = max(max(lengths), draw(st.integers(4, 12))), draw(st.booleans())
    about = f"rows of {capacity}, {'with' if masked else 'without'} a mask"
    return Case(documents, chosen, lambda d: in_rows(d, capacity=capacity, masked=masked), about)


class Bigrams(torch.nn.Module):
    """Scores of the next token from the one before it; the loss of all labels, as models have it."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0))
        self.table = torch.nn.Parameter(table)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.table[input_ids]
        if labels is None:
            return {"logits": logits}
        wanted = torch.where(labels >= 0, labels % 7, labels)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten())
        return {"logits": logits, "loss": loss}


MODEL = Bigrams()


def right_scores(case: Case, batch: Any) -> None:
    """Each document's score is the mean loss of its own labels, and no other's."""
    few = {**batch, "labels": torch.where(batch["labels"] >= 0, batch["labels"] % 7, -100)}
    got = Sifter(MODEL, exit="last", score="loss").score(few)
    for document, score in zip(case.documents, got.tolist(), strict=True):
        tokens, labels = document["input_ids"], document["labels"]
        pairs = [(t, y) for t, y in zip(tokens, labels[1:], strict=False) if y >= 0]
        losses = [
            float(F.cross_entropy(MODEL.table.data[t], torch.tensor(y % 7))) for t, y in pairs
        ]
        want = sum(losses) / max(1, len(losses))
        assert math.isclose(score, want, rel_tol=1e-3, abs_tol=1e-4), f"{score} for {want}"


def check(case: Case) -> list[str]:
    samples = Samples(labels=lambda batch: {"labels": batch["labels"]})
    batch = case.collate(case.documents)
    before = {
        name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)
    }
    try:
        size = samples.size(batch)
        taken = samples.take(batch, torch.tensor(case.chosen))
    except ValueError as error:
        return [refusal(error)]
    assert size == len(case.documents), f"{size} documents were counted of {len(case.documents)}"
    chosen = [case.documents[i] for i in case.chosen]
    wanted = case.collate(chosen)
    assert taken.keys() == wanted.keys()
    if case.about.startswith("rows"):
        assert taken["input_ids"].shape[1] <= batch["input_ids"].shape[1]
        assert read_rows(taken) == [
            (d["input_ids"], [-100, *d["labels"][1:]], list(range(len(d["labels"]))))
            for d in chosen
        ]
    else:
        for name, value in wanted.items():
            assert torch.equal(torch.as_tensor(taken[name]), torch.as_tensor(value)), name
            assert type(taken[name]) is type(value)
            assert getattr(taken[name], "dtype", None) == getattr(value, "dtype", None)
    assert all(torch.equal(batch[name], value) for name, value in before.items())
    if size > batch["input_ids"].shape[0]:
        numbers_BT = document_of_position(batch)
        tokens = batch["input_ids"][numbers_BT >= 0] // 100 - 1
        assert torch.equal(tokens, numbers_BT[numbers_BT >= 0])
    if len(case.documents) > 1 and any(y >= 0 for d in case.documents for y in d["labels"][1:]):
        right_scores(case, batch)
    return ["right"]


def read_rows(batch: Any) -> list[tuple[list[int], list[int], list[int]]]:
    """Tokens, labels and positions of each document, told apart by their tokens; padding is 0."""
    found: list[tuple[list[int], list[int], list[int]]] = []
    for row in range(len(batch["input_ids"])):
        last = None
        for t, token in enumerate(batch["input_ids"][row].tolist()):
            label = int(batch["labels"][row, t])
            mask = batch.get("attention_mask")
            assert mask is None or bool(mask[row, t]) == (token != 0)
            if token == 0:
                assert label == -100
                continue
            if token // 100 != last:
                found.append(([], [], []))
                last = token // 100
            position = int(batch["position_ids"][row, t])
            for values, value in zip(found[-1], (token, label, position), strict=True):
                values.append(value)
    return found


FUZZ = register("packed", Fuzz(cases(), check))
