"""The log's metrics for other loggers: TensorBoard's writer, Weights & Biases, or any of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sifting.measure.logged import logged, numbers

RESERVED = ("kind", "step", "planned", "load", "seconds", "reference", "selection")
COUNTS = ("candidates_seen", "samples_trained", "tokens_seen", "tokens_trained")


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """A record of the log, or a sifter's stats, as flat names and numbers.

    >>> record = {"kind": "train", "step": 10, "samples_trained": 320, "loss": 2.0, "lr": 0.1,
    ...           "seconds": {"scoring": 0.5}, "selection": {"rho_approx": 1.2, "recall": None}}
    >>> scalars(record)
    {'train/loss': 2.0, 'train/lr': 0.1, 'sifting/samples_trained': 320.0,
     'sifting/rho_approx': 1.2, 'seconds/scoring': 0.5}
    >>> scalars({"steps": 10, "rho_approx": 1.2, "seconds_scoring": 0.5})
    {'sifting/steps': 10.0, 'sifting/rho_approx': 1.2, 'seconds/scoring': 0.5}

    What has not been measured yet is left out.

    Args:
        record: as `Engine(watch=…)` receives it and `metrics.jsonl` has it, or `sifter.stats()`.
    """
    if "kind" not in record:
        return logged(record)
    own = {k: v for k, v in record.items() if k not in (*RESERVED, *COUNTS)}
    named = {f"{record['kind']}/{name}": value for name, value in own.items()}
    stats = {name: record[name] for name in COUNTS if name in record}
    named |= logged({**stats, **(record.get("selection") or {})})
    for group in ("seconds", "reference"):
        named |= {f"{group}/{k}": v for k, v in (record.get(group) or {}).items()}
    if "load" in record:
        named["machine/load"] = record["load"]
    return numbers(named)


def to_writer(writer: Any) -> Callable[..., None]:
    """A function that gives every record to TensorBoard or Weights & Biases.

    >>> class Writer:  # SummaryWriter("runs/sift"), or wandb.init(…)
    ...     def add_scalar(self, name, value, global_step):
    ...         print(name, value, global_step)
    >>> watch = to_writer(Writer())  # for Engine(watch=watch)
    >>> watch({"kind": "eval", "step": 100, "accuracy": 0.9})
    eval/accuracy 0.9 100

    In a loop of your own: `watch(sifter.stats(), step=step)`.

    Args:
        writer: has `add_scalar(name, value, step)`, as a `SummaryWriter`, or `log(scalars, step=…)`, as
            a run of wandb or the module itself.
    """
    if callable(getattr(writer, "add_scalar", None)):

        def send(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

    elif callable(getattr(writer, "log", None)):

        def send(values: Mapping[str, float], step: int) -> None:
            writer.log(dict(values), step=step)

    else:
        raise TypeError(
            f"{type(writer).__name__} has neither add_scalar nor log: pass a TensorBoard SummaryWriter, a "
            "run of wandb, or call scalars(record) and log that"
        )

    def watch(record: Mapping[str, Any], *, step: int | None = None) -> None:
        at = record.get("step", record.get("steps", 0)) if step is None else step
        send(scalars(record), int(at))

    return watch
