//! `SaveV2`, `RestoreV2`, `MergeV2Checkpoints`: the ops around `downpour_formats::bundle`.

use super::file::path;
use super::storage;
use bytes::Bytes;
use downpour_formats::bundle::{SaveTensor, merge_v2, restore_v2, save_v2};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add("SaveV2", |_| Built::costly(save));
    r.add("RestoreV2", restore);
    r.add("MergeV2Checkpoints", merge);
}

/// Inputs before the tensors to save.
const FIXED: usize = 3;

/// The prefix, after TensorFlow's checks of the three inputs that both ops begin with.
fn prefix<'a>(ctx: &'a OpContext<'_>) -> Result<&'a str> {
    let (prefix, names, specs) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let [value] = prefix.as_strings()? else {
        return Err(Status::invalid_argument(format!(
            "Input prefix should have a single element, got {} instead.",
            prefix.num_elements()
        )));
    };
    if names.rank() != 1 || specs.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "Input tensor_names and shape_and_slices should be an 1-D tensors, got {} and {} instead.",
            names.shape(),
            specs.shape()
        )));
    }
    if names.num_elements() != specs.num_elements() {
        return Err(Status::invalid_argument(format!(
            "tensor_names and shape_and_slices have different number of elements: {} vs. {}",
            names.num_elements(),
            specs.num_elements()
        )));
    }
    path(value)
}

/// The strings of a tensor; names in checkpoints are UTF-8.
pub(super) fn texts(tensor: &Tensor) -> Result<Vec<&str>> {
    let text = |bytes: &Bytes| std::str::from_utf8(bytes).map(str::len).is_ok();
    let strings = tensor.as_strings()?;
    match strings.iter().find(|s| !text(s)) {
        Some(bad) => Err(Status::invalid_argument(format!(
            "{} is not valid UTF-8",
            String::from_utf8_lossy(bad)
        ))),
        None => Ok(strings
            .iter()
            .filter_map(|s| std::str::from_utf8(s).ok())
            .collect()),
    }
}

fn save(ctx: &mut OpContext<'_>) -> Result<()> {
    let prefix = prefix(ctx)?;
    let (names, specs) = (texts(ctx.input(1)?)?, texts(ctx.input(2)?)?);
    let tensors = ctx.inputs(FIXED..ctx.num_inputs())?;
    if names.len() != tensors.len() {
        return Err(Status::invalid_argument(format!(
            "Got {} tensor names but {} tensors.",
            names.len(),
            tensors.len()
        )));
    }
    let all: Vec<SaveTensor<'_>> = (names.iter().zip(&specs).zip(tensors))
        .map(|((name, spec), tensor)| SaveTensor {
            name,
            shape_and_slice: spec,
            tensor: tensor.clone(),
        })
        .collect();
    save_v2(storage(ctx.device()), prefix, &all)
}

fn restore(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtypes = b.attrs().dtypes("dtypes")?.to_vec();
    Built::costly(move |ctx| {
        let prefix = prefix(ctx)?;
        let (names, specs) = (texts(ctx.input(1)?)?, texts(ctx.input(2)?)?);
        let read = restore_v2(storage(ctx.device()), prefix, &names, &specs, &dtypes)?;
        for (i, tensor) in read.into_iter().enumerate() {
            ctx.set_output(i, tensor);
        }
        Ok(())
    })
}

fn merge(b: &KernelBuilder<'_>) -> Result<Built> {
    let delete = b.attrs().bool("delete_old_dirs")?;
    let allow_missing = b.attrs().bool("allow_missing_files")?;
    Built::costly(move |ctx| {
        let (prefixes, destination) = (ctx.input(0)?, ctx.input(1)?);
        if prefixes.rank() != 1 {
            return Err(Status::invalid_argument(format!(
                "Input checkpoint_prefixes should be an 1-D tensor, got {} instead.",
                prefixes.shape()
            )));
        }
        let (0, [target]) = (destination.rank(), destination.as_strings()?) else {
            return Err(Status::invalid_argument(format!(
                "Input destination_prefix should be a scalar tensor, got {} instead.",
                destination.shape()
            )));
        };
        let prefixes = texts(prefixes)?;
        let storage = storage(ctx.device());
        merge_v2(storage, &prefixes, path(target)?, delete, allow_missing)
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use bytes::Bytes;
    use downpour_graph::{AttrList, AttrValue};
    use downpour_tensor::{DType, Tensor};

    fn strings(values: &[&str]) -> Tensor {
        let values: Vec<Bytes> = values.iter().map(|s| Bytes::from(s.to_string())).collect();
        let n = values.len();
        Tensor::strings(values, [n]).unwrap()
    }

    #[test]
    fn what_is_saved_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = || Tensor::string(dir.path().join("ck").to_str().unwrap().to_owned());
        let types = AttrValue::List(AttrList::Type(vec![DType::Float, DType::String]));
        let dtypes = [("dtypes", types)];
        let (names, specs) = (strings(&["x", "y"]), strings(&["", ""]));
        let inputs = vec![
            prefix(),
            names.clone(),
            specs.clone(),
            Tensor::vector(vec![1f32, 2.0]),
            strings(&["q"]),
        ];
        run_op("SaveV2", inputs, &dtypes).unwrap();
        let out = run_op("RestoreV2", vec![prefix(), names, specs], &dtypes).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(out[1].as_strings().unwrap(), ["q"]);
        let wrong = vec![prefix(), strings(&["x"]), strings(&[])];
        let e = run_op("RestoreV2", wrong, &dtypes).unwrap_err();
        let text = "tensor_names and shape_and_slices have different number of elements: 1 vs. 0";
        assert!(e.message.starts_with(text), "{}", e.message);
    }
}
