//! Reads checkpoints of TensorFlow's first format: every file is one table, whose first value
//! lists the tensors and whose other values are slices as protobuf numbers.

use super::cover::cover;
use super::entry::dtype_text;
use super::ordered_code::slice_key;
use super::slice::{Region, ShapeAndSlice, TensorSlice};
use super::survey::StoredTensor;
use crate::storage::Storage;
use crate::table::Table;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_tensor::{Buffer, DType, Shape, Tensor};
use downpour_wire::MessageBytes as _;
use downpour_wire::proto;
use std::collections::HashMap;

/// What `Restore` and `RestoreSlice` do: reads the tensor `name`, or the part of it that `spec`
/// names, from the single-file checkpoints that match `pattern`.
pub fn restore_v1(
    storage: &dyn Storage,
    pattern: &str,
    name: &str,
    spec: &str,
    dtype: DType,
) -> Result<Tensor> {
    Reader::open(storage, pattern)?.restore(name, spec, dtype)
}

/// Every tensor in the single-file checkpoints that match `pattern`, by name: its type, known or
/// not, its shape and its stored parts.
pub fn list_v1(storage: &dyn Storage, pattern: &str) -> Result<Vec<StoredTensor>> {
    let reader = Reader::open(storage, pattern)?;
    let each = reader.tensors.into_iter().map(|(name, stored)| {
        // A single part that is everything is how a whole tensor is stored.
        let whole = matches!(stored.slices.as_slice(), [only] if only.covers(&stored.shape));
        StoredTensor {
            name,
            dtype: dtype_text(stored.dtype),
            known: DType::from_number(stored.dtype).ok(),
            shape: stored.shape,
            slices: match whole {
                true => Vec::new(),
                false => stored.slices,
            },
            parts: Vec::new(),
        }
    });
    let mut all: Vec<StoredTensor> = each.collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// All files of one checkpoint.
pub(super) struct Reader {
    pattern: String,
    tables: Vec<Table>,
    tensors: HashMap<String, Stored>,
}

struct Stored {
    dtype: i32,
    shape: Shape,
    slices: Vec<TensorSlice>,
    /// Which table holds each slice.
    tables: Vec<usize>,
}

impl Reader {
    /// Opens every file that matches `pattern`.
    pub(super) fn open(storage: &dyn Storage, pattern: &str) -> Result<Reader> {
        let paths = storage.glob(pattern)?;
        if paths.is_empty() {
            return Err(Status::not_found(format!(
                "Unsuccessful TensorSliceReader constructor: Failed to find any matching files \
                 for {pattern}"
            )));
        }
        let mut reader = Reader {
            pattern: pattern.to_owned(),
            tables: Vec::new(),
            tensors: HashMap::new(),
        };
        for path in paths {
            let table = storage.open(&path).and_then(Table::open);
            let table = table.map_err(|cause| {
                Status::new(
                    cause.code,
                    format!(
                        "Unable to open table file {path}: {cause}: perhaps your file is in a \
                         different file format and you need to use a different restore operator?"
                    ),
                )
            })?;
            reader.register(&path, table)?;
        }
        Ok(reader)
    }

    fn register(&mut self, path: &str, table: Table) -> Result<()> {
        let meta = table.get(b"")?;
        let meta = meta.and_then(|meta| proto::SavedTensorSlices::from_bytes(meta.as_slice()).ok());
        let meta = meta.and_then(|slices| slices.meta).ok_or_else(|| {
            Status::data_loss(format!(
                "Failed to find the saved tensor slices at the beginning of the checkpoint file: \
                 {path}"
            ))
        })?;
        for tensor in meta.tensor {
            let dims = tensor.shape.iter().flat_map(|shape| &shape.dim);
            let shape = Shape::checked(dims.map(|dim| dim.size)).map_err(|e| {
                Status::data_loss(format!("Invalid tensor shape: {}: {e}", tensor.name))
            })?;
            let stored = self.tensors.entry(tensor.name.clone());
            let stored = stored.or_insert_with(|| Stored {
                dtype: tensor.r#type,
                shape: shape.clone(),
                slices: Vec::new(),
                tables: Vec::new(),
            });
            if stored.shape != shape || stored.dtype != tensor.r#type {
                return Err(Status::internal(format!(
                    "Incompatible tensor shapes or types detected for tensor {}: existing = {} \
                     {}, new = {} {shape}",
                    tensor.name,
                    dtype_text(stored.dtype),
                    stored.shape,
                    dtype_text(tensor.r#type),
                )));
            }
            for slice in &tensor.slice {
                stored.slices.push(TensorSlice::from_proto(slice)?);
                stored.tables.push(self.tables.len());
            }
        }
        self.tables.push(table);
        Ok(())
    }

    /// Reads a tensor or the part of it that `spec` names.
    pub(super) fn restore(&self, name: &str, spec: &str, dtype: DType) -> Result<Tensor> {
        let Some(stored) = self.tensors.get(name) else {
            return Err(Status::not_found(format!(
                "Tensor name \"{name}\" not found in checkpoint files {}",
                self.pattern
            )));
        };
        if stored.dtype != dtype.number() {
            return Err(Status::invalid_argument(format!(
                "Expected to restore a tensor of type {dtype}, got a tensor of type {} instead: \
                 tensor_name = {name}",
                dtype_text(stored.dtype)
            )));
        }
        let wanted = if spec.is_empty() {
            TensorSlice::full(stored.shape.rank()).region(&stored.shape)?
        } else {
            let spec = ShapeAndSlice::parse(spec)?;
            if spec.shape != stored.shape {
                return Err(Status::invalid_argument(format!(
                    "Shape in shape_and_slice spec does not match the shape in the save file: {}, \
                     save file shape: {}",
                    spec.shape, stored.shape
                )));
            }
            spec.slice.region(&stored.shape)?
        };
        let Some(pieces) = cover(&stored.slices, &stored.shape, &wanted)? else {
            return Err(Status::invalid_argument("Error copying slice data"));
        };
        // All parts are decoded, and so seen to exist, before the result is allocated.
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let table = stored.tables.get(piece.index);
            let table = table.and_then(|&table| self.tables.get(table));
            let table = table.ok_or_else(|| Status::internal("a table of slices vanished"))?;
            let values = self.values(name, table, piece.slice, &piece.region, dtype)?;
            parts.push((piece.region, piece.common, values));
        }
        assemble(dtype, &wanted, &parts)
    }

    /// The elements of one stored slice.
    fn values(
        &self,
        name: &str,
        table: &Table,
        slice: &TensorSlice,
        region: &Region,
        dtype: DType,
    ) -> Result<Values> {
        let lost = |what: &str| {
            Status::data_loss(format!(
                "Slice {slice} of tensor {name} in {}: {what}",
                self.pattern
            ))
        };
        let value = table.get(&slice_key(name.as_bytes(), slice))?;
        let value = value.ok_or_else(|| lost("it is missing"))?;
        let value = proto::SavedTensorSlices::from_bytes(Bytes::from(value)).ok();
        let data = value.and_then(|value| value.data?.data);
        let data = data.ok_or_else(|| lost("it is not parseable"))?;
        let values = Values::decode(dtype, data).ok_or_else(|| {
            Status::unimplemented(format!(
                "Restoring a tensor of type {dtype} is not supported"
            ))
        })?;
        if values.count(dtype) == Some(region.volume()) {
            Ok(values)
        } else {
            Err(lost("it has the wrong number of elements"))
        }
    }
}

/// Elements in row-major order.
enum Values {
    Plain(Vec<u8>),
    Strings(Vec<Bytes>),
}

impl Values {
    fn decode(dtype: DType, data: proto::TensorProto) -> Option<Values> {
        fn bytes<T, const N: usize>(values: Vec<T>, to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            values.into_iter().flat_map(to).collect()
        }
        Some(Values::Plain(match dtype {
            DType::Float => bytes(data.float_val, f32::to_le_bytes),
            DType::Double => bytes(data.double_val, f64::to_le_bytes),
            DType::Int32 | DType::QInt32 => bytes(data.int_val, i32::to_le_bytes),
            DType::Int16 | DType::UInt16 | DType::QInt16 | DType::QUInt16 => {
                bytes(data.int_val, |v| (v as u16).to_le_bytes())
            }
            DType::Int8 | DType::UInt8 | DType::QInt8 | DType::QUInt8 => {
                bytes(data.int_val, |v| [v as u8])
            }
            DType::Int64 => bytes(data.int64_val, i64::to_le_bytes),
            DType::UInt32 => bytes(data.uint32_val, u32::to_le_bytes),
            DType::UInt64 => bytes(data.uint64_val, u64::to_le_bytes),
            DType::Bool => bytes(data.bool_val, |v| [u8::from(v)]),
            DType::Half | DType::BFloat16 => bytes(data.half_val, |v| (v as u16).to_le_bytes()),
            DType::Complex64 => bytes(data.scomplex_val, f32::to_le_bytes),
            DType::Complex128 => bytes(data.dcomplex_val, f64::to_le_bytes),
            DType::String => return Some(Values::Strings(data.string_val)),
            _ => return None,
        }))
    }

    fn count(&self, dtype: DType) -> Option<usize> {
        match self {
            Values::Plain(data) => {
                let size = dtype.size()?;
                data.len().is_multiple_of(size).then_some(data.len() / size)
            }
            Values::Strings(strings) => Some(strings.len()),
        }
    }
}

/// Puts the region together from its parts: (what a part covers, what of it is wanted, elements).
fn assemble(dtype: DType, wanted: &Region, parts: &[(Region, Region, Values)]) -> Result<Tensor> {
    let size = dtype.size().unwrap_or(0);
    let mut plain = Buffer::zeroed(wanted.volume().saturating_mul(size));
    let mut strings = Vec::new();
    if dtype == DType::String {
        strings.resize(wanted.volume(), Bytes::new());
    }
    let target = plain.make_mut();
    for (region, common, values) in parts {
        region.for_each_run(wanted, common, |from, to, n| match values {
            Values::Plain(data) => {
                let from = data.get(from * size..(from + n) * size);
                let to = target.get_mut(to * size..(to + n) * size);
                if let (Some(from), Some(to)) = (from, to) {
                    to.copy_from_slice(from);
                }
            }
            Values::Strings(data) => {
                let from = data.get(from..from + n);
                if let (Some(from), Some(to)) = (from, strings.get_mut(to..to + n)) {
                    to.clone_from_slice(from);
                }
            }
        });
    }
    if dtype == DType::String {
        Ok(Tensor::strings(strings, wanted.shape())?)
    } else {
        Ok(Tensor::from_buffer(dtype, wanted.shape(), plain)?)
    }
}
