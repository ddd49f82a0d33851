"""Sandblaster's L-BFGS on a cluster beside SciPy's L-BFGS-B on the same convex problems: the objective after every iteration, the
number of evaluations, and the minimum.

  python sandblaster.py --trial target/debug/downpour-trial --work target/sandblaster

Run by a python that has the package `scipy` (`cargo xtask sandblaster` makes one).
"""
import argparse
import json
import os
import subprocess
import sys

import numpy as np
from scipy.optimize import minimize

# Both add the same numbers in another order; what that changes grows from iteration to iteration.
VALUES = 1e-9
POINT = 1e-5


def objective(problem):
    rows = np.array(problem["rows"]).reshape(-1, problem["width"])
    wanted, l2 = np.array(problem["wanted"]), problem["l2"]

    def f(x):
        z = rows @ x
        if problem["logistic"]:
            value = np.sum(np.logaddexp(0, z) - z * wanted)
            slope = 1 / (1 + np.exp(-z)) - wanted
        else:
            value = 0.5 * np.sum((z - wanted) ** 2)
            slope = z - wanted
        return value + 0.5 * l2 * x @ x, rows.T @ slope + l2 * x

    return f


def by_scipy(problem):
    f = objective(problem)
    start = np.zeros(problem["width"])
    values = [f(start)[0]]
    found = minimize(f, start, jac=True, method="L-BFGS-B", callback=lambda x: values.append(f(x)[0]), options={
        "maxcor": problem["history"], "maxiter": problem["iterations"], "gtol": problem["gradient"], "ftol": 0.0})
    return values, found.nfev, found.x


def problems():
    draw = np.random.default_rng(2012)
    n, width = 300, 20
    rows = draw.normal(size=(n, width)) * np.logspace(0, 0.4, width)
    truth = draw.normal(size=width)
    noisy = rows @ truth + draw.normal(size=n)
    base = dict(width=width, rows=rows.ravel().tolist(), portions=11, l2=2.0, history=5, iterations=60, gradient=1e-5)
    yield "quadratic", dict(base, logistic=False, wanted=noisy.tolist())
    yield "logistic", dict(base, logistic=True, wanted=(noisy > 0).astype(float).tolist())
    yield "logistic, long history", dict(base, logistic=True, history=15, wanted=(noisy > 0).astype(float).tolist())


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--trial", required=True)
    args.add_argument("--work", required=True)
    args = args.parse_args()
    os.makedirs(args.work, exist_ok=True)
    passed = failed = 0

    def check(what, holds):
        nonlocal passed, failed
        passed, failed = passed + bool(holds), failed + (not holds)
        if not holds:
            print(f"WRONG {what}")

    for name, problem in problems():
        path = os.path.join(args.work, "problem.json")
        with open(path, "w") as file:
            json.dump(problem, file)
        ours = json.loads(subprocess.run([args.trial, "sandblaster", path], check=True, capture_output=True, timeout=300).stdout)
        values, evaluations, point = by_scipy(problem)
        mine = ours["values"]
        common = min(len(values), len(mine))
        apart = [abs(a - b) / max(1, abs(b)) for a, b in zip(mine, values)]
        far = float(np.max(np.abs(np.array(ours["point"]) - point)))
        print(f"{name}: {len(mine) - 1} iterations ({len(values) - 1}), {ours['evaluations']} evaluations ({evaluations}); objective apart by "
              f"{max(apart):.1e} at most, the minimum by {far:.1e}")
        check(f"{name}: iterations {len(mine)} and {len(values)}", abs(len(mine) - len(values)) <= 2)
        check(f"{name}: too few iterations in common: {common}", common > 8)
        check(f"{name}: objective apart by {max(apart)}: {mine} {values}", max(apart) <= VALUES)
        check(f"{name}: minimum apart by {far}", far <= POINT)
    print(f"sandblaster: {passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
