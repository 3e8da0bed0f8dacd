"""`python -m warren.tools.model [--deep] [--rules]`: search all models, print the counts, exit 1 on a violation."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from warren.tools.model import (
    batches,
    collection,
    compaction,
    credit,
    deliveries,
    doorbell,
    dying,
    exclusive,
    readers,
    store,
    stored,
    topic_log,
    waiting,
)
from warren.tools.model.search import Found, search

MODELS: tuple[tuple[str, Any], ...] = (
    ("store", store),
    ("stored", stored),
    ("deliveries", deliveries),
    ("collection", collection),
    ("batches", batches),
    ("dying", dying),
    ("readers", readers),
    ("credit", credit),
    ("exclusive", exclusive),
    ("waiting", waiting),
    ("doorbell", doorbell),
    ("topic_log", topic_log),
    ("compaction", compaction),
)

#: a rule that another one covers as well: it shows only when that one is broken, too
WITH: Mapping[tuple[str, str], dict[str, bool]] = {
    ("store", "row_before_head"): {"reader_checks_head": False},
    ("topic_log", "epochs"): {"cut": False},
    ("topic_log", "cut"): {"epochs": False},
    ("topic_log", "zeros_are_cut"): {"epochs": False},
    ("topic_log", "cut_is_synced"): {"epochs": False},
}


def mutants() -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Every (model, rule, module, models to search with this rule broken)."""
    for name, module in MODELS:
        for rule in fields(module.Rules):
            rules = module.Rules(**{rule.name: False}, **WITH.get((name, rule.name), {}))
            models = {**module.STANDARD, **getattr(module, "LATE", {})}
            first = getattr(module, "WHERE", {}).get(rule.name)  # the model that shows it soonest
            if first:
                models = {first: models[first]}
            yield name, rule.name, module, {text: replace(model, rules=rules) for text, model in models.items()}


def caught(models: Mapping[str, Any]) -> tuple[str, Found[Any]] | None:
    """The first of the models in which the search finds a violation."""
    for text, model in models.items():
        found = search(model)
        if found.violation:
            return text, found
    return None


def main(argv: list[str] | None = None) -> int:
    """Search, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="warren.tools.model", description="Search the models of Warren's protocols.")
    parser.add_argument("--deep", action="store_true", help="the larger models, too (a minute or two)")
    parser.add_argument("--rules", action="store_true", help="break each rule in turn, and show what happens then")
    options = parser.parse_args(argv)
    bad = 0
    for name, module in MODELS:
        for text, model in {**module.STANDARD, **(module.DEEP if options.deep else {})}.items():
            started = time.monotonic()
            found = search(model)
            bad += found.violation is not None
            print(f"{name}: {text}: {found} ({time.monotonic() - started:.1f} s)", flush=True)
    if options.rules:
        for name, rule, _, models in mutants():
            result = caught(models)
            bad += result is None
            print(
                f"{name} without {rule}: "
                + ("NOT CAUGHT" if result is None else f"{result[1].violation} ({result[0]})")
            )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
