"""Histograms of equal bins."""
import numpy as np

from registry import INTS, allowed, case, inp, raw, rnd, short, tf

for t in allowed("HistogramFixedWidth"):
    for dtype in INTS:
        case("HistogramFixedWidth/%s_%s" % (short(t), short(dtype)), lambda t=t, dtype=dtype: raw.HistogramFixedWidth(
            values=inp(rnd((5, 30), t, -4, 20), t), value_range=inp([0, 15], t), nbins=inp(7), dtype=dtype))


def histogram(values=(1.0, 2.0), span=(0.0, 5.0), bins=5):
    return raw.HistogramFixedWidth(values=inp(values, tf.float32), value_range=inp(span, tf.float32), nbins=inp(bins))


for what, more in dict(edges=dict(values=(-1, 0, 1, 2, 4.999, 5, 6, np.inf, -np.inf)), empty=dict(values=()), nan=dict(values=(1, np.nan)), span=dict(span=(1, 2, 3)),
                       span_rank=dict(span=1), order=dict(span=(5, 0)), equal=dict(span=(1, 1)), bins=dict(bins=0), negative=dict(bins=-3),
                       bins_rank=dict(bins=[5]), scalar=dict(values=2)).items():
    case("HistogramFixedWidth/" + what, lambda more=more: histogram(**more))
