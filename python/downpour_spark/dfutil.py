"""DataFrames to TFRecord files of `tf.train.Example`, and back. Neither TensorFlow nor a jar is needed."""
from __future__ import annotations

import os
import uuid
from typing import Any, Callable, Iterable, Iterator

from . import records

#: Spark's types and the kinds of features that hold them.
_KINDS = {**dict.fromkeys(("float", "double"), "float"), "binary": "bytes", "string": "bytes",
          **dict.fromkeys(("boolean", "tinyint", "smallint", "int", "bigint", "long"), "int64")}

#: DataFrames that `loadTFRecords` has made, and where from.
loadedDF: dict[Any, str] = {}


def isLoadedDF(df: Any) -> bool:
    """Whether `loadTFRecords` made this DataFrame."""
    return any(known is df for known in loadedDF)


def saveAsTFRecords(df: Any, output_dir: str) -> None:
    """Writes one file for each partition into a new folder: of a local file system that all executors share, or by
    URL of any that pyarrow knows, as hdfs://, s3:// and gs://."""
    dtypes = df.dtypes
    for name, dtype in dtypes:
        _kind(name, dtype)
    files, path = _file_system(output_dir)
    if _is_there(files, path):
        raise FileExistsError(f"{output_dir} exists")
    attempt = f"_temporary-{uuid.uuid4().hex}"
    files.create_dir(f"{path}/{attempt}", recursive=True)

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        here, folder = _file_system(output_dir)
        name = f"part-r-{context.partitionId():05d}"
        own = f"{folder}/{attempt}/{name}-{context.taskAttemptId()}"
        count = 0
        with here.open_output_stream(own) as out:
            for batch in batches:
                rows = batch.to_pylist()
                count += records.write_records(out, (encode(row, dtypes) for row in rows))
        yield pa.RecordBatch.from_pydict({"name": [name], "file": [own], "rows": [count]})
    # What a failed attempt of a task has written is not among these.
    for row in df.mapInArrow(write, "name string, file string, rows long").collect():
        files.move(row[1], f"{path}/{row[0]}")
    files.delete_dir(f"{path}/{attempt}")
    with files.open_output_stream(f"{path}/_SUCCESS"):
        pass


def _file_system(url: str) -> tuple[Any, str]:
    from pyarrow import fs

    return fs.FileSystem.from_uri(url if "://" in url or url.startswith("file:") else os.path.abspath(url))


def _is_there(files: Any, path: str) -> bool:
    from pyarrow import fs

    return files.get_file_info([path])[0].type != fs.FileType.NotFound


def _kind(name: str, dtype: str) -> tuple[str, bool]:
    """The kind of feature of a column, and whether it is a list."""
    is_list = dtype.startswith("array<")
    kind = _KINDS.get(dtype[6:-1] if is_list else dtype)
    if kind is None:
        raise TypeError(f"column '{name}' is {dtype}: an Example holds numbers, texts, bytes and lists of them")
    return kind, is_list


def encode(row: dict[str, Any], dtypes: list[tuple[str, str]]) -> bytes:
    """A row as an Example. What is null is a feature without values."""
    features = {}
    for name, dtype in dtypes:
        kind, is_list = _kind(name, dtype)
        value = row[name]
        values = [] if value is None else list(value) if is_list else [value]
        if kind == "bytes":
            values = [v.encode() if isinstance(v, str) else bytes(v) for v in values]
        features[name] = (kind, values)
    return records.encode_example(features)


def loadTFRecords(sc: Any, input_dir: str, binary_features: Iterable[str] = ()) -> Any:
    """A DataFrame of the Examples in a folder's files; its columns are those of the first one.

    Bytes are texts, except for `binary_features`. Lists of one value are values. `sc` is a SparkContext or a SparkSession.
    """
    binary = set(binary_features)
    spark = _session(sc)
    files = spark.read.format("binaryFile").load(input_dir).where("path NOT RLIKE '/[_.][^/]*$'").select("path", "content")

    def first(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        found = None
        for batch in batches:
            for row in batch.to_pylist() if found is None else ():
                found = next(records.read_records(row["content"], row["path"]), None)
                if found is not None:
                    break
        if found is not None:
            yield pa.RecordBatch.from_pydict({"example": [found]}, schema=pa.schema([("example", pa.binary())]))
    examples = files.mapInArrow(first, "example binary").take(1)
    if not examples:
        raise records.RecordError(f"{input_dir} has no record from which the columns could be known")
    schema = infer_schema(bytes(examples[0][0]), binary)

    def decode(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(schema)
        for batch in batches:
            for row in batch.to_pylist():
                values = [_values(e, arrow, binary) for e in records.read_records(row["content"], row["path"])]
                columns = [pa.array([v[i] for v in values], type=f.type) for i, f in enumerate(arrow)]
                yield pa.RecordBatch.from_arrays(columns, schema=arrow)
    frame = files.mapInArrow(decode, schema)
    loadedDF[frame] = input_dir
    return frame


def _session(sc: Any) -> Any:
    if hasattr(sc, "createDataFrame"):
        return sc
    from pyspark.sql import SparkSession

    return SparkSession(sc)


def _values(example: bytes, arrow: Any, binary: set[str]) -> list:
    import pyarrow as pa

    features, row = records.decode_example(example), []
    for field in arrow:
        kind, values = features.get(field.name, ("", []))
        if kind == "bytes" and field.name not in binary:
            values = [v.decode() for v in values]
        row.append(values if pa.types.is_list(field.type) else values[0] if values else None)
    return row


def infer_schema(example: Any, binary_features: Iterable[str] = ()) -> Any:
    """The columns of an Example, which is `tf.train.Example` or its bytes."""
    from pyspark.sql.types import (ArrayType, BinaryType, DoubleType, LongType, StringType, StructField,
                                   StructType)

    data = example if isinstance(example, bytes) else example.SerializeToString()
    fields = []
    for name, (kind, values) in sorted(records.decode_example(data).items()):
        element = BinaryType() if name in binary_features else {"int64": LongType(), "float": DoubleType()}.get(
            kind if values else "", StringType())
        fields.append(StructField(name, ArrayType(element) if len(values) > 1 else element, True))
    return StructType(fields)


def toTFExample(dtypes: list[tuple[str, str]]) -> Callable[[Iterable[Any]], list]:
    """A function for `rdd.mapPartitions` from rows to `(bytes of an Example, None)`."""
    def convert(rows: Iterable[Any]) -> list:
        return [(bytearray(encode(row.asDict(), dtypes)), None) for row in rows]
    return convert


def fromTFExample(iter: Iterable[Any], binary_features: Iterable[str] = ()) -> list:
    """For `rdd.mapPartitions`: rows of `(bytes of an Example, …)`."""
    from pyspark.sql import Row

    rows = []
    for record in iter:
        values = {}
        for name, (kind, found) in sorted(records.decode_example(bytes(record[0])).items()):
            if kind == "bytes":
                found = [bytearray(v) if name in binary_features else v.decode() for v in found]
            values[name] = found if len(found) > 1 else found[0] if found else None
        rows.append(Row(**values))
    return rows
