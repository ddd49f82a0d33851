"""How programs on a real Spark end: with the right exit code, and without leaving a process; `python3 -m tests.spark_ends MASTER`.

Each program is one `spark-submit` of this file with `--be NAME`.
"""
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
LONG = 240.0


def be(name: str) -> None:
    """One of the programs."""
    from pyspark import SparkContext

    from downpour_spark import TFCluster
    from tests import spark_functions as functions

    sc = SparkContext(appName=name)
    function = {"fails": functions.fails, "forgets": functions.hangs,
                "killed": functions.hangs}[name]
    cluster = TFCluster.run(sc, function, {}, 3, 1, reservation_timeout=LONG)
    print("the cluster runs", flush=True)
    if name != "forgets":
        cluster.shutdown(timeout=LONG)
    # One that forgets to end its cluster just ends.


def check(master: str, name: str, code: int) -> None:
    """Runs one; its exit code, and what it leaves."""
    from tests.on_spark import processes, wait

    before = set(processes())
    submit = [os.path.join(os.environ["SPARK_HOME"], "bin", "spark-submit"), "--master", master]
    for setting in os.environ.get("DOWNPOUR_TEST_CONF", "").split():
        submit += ["--conf", setting]
    begin = time.monotonic()
    process = subprocess.Popen([*submit, os.path.abspath(__file__), "--be", name], stdout=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        for line in process.stdout:
            if line.startswith("the cluster runs"):
                if name == "killed":
                    wait("its processes", lambda: len(set(processes()) - before) >= 6)
                    os.killpg(process.pid, signal.SIGKILL)
                break
        got = process.wait(LONG)
        assert got == code, f"{name} ended with {got}, not {code}"
        wait(f"{name} leaves nothing", lambda: not set(processes()) - before, 60)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    print(f"a program that {name} ended with {got} after {time.monotonic() - begin:.0f} s and left nothing", flush=True)


def main() -> None:
    if sys.argv[1] == "--be":
        be(sys.argv[2])
        return
    check(sys.argv[1], "fails", 1)
    check(sys.argv[1], "forgets", 0)
    check(sys.argv[1], "killed", -signal.SIGKILL)


if __name__ == "__main__":
    main()
