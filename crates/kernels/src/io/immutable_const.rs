//! `ImmutableConst`: a tensor whose bytes are those of a file.

use super::file::read_file;
use super::path;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{Buffer, DType, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add("ImmutableConst", immutable_const);
}

fn immutable_const(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    if dtype == DType::String {
        return Err(Status::unimplemented(
            "Sorry, DT_STRING is not currently supported for ImmutableConstOp.",
        ));
    }
    let size = dtype.size().ok_or_else(|| {
        Status::unimplemented(format!("{dtype} is not supported for ImmutableConstOp."))
    })?;
    let shape = b.attrs().shape("shape")?.to_shape();
    let shape = shape
        .ok_or_else(|| Status::invalid_argument("the shape of an ImmutableConst must be known"))?;
    b.device.memory.check(dtype, &shape, &b.device.name)?;
    let wanted = shape.num_elements() * size;
    let name = path(b.attrs().bytes("memory_region_name")?)?.to_owned();
    Built::costly(move |ctx| {
        let contents = Bytes::from(read_file(ctx.device(), &name)?);
        if contents.len() < wanted {
            return Err(Status::internal(format!(
                "Readonly memory region has wrong length ({}) when allocating {wanted}",
                contents.len()
            )));
        }
        let bytes = contents.slice(..wanted);
        // A bool is 0 or 1 wherever it comes from.
        if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
            return Err(Status::invalid_argument("a bool is neither 0 nor 1"));
        }
        let buffer = Buffer::from_bytes(bytes, size.min(8));
        ctx.set_output(0, Tensor::from_buffer(dtype, shape.clone(), buffer)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, PartialShape};

    #[test]
    fn a_file_is_read_as_far_as_the_shape_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [1u8, 0, 0, 0, 2, 0, 0, 0, 9]).unwrap();
        let path = path.to_str().unwrap();
        let read = |count: usize| {
            let attrs = [
                ("dtype", DType::Int32.into()),
                ("shape", PartialShape::from_dims([Some(count)]).into()),
                ("memory_region_name", path.into()),
            ];
            run_op("ImmutableConst", vec![], &attrs)
        };
        assert_eq!(read(2).unwrap()[0].as_slice::<i32>().unwrap(), [1, 2]);
        let e = read(3).unwrap_err();
        let text = "Readonly memory region has wrong length (9) when allocating 12";
        assert!(e.message.starts_with(text), "{}", e.message);
    }
}
