"""When two results are the same: values within tolerance, dtype, shape, error class and text."""
import re

import numpy as np

from registry import Error

# rtol, atol by dtype when a case states none. Elementwise functions differ in the last bits
# between two correct libraries; sums differ in their order.
TOLERANCE = {
    "float16": (4e-3, 1e-3),
    "bfloat16": (2e-2, 1e-2),
    "float32": (2e-5, 1e-6),
    "float64": (1e-9, 1e-12),
    "complex64": (2e-5, 2e-6),
    "complex128": (1e-9, 1e-12),
}


def error_of(exception):
    """The runtime's part of a client exception, without python's decoration."""
    # Session.run re-raises with an interpolated text; the context keeps what the runtime said.
    inner = exception
    while isinstance(inner.__context__, type(exception)):
        inner = inner.__context__
    message = getattr(inner, "message", None)
    return Error(type(exception).__name__, normalised(str(inner) if message is None else message))


def normalised(message):
    """Leading text of an error: no task prefix, no node suffix, no diagnostics of the transport."""
    message = re.sub(r"^From /job:[^\n]*:\n", "", message)
    for tail in ("\n\t [[", "\nAdditional GRPC error information", "\nRegistered kernels:",
                 "\nRecent warning and error logs:", "\n\nOriginal stack trace"):
        message = message.split(tail)[0]
    message = re.sub(r"with these attrs: \[(.*)\]", lambda m: "with these attrs: [%s]" % sorted_attrs(m.group(1)), message)
    # The host's name, and process-wide counters in generated names.
    message = re.sub(r"in binary running on \S+\.", "in binary running on HOST.", message)
    message = re.sub(r"(TensorArray |Stack\[|_stacks|_tensor_arrays|_tensor_array_grads)(\w+?)_\d+\b", r"\1\2_N", message)
    message = re.sub(r"__per_step_\d+", "__per_step_N", message)
    message = re.sub(r"(\w+Dataset(V\d)?):\d+ transformation", r"\1:N transformation", message)
    return message.strip()


def sorted_attrs(text):
    """Attrs in one order (they come from a hash map), without the internal ones that placement adds."""
    parts, depth, quoted = [""], 0, False
    for c in text:
        quoted ^= c == '"'
        depth += 0 if quoted else (c == "[") - (c == "]")
        if c == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += c
    return ", ".join(sorted(p.strip() for p in parts if not p.strip().startswith("_")))


def leaves(value, path=""):
    """Flattens nested results to (path, leaf) pairs."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from leaves(value[key], "%s[%r]" % (path, key))
    elif isinstance(value, (list, tuple)):
        yield path + ".len", len(value)
        for i, item in enumerate(value):
            yield from leaves(item, "%s[%d]" % (path, i))
    else:
        yield path, value


def differences(case, want, got):
    """What differs, as text; empty when the results agree."""
    if isinstance(want, Error) and isinstance(got, list):
        # TensorFlow refuses a graph as a whole when one node has no kernel; refusing only the
        # steps that run that node is as good, so the first error decides.
        got = next((leaf for _, leaf in leaves(got) if isinstance(leaf, Error)), got)
    a, b = list(leaves(want)), list(leaves(got))
    out = []
    if [p for p, _ in a] != [p for p, _ in b]:
        # Structure differs: usually one side failed where the other answered.
        return ["want %s\n     got  %s" % (show(want), show(got))]
    for (path, x), (_, y) in zip(a, b):
        text = leaf_difference(case, x, y)
        if text:
            out.append("%s%s" % (path + ": " if path else "", text))
    return out


def leaf_difference(case, want, got):
    if isinstance(want, Error) or isinstance(got, Error):
        if not (isinstance(want, Error) and isinstance(got, Error)) or want.kind != got.kind:
            return "want %s\n     got  %s" % (show(want), show(got))
        if case.text is True and want.message != got.message:
            return "error text of %s\n     want %r\n     got  %r" % (want.kind, want.message, got.message)
        return None
    if want is None or got is None or isinstance(want, (str, bytes, bool, int)):
        return None if type(want) is type(got) and want == got else "want %s got %s" % (show(want), show(got))
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype != got.dtype:
        return "dtype: want %s got %s" % (want.dtype, got.dtype)
    if want.shape != got.shape:
        return "shape: want %s got %s" % (want.shape, got.shape)
    same = equal(case, want, got)
    if same.all():
        return None
    want, got = np.atleast_1d(want), np.atleast_1d(got)
    bad = np.argwhere(~same)
    first = tuple(bad[0])
    return "%d of %d elements differ, first at %s: want %r got %r" % (
        len(bad), want.size, list(map(int, first)), want[first], got[first])


def equal(case, want, got):
    name = want.dtype.name
    if name not in TOLERANCE:
        return np.atleast_1d(np.asarray(want == got))if want.shape == () else np.asarray(want == got)
    rtol, atol = TOLERANCE[name]
    rtol = rtol if case.rtol is None else case.rtol
    atol = atol if case.atol is None else case.atol
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    want, got = np.atleast_1d(want).astype(wide), np.atleast_1d(got).astype(wide)
    with np.errstate(all="ignore"):
        if wide is np.complex128:
            return parts(want.real, got.real, np.abs(want), rtol, atol) & parts(
                want.imag, got.imag, np.abs(want), rtol, atol)
        return parts(want, got, np.abs(want), rtol, atol)


def parts(want, got, scale, rtol, atol):
    scale = np.where(np.isfinite(scale), scale, np.abs(want))
    close = np.abs(want - got) <= atol + rtol * scale
    return (want == got) | (np.isnan(want) & np.isnan(got)) | (close & np.isfinite(want) & np.isfinite(got))


def show(value):
    text = repr(value) if isinstance(value, Error) else " ".join(str(value).split())
    return text if len(text) < 300 else text[:300] + " …"
