"""Writes what was measured into docs/performance.md, between its marks: the newest figure of each row of benches/results.jsonl,
and what a step asks of the system (target/bench/counts.json, from `--counts all`)."""
import json
import os
import re

import native
import profile_row

DOCS = os.path.join(native.HERE, "..", "..", "docs")
COUNTED = ("null_step", "mnist_async", "mnist_sync", "dense_pull_push", "sparse_rows")


def count(bench, row):
    """Counts one row, or all, and keeps what was counted."""
    path = os.path.join(bench.options.work, "counts.json")
    kept = json.load(open(path)) if os.path.exists(path) else {}
    for name in COUNTED if row == "all" else (row,):
        kept[name] = profile_row.counts(bench, name)
        profile_row.show(name, kept[name])
        with open(path, "w") as f:
            json.dump(kept, f)


def write(bench, targets):
    """Renews both tables of the page."""
    path = os.path.join(DOCS, "performance.md")
    text = open(path).read()
    text = between(text, "results", results(bench, targets))
    counts = os.path.join(bench.options.work, "counts.json")
    if os.path.exists(counts):
        text = between(text, "counts", counted(json.load(open(counts))))
    with open(path, "w") as f:
        f.write(text)


def between(text, mark, table):
    new, found = re.subn(r"(<!-- %s -->\n).*?(<!-- /%s -->)" % (mark, mark), lambda m: m[1] + table + m[2], text, flags=re.S)
    if found != 1:
        raise native.Failed("docs/performance.md has no place marked '%s'" % mark)
    return new


def results(bench, targets):
    """One line a row: the newest of each."""
    newest = {}
    for line in open(os.path.join(native.HERE, "..", "..", "benches", "results.jsonl")):
        r = json.loads(line)
        newest[r["row"]] = r
    out = ["| row | ours | TensorFlow | | ratio | first | goal | CPU ms a step, ours / theirs | difference of values | commit |", "|---|--:|--:|---|--:|--:|--:|--:|--:|---|"]
    for name in list(targets) + sorted(set(newest) - set(targets)):
        if name not in newest:
            continue
        r = newest[name]
        first, goal = ("%g×" % t for t in targets[name]) if name in targets else ("", "")
        cpu = r.get("cpu_ms")
        cpu = " / ".join("%.3g" % sum(cpu[side].values()) for side in native.SIDES) if cpu else ""
        same = "%.1g after %d steps" % (r["values"]["difference"], r["values"]["steps"]) if "values" in r else ""
        out.append("| `%s` | %s | %s | %s | **%.3g×** | %s | %s | %s | %s | %s |" % (
            name, figure(r["ours"]), figure(r["theirs"]), r["unit"], r["ratio"], first, goal, cpu, same, r["machine"]["commit"]))
    m = max(newest.values(), key=lambda r: r["time"])["machine"]
    return "\n".join(out) + "\n\n%d cores (%s), %g GiB, Linux %s; the newest run of each row in `benches/results.jsonl`.\n" % (
        m["cores"], m["cpu"], m["memory_gib"], m["kernel"])


def counted(kept):
    out = ["| row | | CPU µs | system calls | wake-ups | switches | packets | bytes | calls by name |", "|---|---|--:|--:|--:|--:|--:|--:|---|"]
    for row in COUNTED:
        for side, of in kept.get(row, {}).items():
            who = "ours" if side == "ours" else "TensorFlow"
            for role in ("ps", "worker"):
                if role not in of:
                    continue
                c = of[role]
                out.append("| `%s` | %s, %s | %s | %s | %s | %s | %s | %s | %s |" % (
                    row, who, role, figure(c["cpu_us"]), *(figure(c.get(n, 0)) for n in ("sys_enter", "sched_wakeup", "context-switches")),
                    figure(of["packets"]), figure(of["bytes"]), profile_row.calls(c, 0.5)))
    return "\n".join(out) + "\n"


def figure(value):
    return "{:,.0f}".format(value) if abs(value) >= 100 else "%.3g" % value
