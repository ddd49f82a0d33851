"""Packs the wheel of downpour_spark around a static `downpour`: `wheel.py BINARY OUT`. The same input gives the same bytes."""
import base64
import hashlib
import os
import re
import stat
import sys
import zipfile

#: The program is static: it needs nothing of the system but a Linux kernel.
TAG = "py3-none-manylinux_2_17_x86_64"
#: The first that a zip file can have.
TIME = (1980, 1, 1, 0, 0, 0)


def main(binary: str, out: str) -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    project = open(os.path.join(here, "pyproject.toml"), encoding="utf-8").read()
    version = re.search(r'^version = "(.*)"', project, re.M).group(1)
    summary = re.search(r'^description = "(.*)"', project, re.M).group(1)
    requires = re.search(r"^dependencies = \[(.*)\]", project, re.M).group(1)
    requires = [word.strip().strip('"') for word in requires.split(",")]
    info = f"downpour_spark-{version}.dist-info"
    package = os.path.join(here, "downpour_spark")
    files = {f"downpour_spark/{name}": open(os.path.join(package, name), "rb").read()
             for name in sorted(os.listdir(package)) if name.endswith(".py")}
    files["downpour_spark/bin/downpour"] = open(binary, "rb").read()
    metadata = [f"Metadata-Version: 2.1\nName: downpour-spark\nVersion: {version}\nSummary: {summary}",
                "License: Apache-2.0\nRequires-Python: >=3.10", *(f"Requires-Dist: {r}" for r in requires),
                "Description-Content-Type: text/markdown\n",
                open(os.path.join(here, "README.md"), encoding="utf-8").read()]
    files[f"{info}/METADATA"] = "\n".join(metadata).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: downpour\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode()
    files[f"{info}/LICENSE"] = open(os.path.join(here, "..", "LICENSE"), "rb").read()
    record = "".join(f"{name},sha256={_hash(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = os.path.join(out, f"downpour_spark-{version}-{TAG}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, TIME)
            mode = 0o755 if name.endswith("bin/downpour") else 0o644
            entry.external_attr, entry.compress_type = (stat.S_IFREG | mode) << 16, zipfile.ZIP_DEFLATED
            entry.create_system = 3
            wheel.writestr(entry, data)
    print(path)


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
