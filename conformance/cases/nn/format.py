"""From one data format to another."""
from registry import INTS, case, inp, raw, rnd, short

FORMATS = [("NHWC", "NCHW"), ("NCHW", "NHWC"), ("NHWC", "HWNC"), ("NDHWC", "NCDHW"), ("NDHWC", "DHWNC"), ("NHWC", "NHWC"), ("1234", "4321"),
           ("12345", "54321"), ("1234", "5321"), ("1234", "3321"), ("NHW", "NWH"), ("NHWC", "NCDHW"), ("NHWC", "N")]
for t in INTS:
    for src, dst in FORMATS:
        case("DataFormatDimMap/%s_%s_%s" % (short(t), src, dst), lambda t=t, src=src, dst=dst: raw.DataFormatDimMap(
            x=inp([[0, 1], [2, 3], [-1, -4]], t), src_format=src, dst_format=dst))
        for shape in [(4,), (5,), (2,), (3,), (4, 2), (5, 2), (2, 2), (3, 2), (4, 3), (7,), (7, 2), (), (2, 2, 2)]:
            case("DataFormatVecPermute/%s_%s_%s_%s" % (short(t), src, dst, shape), lambda t=t, src=src, dst=dst, shape=shape:
                 raw.DataFormatVecPermute(x=inp(rnd(shape, t, 0, 100), t), src_format=src, dst_format=dst))
