"""Diagonals and bands of matrices."""
from registry import ALL, INTS, NUMBERS, allowed, case, inp, raw, rnd, short, tf

for t in allowed("Diag"):
    s = short(t)
    case("Diag/" + s, lambda t=t: [raw.Diag(diagonal=inp(rnd(d, t), t)) for d in [(3,), (2, 2), (0,)]])
    case("DiagPart/" + s, lambda t=t: [raw.DiagPart(input=inp(rnd(d, t), t)) for d in [(3, 3), (2, 3, 2, 3)]])
for t in ALL:
    s = short(t)
    case("MatrixDiag/" + s, lambda t=t: [raw.MatrixDiag(diagonal=inp(rnd(d, t), t)) for d in [(3,), (2, 3), (2, 0)]])
    case("MatrixDiagPart/" + s, lambda t=t: [raw.MatrixDiagPart(input=inp(rnd(d, t), t)) for d in [(3, 3), (2, 2, 4)]])
    case("MatrixSetDiag/" + s, lambda t=t: raw.MatrixSetDiag(
        input=inp(rnd((2, 3, 4), t), t), diagonal=inp(rnd((2, 3), t), t)))
    case("MatrixBandPart/" + s, lambda t=t: raw.MatrixBandPart(
        input=inp(rnd((2, 4, 5), t), t), num_lower=inp(1), num_upper=inp(2)))
    case("MatrixDiagV3/" + s, lambda t=t: raw.MatrixDiagV3(
        diagonal=inp(rnd((2, 3), t), t), k=inp([-1, 0]), num_rows=inp(4), num_cols=inp(-1), padding_value=inp(rnd((), t), t)))
    case("MatrixDiagPartV3/" + s, lambda t=t: raw.MatrixDiagPartV3(
        input=inp(rnd((2, 3, 4), t), t), k=inp([-1, 1]), padding_value=inp(rnd((), t), t)))
    case("MatrixSetDiagV3/" + s, lambda t=t: raw.MatrixSetDiagV3(
        input=inp(rnd((3, 4), t), t), diagonal=inp(rnd((2, 3), t), t), k=inp([-1, 0])))

case("Diag/scalar", lambda: raw.Diag(diagonal=inp(1.0)))
case("DiagPart/odd", lambda: raw.DiagPart(input=inp(rnd((2, 2, 2)))))
case("DiagPart/mismatch", lambda: raw.DiagPart(input=inp(rnd((2, 3)))))
case("MatrixDiag/scalar", lambda: raw.MatrixDiag(diagonal=inp(1.0)))
case("MatrixDiagPart/vector", lambda: raw.MatrixDiagPart(input=inp(rnd((3,)))))
case("MatrixSetDiag/bad", lambda: raw.MatrixSetDiag(input=inp(rnd((3, 3))), diagonal=inp(rnd((2,)))))
case("MatrixSetDiag/vector", lambda: raw.MatrixSetDiag(input=inp(rnd((3,))), diagonal=inp(rnd((3,)))))
for it in INTS:
    for lo, hi in [(0, 0), (-1, 0), (0, -1), (-1, -1), (2, 1), (3, 3), (4, 0), (0, 6), (-2, 0)]:
        case("MatrixBandPart/%s_%d_%d" % (short(it), lo, hi), lambda lo=lo, hi=hi, it=it: raw.MatrixBandPart(
            input=inp(rnd((3, 5))), num_lower=inp(lo, it), num_upper=inp(hi, it)))
case("MatrixBandPart/vector", lambda: raw.MatrixBandPart(input=inp(rnd((3,))), num_lower=inp(0), num_upper=inp(0)))
case("MatrixBandPart/bad_count", lambda: raw.MatrixBandPart(input=inp(rnd((3, 3))), num_lower=inp([0]), num_upper=inp(0)))
case("MatrixBandPart/empty", lambda: raw.MatrixBandPart(input=inp(rnd((0, 3, 3))), num_lower=inp(1), num_upper=inp(0)))

for align in ("LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT"):
    case("MatrixDiagV3/align_" + align, lambda align=align: raw.MatrixDiagV3(
        diagonal=inp(rnd((3, 3))), k=inp([-1, 1]), num_rows=inp(-1), num_cols=inp(-1), padding_value=inp(9.0), align=align))
    case("MatrixDiagPartV3/align_" + align, lambda align=align: raw.MatrixDiagPartV3(
        input=inp(rnd((3, 5))), k=inp([-2, 3]), padding_value=inp(9.0), align=align))
    case("MatrixSetDiagV3/align_" + align, lambda align=align: raw.MatrixSetDiagV3(
        input=inp(rnd((2, 3, 5))), diagonal=inp(rnd((2, 4, 3))), k=inp([-1, 2]), align=align))
for k, rows, cols, shape in [([0], -1, -1, (3,)), ([1], -1, -1, (3,)), ([-2], -1, -1, (2, 3)), ([1], 3, 5, (3,)), ([2, 1], -1, -1, (3,)),
                             ([0], 2, 2, (3,)), ([0, 1, 2], -1, -1, (3,)), ([-1, 0], -1, -1, (3,)), ([7], -1, -1, (2,))]:
    case("MatrixDiagV3/%s_%d_%d_%s" % (k, rows, cols, shape), lambda k=k, rows=rows, cols=cols, shape=shape: raw.MatrixDiagV3(
        diagonal=inp(rnd(shape)), k=inp(k), num_rows=inp(rows), num_cols=inp(cols), padding_value=inp(0.5)))
    case("MatrixDiagV2/%s_%d_%d_%s" % (k, rows, cols, shape), lambda k=k, rows=rows, cols=cols, shape=shape: raw.MatrixDiagV2(
        diagonal=inp(rnd(shape)), k=inp(k), num_rows=inp(rows), num_cols=inp(cols), padding_value=inp(0.5)))
for k in [0, 2, -2, [0, 1], [-3, -1], 5, [1, 0]]:
    case("MatrixDiagPartV2/%s" % (k,), lambda k=k: raw.MatrixDiagPartV2(
        input=inp(rnd((2, 4, 4))), k=inp(k), padding_value=inp(0.25)))
    case("MatrixDiagPartV3/%s" % (k,), lambda k=k: raw.MatrixDiagPartV3(
        input=inp(rnd((2, 4, 4))), k=inp(k), padding_value=inp(0.25)))
for k, d in [(0, (3,)), (1, (3,)), (-1, (2,)), ([0, 1], (2, 3)), (0, (2,)), (9, (3,))]:
    case("MatrixSetDiagV2/%s_%s" % (k, d), lambda k=k, d=d: raw.MatrixSetDiagV2(
        input=inp(rnd((3, 4))), diagonal=inp(rnd(d)), k=inp(k)))
    case("MatrixSetDiagV3/%s_%s" % (k, d), lambda k=k, d=d: raw.MatrixSetDiagV3(
        input=inp(rnd((3, 4))), diagonal=inp(rnd(d)), k=inp(k)))
for t in allowed("ExtractVolumePatches"):
    case("ExtractVolumePatches/" + short(t), lambda t=t: [raw.ExtractVolumePatches(
        input=inp(rnd((2, 5, 4, 6, 2), t), t), ksizes=[1, 2, 3, 2, 1], strides=[1, 2, 1, 3, 1], padding=p) for p in ("SAME", "VALID")])
for what, more in dict(rank=dict(shape=(2, 3, 3, 1)), batch=dict(ksizes=[2, 1, 1, 1, 1]), zero=dict(strides=[1, 0, 1, 1, 1]), large=dict(ksizes=[1, 9, 1, 1, 1])).items():
    case("ExtractVolumePatches/" + what, lambda more=more: raw.ExtractVolumePatches(
        input=inp(rnd(more.get("shape", (1, 3, 3, 3, 1)))), ksizes=more.get("ksizes", [1, 1, 1, 1, 1]), strides=more.get("strides", [1, 1, 1, 1, 1]), padding="VALID"))
