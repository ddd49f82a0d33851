"""WAV files, spectrograms, cepstral coefficients."""
import struct

import numpy as np

from registry import any_op, case, inp, rnd, tf


def wav(count=4, channels=2, rate=8000, bits=16, kind=1, extra=b"", riff=b"RIFF", wave=b"WAVE", chunk=16, data=b"data"):
    body = struct.pack("<%dh" % (count * channels), *[(i * 7919) % 60000 - 30000 for i in range(count * channels)])
    head = b"fmt " + struct.pack("<IHHIIHH", chunk, kind, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits)
    head += b"\0\0" if chunk == 18 else b""
    all_of_it = wave + head + extra + data + struct.pack("<I", len(body)) + body
    return riff + struct.pack("<I", len(all_of_it)) + all_of_it


def decode(file, **attrs):
    return list(any_op("DecodeWav", contents=inp(file, tf.string, ()), **attrs))


for channels in (-1, 1, 2, 3):
    for samples in (-1, 2, 6):
        case("DecodeWav/%d_%d" % (channels, samples), lambda c=channels, s=samples: decode(wav(), desired_channels=c, desired_samples=s))
for name, file in dict(mono=wav(channels=1), empty=wav(0), long=wav(chunk=18), chunk=wav(extra=b"LIST" + struct.pack("<I", 4) + b"abcd"), bits=wav(bits=8), kind=wav(kind=3),
                       riff=wav(riff=b"RIFX"), wave=wav(wave=b"WAVX"), cut=wav()[:30], cut_data=wav()[:50], nothing=b"", no_data=wav(data=b"dbta"), size=wav(chunk=15),
                       channels=wav().replace(struct.pack("<HHI", 1, 2, 8000), struct.pack("<HHI", 1, 0, 8000)),
                       second=wav().replace(struct.pack("<I", 32000), struct.pack("<I", 32001)), frame=wav().replace(struct.pack("<HH", 4, 16), struct.pack("<HH", 5, 16))).items():
    case("DecodeWav/" + name, lambda f=file: decode(f))
case("EncodeWav/no_channels", lambda: any_op("EncodeWav", audio=inp(rnd((2, 0))), sample_rate=inp(8000)), text="TensorFlow's depends on the memory of an empty tensor")
for shape in [(5, 1), (3, 2), (0, 2), (4,)]:
    case("EncodeWav/%s" % (shape,), lambda s=shape: any_op("EncodeWav", audio=inp(rnd(s, lo=-1.5, hi=1.5)), sample_rate=inp(8000)))
case("EncodeWav/rate", lambda: any_op("EncodeWav", audio=inp(rnd((3, 1))), sample_rate=inp(0)))
case("EncodeWav/rates", lambda: any_op("EncodeWav", audio=inp(rnd((3, 1))), sample_rate=inp([8000])))
for shape, window, stride in [((40, 1), 8, 4), ((40, 2), 10, 3), ((5, 2), 10, 3), ((64, 1), 64, 1), ((0, 1), 4, 2), ((7,), 4, 2)]:
    for squared in (False, True):
        case("AudioSpectrogram/%s_%d_%d_%s" % (shape, window, stride, squared), lambda s=shape, w=window, k=stride, q=squared: any_op(
            "AudioSpectrogram", input=inp(rnd(s, lo=-1, hi=1)), window_size=w, stride=k, magnitude_squared=q), rtol=1e-4, atol=1e-5)
for shape, rate, attrs in [((1, 2, 65), 8000, {}), ((2, 1, 129), 16000, {}), ((1, 2, 65), 8000, dict(dct_coefficient_count=40)), ((1, 2, 65), 8000, dict(filterbank_channel_count=20)),
                           ((1, 2, 65), 8000, dict(upper_frequency_limit=2000.0, lower_frequency_limit=100.0)), ((1, 0, 65), 8000, {}), ((1, 2, 65), -1, {}), ((1, 2, 65), [8000], {}),
                           ((1, 2, 65), 8000, dict(upper_frequency_limit=10.0)), ((1, 2, 65), 8000, dict(dct_coefficient_count=50)), ((2, 65), 8000, {}), ((1, 1, 1), 8000, {})]:
    case("Mfcc/%s_%s_%s" % (shape, rate, "_".join("%s=%s" % p for p in attrs.items())), lambda s=shape, r=rate, a=attrs: any_op(
        "Mfcc", spectrogram=inp(rnd(s, lo=0, hi=4)), sample_rate=inp(r), **a), rtol=1e-3, atol=1e-4)
