"""How a step's cost grows (`--scaling [PART]`): with workers and parameter servers, with the number of variables, with
their size, with the size of a table that few rows of are touched. Writes docs/scaling.md from what was measured; parts that were not
measured this time keep their last figures (target/bench/scaling.json)."""
import datetime
import json
import os

import native

TOO_BIG_FOR_THEIRS = 1 << 30  # bytes of a table: TensorFlow's side is there to compare with, not to fill the machine


class Part:
    """A table of the page: `cells` are (label of the line, label of the column, row, ps, workers)."""

    def __init__(self, title, text, unit, cells, corner):
        self.title, self.text, self.unit, self.cells, self.corner = title, text, unit, cells, corner


def size(n):
    for unit, amount in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= amount:
            return "%g %s" % (n / amount, unit)
    return "%d B" % n


def parts():
    tables = [64 << 20, 256 << 20, 1 << 30, 4 << 30]
    return {
        "workers": Part("Workers and parameter servers", "`mnist_async`, steps/s of all workers together. The machine has as many cores as its heading says: beyond "
                        "them tasks share processors, and what is measured is what their sharing costs.", "steps/s",
                        [("%d worker%s" % (w, "s"[:w > 1]), "%d ps" % p, "mnist_async", p, w) for w in (1, 2, 4, 8) for p in (1, 2, 4)], "steps/s"),
        "variables": Part("Number of variables", "`null_step` with N variables of 4 bytes on one ps: each travels to the worker and, changed, back.", "us/step",
                          [(str(n), "µs a step", "null_step:%d" % n, 1, 1) for n in (1, 10, 100, 1000)], "variables"),
        "size": Part("Size of a variable", "One variable travels to the worker and, changed, back.", "us/step",
                     [(size(n), "µs a step", "one_variable:%d" % n, 1, 1) for n in (4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)], "size"),
        "table": Part("Size of a table", "`sparse_rows`: 40,960 rows of 128 bytes of a table on two ps, gathered and updated by Adagrad (whose slot is as large again). "
                      "Larger tables have fewer repeated rows and miss the caches more often; nothing else may grow.", "us/step",
                      [(size(n), "µs a step", "sparse_rows:%d" % (n // 128), 2, 1) for n in tables], "table"),
    }


def run(bench, chosen):
    known = parts()
    names = list(known) if chosen == "all" else [chosen]
    if names[0] not in known:
        raise native.Failed("no such part: %s (there are: %s)" % (chosen, ", ".join(known)))
    path = os.path.join(bench.options.work, "scaling.json")
    kept = json.load(open(path)) if os.path.exists(path) else {}
    for name in names:
        kept[name] = {"machine": bench.machine, "date": datetime.date.today().isoformat(), "cells": measure_part(bench, known[name])}
        with open(path, "w") as f:
            json.dump(kept, f)
    with open(os.path.join(native.HERE, "..", "..", "docs", "scaling.md"), "w") as f:
        f.write(page(known, kept))


def measure_part(bench, part):
    cells = []
    for line, column, row, ps, workers in part.cells:
        figures = {}
        for side in native.SIDES:
            figures[side] = None
            if fits(row, side):
                rate = measure(bench, side, row, ps, workers)
                figures[side] = 1e6 * workers / rate if part.unit == "us/step" else rate
        print("%-12s %-8s %s" % (line, column, "  ".join("%s %s" % (side, figure(v)) for side, v in figures.items())), flush=True)
        cells.append([line, column, figures])
    return cells


def measure(bench, side, row, ps, workers):
    """Steps a second: the median of three rounds."""
    cluster = native.Cluster(bench, side, row, ps, workers)
    try:
        cluster.round(bench.seconds / 4)
        rate = bench.median([cluster.quiet_round(bench.seconds / 3)[0] for _ in range(3)])
        if cluster.worst_disturbance >= 0.1:
            print("  others took %.0f %% of the machine meanwhile" % (100 * cluster.worst_disturbance))
        return rate
    finally:
        cluster.stop_all()


def fits(row, side):
    name, _, n = row.partition(":")
    if name != "sparse_rows":
        return True
    table = int(n) * 128
    if side == "theirs" and table > TOO_BIG_FOR_THEIRS:
        return False
    free = next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("MemAvailable:")) << 10
    # The table, its slot, and one part of either while it is made.
    return 2.6 * table + (1 << 30) < free


def figure(value):
    if value is None:
        return "–"
    return "{:,.0f}".format(value) if value >= 100 else "%.3g" % value


def page(known, kept):
    out = ["# Scaling", "", "How a step's cost grows, ours / TensorFlow 2.21's (and by how much ours is better), each side in worker processes of its own as in",
           "`cargo xtask bench`. Written by `cargo xtask bench --scaling`; `–` was not measured.", ""]
    for name, part in known.items():
        if name not in kept:
            continue
        m, cells = kept[name]["machine"], kept[name]["cells"]
        columns = list(dict.fromkeys(c[1] for c in cells))
        lines = list(dict.fromkeys(c[0] for c in cells))
        found = {(c[0], c[1]): c[2] for c in cells}
        out += ["## " + part.title, "", part.text, ""]
        out += ["| %s | %s |" % (part.corner, " | ".join(columns)), "|---" * (len(columns) + 1) + "|"]
        out += ["| %s | %s |" % (line, " | ".join(cell(found[line, c], part.unit) for c in columns)) for line in lines]
        out += ["", "%s, %d cores (%s), commit %s." % (kept[name]["date"], m["cores"], m["cpu"], m["commit"]), ""]
    return "\n".join(out)


def cell(figures, unit):
    ours, theirs = figures["ours"], figures["theirs"]
    text = "%s / %s" % (figure(ours), figure(theirs))
    if ours and theirs:
        text += " (%.1f×)" % (theirs / ours if unit == "us/step" else ours / theirs)
    return text
