"""Fourier transforms."""
from registry import case, inp, raw, rnd, short, tf

COMPLEX = {tf.complex64: tf.float32, tf.complex128: tf.float64}
SHAPES = {1: [(1,), (8,), (3, 5), (2, 2, 12), (37,), (2, 100), (0,), (0, 4), (2, 0)],
          2: [(2, 3), (4, 4), (3, 5, 7), (0, 2), (2, 6, 1)],
          3: [(2, 3, 4), (2, 4, 2, 5), (1, 1, 1), (2, 0, 3)]}


def loose(t):
    return dict(rtol=1e-4, atol=1e-4) if t in (tf.complex64, tf.float32) else dict(rtol=1e-9, atol=1e-10)


for rank, shapes in SHAPES.items():
    name = "FFT" + ("%dD" % rank if rank > 1 else "")
    for c, r in COMPLEX.items():
        for shape in shapes:
            for op in (name, "I" + name):
                case("%s/%s_%s" % (op, short(c), shape), lambda op=op, c=c, shape=shape: getattr(raw, op)(
                    input=inp(rnd(shape, c), c)), **loose(c))
            case("R%s/%s_%s" % (name, short(c), shape), lambda name=name, rank=rank, c=c, r=r, shape=shape: getattr(raw, "R" + name)(
                input=inp(rnd(shape, r), r), fft_length=inp(list(shape[-rank:])), Tcomplex=c), **loose(c))
            for odd in (0, 1):
                if shape[-1] == 1 and not odd:
                    continue  # TensorFlow aborts on a transform of no elements.
                def build(name=name, rank=rank, c=c, r=r, shape=shape, odd=odd):
                    n = list(shape[-rank:])
                    n[-1] = max(2 * (n[-1] - 1) + odd, 0)
                    return getattr(raw, "IR" + name)(input=inp(rnd(shape, c), c), fft_length=inp(n), Treal=r)
                # The imaginary part of what must be real for a real result is left out by both.
                case("IR%s/%s_%s_%d" % (name, short(c), shape, odd), build, **loose(c))
    for shape in [(), (3,), (2, 2)]:
        if len(shape) < rank:
            case("%s/rank_%s" % (name, shape), lambda name=name, shape=shape: getattr(raw, name)(input=inp(rnd(shape, tf.complex64))))
    for length in [[2] * (rank + 1), [-1] * rank, [9] * rank, [2] * rank, [3] + [2] * (rank - 1)]:
        for op, t in (("R", tf.float32), ("IR", tf.complex64)):
            case("%s%s/length_%s" % (op, name, length), lambda op=op, name=name, length=length, t=t: getattr(raw, op + name)(
                input=inp(rnd((2, 4, 4, 4), t), t), fft_length=inp(length)), **loose(t))
case("RFFT/types", lambda: raw.RFFT(input=inp(rnd((4,))), fft_length=inp([4]), Tcomplex=tf.complex128))
case("IRFFT/types", lambda: raw.IRFFT(input=inp(rnd((4,), tf.complex64)), fft_length=inp([4]), Treal=tf.float64))
