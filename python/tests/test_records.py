"""TFRecord files and Examples: known bytes, both ways, and damage that is noticed."""
import io
import struct
import unittest

from downpour_spark import records

FEATURES = {"a": ("int64", [1, -5, 2**40]), "b": ("float", [1.5, 2.0]), "c": ("bytes", [b"x", b"\0y"]), "d": ("int64", []),
            "e": ("bytes", [])}


def file_of(*items):
    out = io.BytesIO()
    records.write_records(out, items)
    return out.getvalue()


class Records(unittest.TestCase):
    def test_the_checksum_is_crc32c(self):
        self.assertEqual(records.crc32c(b"123456789"), 0xE3069283)
        self.assertEqual(records.crc32c(b"\0" * 32), 0x8A9136AA)

    def test_records_come_back(self):
        items = [b"", b"one", bytes(range(256)) * 5]
        self.assertEqual(list(records.read_records(file_of(*items))), items)

    def test_any_damage_is_noticed(self):
        data = file_of(b"a record", b"another")
        for at in range(len(data)):
            broken = bytearray(data)
            broken[at] ^= 16
            with self.assertRaises(records.RecordError):
                list(records.read_records(bytes(broken)))
        for size in range(1, len(data)):
            if size != len(file_of(b"a record")):
                with self.assertRaises(records.RecordError):
                    list(records.read_records(data[:size]))

    def test_a_length_from_nowhere_allocates_nothing(self):
        head = struct.pack("<Q", 1 << 60)
        with self.assertRaisesRegex(records.RecordError, "ends within the record"):
            list(records.read_records(head + struct.pack("<I", records.masked(head)) + b"few"))


class Examples(unittest.TestCase):
    def test_features_come_back(self):
        self.assertEqual(records.decode_example(records.encode_example(FEATURES)), FEATURES)

    def test_bytes_are_those_of_tensorflow(self):
        try:
            import tensorflow as tf
        except ImportError:
            self.skipTest("TensorFlow is not there")
        ours = records.encode_example(FEATURES)
        theirs = tf.train.Example.FromString(ours)
        self.assertEqual(list(theirs.features.feature["a"].int64_list.value), [1, -5, 2**40])
        self.assertEqual(theirs.SerializeToString(deterministic=True), ours)

    def test_rubbish_is_an_error(self):
        good = records.encode_example(FEATURES)
        for size in range(1, len(good)):
            try:
                records.decode_example(good[:size])
            except (records.RecordError, UnicodeDecodeError):
                pass
        for bad in (b"\x0a\xff", b"\x0b", b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"):
            with self.assertRaises(records.RecordError):
                records.decode_example(bad)


if __name__ == "__main__":
    unittest.main()
