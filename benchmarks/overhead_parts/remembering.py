"""What a memory of many samples costs: a whole loop that draws from it, beside the plain one."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from overhead_parts.bert import Batch, make_model, make_optimizer, update
from overhead_parts.language import LABELLED
from sifting import MemoryExit, Sifter
from sifting.model.trained_loss import TrainedLoss

SAMPLES, LENGTH = 10_000_000, 128
WORDS = (1000, 30522)


class Numbered(Dataset[Batch]):
    """Sequences made of their numbers, so that as many as one likes take no memory."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Batch:
        generator = torch.Generator().manual_seed(index)
        ids_T = torch.randint(*WORDS, (LENGTH,), generator=generator)
        chosen_T = torch.rand(LENGTH, generator=generator) < LABELLED
        chosen_T[0] = True
        labels_T = ids_T.masked_fill(~chosen_T, -100)
        return {
            "input_ids": ids_T.masked_fill(chosen_T, 103),
            "labels": labels_T,
            "next_sentence_label": torch.tensor(index % 2),
        }


def memory_cost(args: argparse.Namespace) -> dict[str, Any]:
    """Choosing by IDs, drawing twice as many of them, and reading the losses of the training forward."""
    samples = 100_000 if args.quick else SAMPLES
    model = make_model(argparse.Namespace(length=LENGTH, dropout=0.1, layers=args.layers))
    optimizer = make_optimizer(model)
    data, exit = Numbered(samples), MemoryExit()
    exit.expect(samples)
    _fill(exit, samples)
    sifter = Sifter(model, exit=exit, keep=0.5, audit_every=0)
    sifter.observer._check = TrainedLoss(compares=False)  # of the first 256 steps alone
    reads = _timed_reads(sifter)
    loops: dict[str, Iterator[Batch]] = {
        "plain": iter(DataLoader(data, args.batch, shuffle=True)),
        "memory": iter(sifter(DataLoader(data, args.batch, shuffle=True))),
    }
    drawing: dict[str, list[float]] = {name: [] for name in loops}
    updating: dict[str, list[float]] = {name: [] for name in loops}
    reading: dict[str, list[float]] = {name: [] for name in loops}
    order = random.Random(0)
    for number in range(args.rounds + 1):
        for name in order.sample(list(loops), len(loops)):
            reads.clear()  # the hook also hears of the plain loop's forward, and leaves it at that
            begin = time.process_time()
            batch = next(loops[name])
            drawn = time.process_time()
            update(model, optimizer, batch)
            if number:  # the first finds out how losses are made
                drawing[name].append(drawn - begin)
                updating[name].append(time.process_time() - drawn)
                reading[name].append(sum(reads))
    choosing = statistics.median(drawing["memory"]) - statistics.median(drawing["plain"])
    read = statistics.median(reading["memory"])
    whole = statistics.median(updating["plain"])
    return {
        "model": f"BERT-base, fresh weights, length {LENGTH}",
        "samples": samples,
        "batch": args.batch,
        "megabytes": _bytes(exit) / 1e6,
        "milliseconds": {"choosing": 1000 * choosing, "reading losses": 1000 * read},
        "update_seconds": whole,
        "cost": (choosing + read) / whole,
        "rounds": args.rounds,
    }


def _fill(exit: MemoryExit, samples: int) -> None:
    """All of them known: the most work there can be."""
    generator = torch.Generator().manual_seed(0)
    for begin in range(0, samples, 2**20):
        slots = torch.arange(begin, min(begin + 2**20, samples))
        exit.table.write(slots, torch.rand(len(slots), generator=generator))


def _timed_reads(sifter: Sifter) -> list[float]:
    """Seconds that each reading of a training forward takes, as they come."""
    read, found = sifter.observer.read, list[float]()

    def timed(output: Any) -> None:
        begin = time.process_time()
        read(output)
        found.append(time.process_time() - begin)

    sifter.observer.read = timed  # type: ignore[method-assign]
    return found


def _bytes(exit: MemoryExit) -> int:
    held = (value for value in vars(exit.table).values() if isinstance(value, Tensor))
    return sum(value.numel() * value.element_size() for value in held)
