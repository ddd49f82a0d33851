//! Writes checkpoints of TensorFlow's first format: one table in one file, its first value the
//! list of tensors, the others their slices as protobuf numbers.

use super::ShapeAndSlice;
use super::entry::shape_proto;
use super::ops::SaveTensor;
use super::ordered_code::slice_key;
use super::slice::TensorSlice;
use crate::storage::Storage;
use crate::table::TableWriter;
use downpour_graph::{Result, Status};
use downpour_tensor::{Complex32, Complex64, DType, Shape, Tensor};
use downpour_wire::MessageBytes as _;
use downpour_wire::proto;
use half::{bf16, f16};
use std::collections::BTreeMap;

/// What `Save` and `SaveSlices` do: writes one file, durably, visible only when complete.
pub fn save_v1(storage: &dyn Storage, path: &str, tensors: &[SaveTensor<'_>]) -> Result<()> {
    let mut tensors_meta: Vec<proto::SavedSliceMeta> = Vec::new();
    let mut data: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for save in tensors {
        let (shape, slice) = if save.shape_and_slice.is_empty() {
            let shape = save.tensor.shape().clone();
            let full = TensorSlice::full(shape.rank());
            (shape, full)
        } else {
            let spec = ShapeAndSlice::parse(save.shape_and_slice)?;
            if spec.slice_shape != *save.tensor.shape() {
                return Err(Status::invalid_argument(format!(
                    "Slice in shape_and_slice specification does not match the shape of the \
                     tensor to  save: {}, tensor: {}",
                    save.shape_and_slice,
                    save.tensor.shape()
                )));
            }
            (spec.shape, spec.slice)
        };
        note(&mut tensors_meta, save, &shape, &slice)?;
        let saved = proto::SavedSlice {
            name: save.name.to_owned(),
            slice: Some(slice.to_proto()),
            data: Some(values(&save.tensor)?),
        };
        let value = proto::SavedTensorSlices {
            meta: None,
            data: Some(saved),
        };
        // A slice that is given twice keeps its first value.
        let key = slice_key(save.name.as_bytes(), &slice);
        data.entry(key).or_insert_with(|| value.to_bytes());
    }
    let meta = proto::SavedTensorSlices {
        meta: Some(proto::SavedTensorSliceMeta {
            tensor: tensors_meta,
            versions: Some(proto::VersionDef {
                producer: 1,
                ..Default::default()
            }),
        }),
        data: None,
    };
    let mut table = TableWriter::new(storage.create(path)?);
    table.add(b"", &meta.to_bytes())?;
    for (key, value) in &data {
        table.add(key, value)?;
    }
    table.finish()?.publish()
}

/// Adds a slice to the list of tensors.
fn note(
    metas: &mut Vec<proto::SavedSliceMeta>,
    save: &SaveTensor<'_>,
    shape: &Shape,
    slice: &TensorSlice,
) -> Result<()> {
    let dtype = save.tensor.dtype();
    let known = metas.iter_mut().find(|meta| meta.name == save.name);
    let Some(meta) = known else {
        metas.push(proto::SavedSliceMeta {
            name: save.name.to_owned(),
            shape: shape_proto(shape),
            r#type: dtype.number(),
            slice: vec![slice.to_proto()],
        });
        return Ok(());
    };
    if meta.shape != shape_proto(shape) {
        return Err(Status::internal(format!(
            "Mismatching shapes: trying to add name {}, shape = {shape}",
            save.name
        )));
    }
    if meta.r#type != dtype.number() {
        return Err(Status::internal(format!(
            "Mismatching types: trying to add name {}, type = {dtype}",
            save.name
        )));
    }
    meta.slice.push(slice.to_proto());
    Ok(())
}

/// The elements in the repeated field of their type; neither type nor shape is said again.
fn values(tensor: &Tensor) -> Result<proto::TensorProto> {
    let mut out = proto::TensorProto::default();
    fn ints<T: Into<i32> + Copy>(values: &[T]) -> Vec<i32> {
        values.iter().map(|&v| v.into()).collect()
    }
    match tensor.dtype() {
        DType::Float => out.float_val = tensor.as_slice::<f32>()?.to_vec(),
        DType::Double => out.double_val = tensor.as_slice::<f64>()?.to_vec(),
        DType::Int32 => out.int_val = tensor.as_slice::<i32>()?.to_vec(),
        DType::UInt8 => out.int_val = ints(tensor.as_slice::<u8>()?),
        DType::UInt16 => out.int_val = ints(tensor.as_slice::<u16>()?),
        DType::Int16 => out.int_val = ints(tensor.as_slice::<i16>()?),
        DType::Int8 => out.int_val = ints(tensor.as_slice::<i8>()?),
        DType::Int64 => out.int64_val = tensor.as_slice::<i64>()?.to_vec(),
        DType::Bool => out.bool_val = tensor.as_slice::<bool>()?.to_vec(),
        DType::Half => {
            let bits = tensor.as_slice::<f16>()?.iter().map(|v| v.to_bits().into());
            out.half_val = bits.collect();
        }
        DType::BFloat16 => {
            let bits = tensor
                .as_slice::<bf16>()?
                .iter()
                .map(|v| v.to_bits().into());
            out.half_val = bits.collect();
        }
        DType::Complex64 => {
            let parts = tensor.as_slice::<Complex32>()?.iter();
            out.scomplex_val = parts.flat_map(|v| [v.re, v.im]).collect();
        }
        DType::Complex128 => {
            let parts = tensor.as_slice::<Complex64>()?.iter();
            out.dcomplex_val = parts.flat_map(|v| [v.re, v.im]).collect();
        }
        DType::String => out.string_val = tensor.as_strings()?.to_vec(),
        other => {
            return Err(Status::invalid_argument(format!(
                "Tensor slice serialization not implemented for dtype {}",
                other.number()
            )));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::restore_v1;
    use super::*;
    use crate::LocalStorage;
    use crate::testing::TempDir;

    fn save<'a>(name: &'a str, spec: &'a str, tensor: Tensor) -> SaveTensor<'a> {
        SaveTensor {
            name,
            shape_and_slice: spec,
            tensor,
        }
    }

    /// The file that TensorFlow 2.21's `Save` writes for `x = [[1, 2], [3, 4]]`, `y = [5]`.
    #[test]
    fn the_file_is_tensorflows_byte_for_byte() {
        let dir = TempDir::new();
        let path = dir.file("v1");
        let storage = LocalStorage::new();
        let x = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let tensors = [save("x", "", x), save("y", "", Tensor::vector(vec![5i32]))];
        save_v1(&storage, &path, &tensors).unwrap();
        let expect = "00002e0a2c0a150a0178120812020802120208021801220\
            40a000a000a0f0a01791204120208011803220\
            20a0012020801000a1f0078000101\
            02807f807f121d0a017812040a000a001a122a100000803f000000400000404000008040\
            01070e790001010180\
            7f120c0a01791202\
            0a001a033a01050000000001000000\
            00fb543e5f000000000100000000c0f2a1b000\
            0102010\
            07d000000000100000000fac859cf8201088f010e\
            000000000000000000000000000000000000000000000000000000000000000000\
            0057fb808b247547db";
        let expect: String = expect.split_whitespace().collect();
        let got: String = std::fs::read(&path)
            .unwrap()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn slices_come_back_joined() {
        let dir = TempDir::new();
        let path = dir.file("v1");
        let storage = LocalStorage::new();
        let part = |a: f32| Tensor::vector(vec![a, a + 1.0]);
        let tensors = [save("x", "4 0,2", part(1.0)), save("x", "4 2,2", part(3.0))];
        save_v1(&storage, &path, &tensors).unwrap();
        let read = |spec| restore_v1(&storage, &path, "x", spec, DType::Float).unwrap();
        assert_eq!(read("").as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(read("4 1,2").as_slice::<f32>().unwrap(), [2.0, 3.0]);
        let bad = [save("x", "", Tensor::vector(vec![1u32]))];
        let e = save_v1(&storage, &path, &bad).unwrap_err();
        assert_eq!(
            e.message,
            "Tensor slice serialization not implemented for dtype 22"
        );
    }
}
