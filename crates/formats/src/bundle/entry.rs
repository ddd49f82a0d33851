//! Index entries between their protobuf form and checked values.

use super::VERSION;
use super::slice::TensorSlice;
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Shape};
use downpour_wire::MessageBytes as _;
use downpour_wire::proto;

/// An index entry whose shape and slices have been checked. The type is kept as a number because
/// a lookup must be able to name types that we do not know.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) dtype: i32,
    pub(super) shape: Shape,
    pub(super) shard: i32,
    pub(super) offset: i64,
    pub(super) size: i64,
    /// Masked, as stored.
    pub(super) crc: u32,
    pub(super) slices: Vec<TensorSlice>,
}

impl Entry {
    /// Decodes the value filed under `key`.
    pub(super) fn decode(key: &[u8], value: &[u8]) -> Result<Entry> {
        let entry = decode_proto(key, value)?;
        let dims = entry.shape.iter().flat_map(|shape| &shape.dim);
        let unknown = entry.shape.as_ref().is_some_and(|s| s.unknown_rank);
        let shape = Shape::checked(dims.map(|dim| dim.size));
        let shape = shape.ok().filter(|_| !unknown).ok_or_else(|| {
            let dims = entry.shape.iter().flat_map(|shape| &shape.dim);
            let dims: String = dims
                .map(|d| format!(" dim {{ size: {} }}", d.size))
                .collect();
            Status::data_loss(format!("Invalid tensor shape: {}{dims}", key_text(key)))
        })?;
        let slices = entry.slices.iter().map(TensorSlice::from_proto);
        Ok(Entry {
            dtype: entry.dtype,
            shape,
            shard: entry.shard_id,
            offset: entry.offset,
            size: entry.size,
            crc: entry.crc32c,
            slices: slices.collect::<Result<_>>()?,
        })
    }

    /// The element type, if it is one that we know.
    pub(super) fn known_dtype(&self) -> Result<DType> {
        DType::from_number(self.dtype)
            .map_err(|_| Status::data_loss(format!("Invalid data type {}", dtype_text(self.dtype))))
    }
}

/// Decodes an entry without looking inside.
pub(super) fn decode_proto(key: &[u8], value: &[u8]) -> Result<proto::BundleEntryProto> {
    proto::BundleEntryProto::from_bytes(value).map_err(|_| unparseable(key))
}

/// A key in messages.
pub(super) fn key_text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

fn unparseable(key: &[u8]) -> Status {
    Status::data_loss(format!("Entry for key {} not parseable.", key_text(key)))
}

/// The protobuf form of a shape; present even for a scalar.
pub(super) fn shape_proto(shape: &Shape) -> Option<proto::TensorShapeProto> {
    let dim = |&size: &usize| proto::tensor_shape_proto::Dim {
        size: size as i64,
        name: String::new(),
    };
    Some(proto::TensorShapeProto {
        dim: shape.dims().iter().map(dim).collect(),
        unknown_rank: false,
    })
}

/// The header entry of a bundle of `shards` data files.
pub(super) fn header(shards: i32) -> proto::BundleHeaderProto {
    proto::BundleHeaderProto {
        num_shards: shards,
        endianness: 0,
        version: Some(proto::VersionDef {
            producer: VERSION,
            min_consumer: 0,
            bad_consumers: Vec::new(),
        }),
    }
}

/// Decodes and checks the header entry of the index at `path`.
pub(super) fn decode_header(path: &str, value: &[u8]) -> Result<proto::BundleHeaderProto> {
    let header = proto::BundleHeaderProto::from_bytes(value)
        .map_err(|_| corrupt(path, "unable to parse header", &unparseable(b"")))?;
    let version = header.version.clone().unwrap_or_default();
    if version.producer < 0 {
        return Err(Status::invalid_argument(format!(
            "Checkpoint producer version {} below min producer 0 supported by TensorFlow 2.21.0.  \
             Please regenerate your checkpoint.",
            version.producer
        )));
    }
    if version.min_consumer > VERSION {
        return Err(Status::invalid_argument(format!(
            "Checkpoint min consumer version {} above current version {VERSION} for TensorFlow \
             2.21.0.  Please upgrade TensorFlow.",
            version.min_consumer
        )));
    }
    if version.bad_consumers.contains(&VERSION) {
        return Err(Status::invalid_argument(format!(
            "Checkpoint disallows consumer version {VERSION}.  Please upgrade TensorFlow: this \
             version is likely buggy."
        )));
    }
    if header.endianness != 0 {
        return Err(Status::unimplemented(format!(
            "{path} was written on a big-endian machine, which is not supported"
        )));
    }
    Ok(header)
}

/// TensorFlow's wrapping of whatever went wrong at the front of an index.
pub(super) fn corrupt(path: &str, what: &str, cause: &Status) -> Status {
    Status::data_loss(format!(
        "Unable to read file ({path}). Perhaps the file is corrupt or was produced by a newer \
         version of TensorFlow with format changes ({what}): {}",
        cause.message
    ))
}

/// TensorFlow's name for a data type number, known or not.
pub(super) fn dtype_text(number: i32) -> String {
    match DType::from_number(number) {
        Ok(dtype) => dtype.name().to_owned(),
        Err(_) if number == 0 => "INVALID".to_owned(),
        Err(_) => match DType::from_number(number.wrapping_sub(100)) {
            Ok(dtype) => format!("{}_ref", dtype.name()),
            Err(_) => format!("unknown dtype enum ({number})"),
        },
    }
}
