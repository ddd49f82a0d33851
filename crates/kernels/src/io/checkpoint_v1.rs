//! `Save`, `SaveSlices`, `Restore`, `RestoreSlice`: checkpoints of the first format, one file
//! each.

use super::checkpoint::texts;
use super::file::path;
use super::storage;
use bytes::Bytes;
use downpour_formats::bundle::{SaveTensor, restore_v1, save_v1};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::DType;

pub(super) fn register(r: &mut Registry) {
    r.add("Save", |_| Built::costly(|ctx| save(ctx, false)));
    r.add("SaveSlices", |_| Built::costly(|ctx| save(ctx, true)));
    r.add("Restore", |b| restore(b, false));
    r.add("RestoreSlice", |b| restore(b, true));
}

fn save(ctx: &mut OpContext<'_>, slices: bool) -> Result<()> {
    let (file, names) = (ctx.input(0)?, ctx.input(1)?);
    let [file] = file.as_strings()? else {
        return Err(Status::invalid_argument(format!(
            "Input 0 (filename) must be a string scalar; got a tensor of {}elements",
            file.num_elements()
        )));
    };
    let names = texts(names)?;
    let specs = match slices {
        true => texts(ctx.input(2)?)?,
        false => vec![""; names.len()],
    };
    if specs.len() != names.len() {
        return Err(Status::invalid_argument(format!(
            "Expected {} elements for the tensor shapes and slices but got {}",
            names.len(),
            specs.len()
        )));
    }
    let fixed = if slices { 3 } else { 2 };
    if ctx.num_inputs() != names.len() + fixed {
        return Err(Status::invalid_argument(format!(
            "Expected totally {} inputs as input #1 (which is a string tensor of saved names) contains {} names, but received {} inputs",
            names.len() + fixed,
            names.len(),
            ctx.num_inputs()
        )));
    }
    let tensors = ctx.inputs(fixed..ctx.num_inputs())?;
    for tensor in &tensors {
        supported("Saving", tensor.dtype())?;
    }
    let all: Vec<SaveTensor<'_>> = (names.iter().zip(&specs).zip(tensors))
        .map(|((name, spec), tensor)| SaveTensor {
            name,
            shape_and_slice: spec,
            tensor: tensor.clone(),
        })
        .collect();
    save_v1(storage(ctx.device()), path(file)?, &all)
}

/// bfloat16 is younger than the format.
fn supported(what: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::BFloat16 => Err(Status::unimplemented(format!(
            "{what} data type {dtype} not yet supported"
        ))),
        _ => Ok(()),
    }
}

fn restore(b: &KernelBuilder<'_>, slices: bool) -> Result<Built> {
    let dtype = b.attrs().dtype("dt")?;
    Built::costly(move |ctx| {
        let pattern = ctx.input(0)?;
        let [file] = pattern.as_strings()? else {
            return Err(Status::invalid_argument(format!(
                "Input 0 (file_pattern) must be a string scalar; got a tensor of {} elements",
                pattern.num_elements()
            )));
        };
        // Of the other inputs TensorFlow takes the first element, whatever their shape.
        let first = |i: usize| -> Result<Bytes> {
            let all = ctx.input(i)?.as_strings()?;
            all.first()
                .cloned()
                .ok_or_else(|| Status::invalid_argument(format!("Input {i} must not be empty")))
        };
        let name = first(1)?;
        let spec = if slices { first(2)? } else { Bytes::new() };
        let read = restore_v1(
            storage(ctx.device()),
            path(file)?,
            path(&name)?,
            path(&spec)?,
            dtype,
        )?;
        ctx.set_output(0, read);
        Ok(())
    })
}
