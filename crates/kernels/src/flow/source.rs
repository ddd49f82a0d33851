//! Ops without inputs: constants and placeholders.

use crate::list::travel::revived;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};

pub(crate) fn register(r: &mut Registry) {
    r.add("Const", constant);
    r.add("HostConst", constant);
    r.add("Placeholder", placeholder);
    r.add("PlaceholderV2", placeholder);
}

fn constant(b: &KernelBuilder<'_>) -> Result<Built> {
    let value = revived(b.attrs().tensor("value")?.clone())?;
    let dtype = b.attrs().dtype("dtype")?;
    if value.dtype() != dtype {
        return Err(Status::invalid_argument(format!(
            "Inconsistent dtype: attr 'dtype' is {dtype} but attr 'value' is {}",
            value.dtype()
        )));
    }
    Built::cheap(move |ctx| {
        ctx.set_output(0, value.clone());
        Ok(())
    })
}

/// A placeholder that runs was not fed.
fn placeholder(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    let shape = b.attrs().shape("shape")?.clone();
    Built::cheap(move |ctx| {
        let name = ctx.name();
        // TensorFlow leaves the shape out when its rank is unknown or zero.
        let at = match shape.rank() {
            None | Some(0) => String::new(),
            Some(_) => format!(" and shape {shape}"),
        };
        Err(Status::invalid_argument(format!(
            "You must feed a value for placeholder tensor '{name}' with dtype {dtype}{at}"
        )))
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, PartialShape};

    #[test]
    fn a_constant_gives_its_value_and_an_unfed_placeholder_its_name() {
        let attrs = [
            ("dtype", DType::Float.into()),
            ("value", floats(&[1.0, 2.0]).into()),
        ];
        let out = run_op("Const", vec![], &attrs).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
        let shape = PartialShape::checked([-1, 3]).unwrap();
        let attrs = [("dtype", DType::Float.into()), ("shape", shape.into())];
        let e = run_op("Placeholder", vec![], &attrs).unwrap_err();
        assert!(e.message.starts_with(
            "You must feed a value for placeholder tensor 'op' with dtype float and shape [?,3]\n\t [[{{node op}}]]"
        ), "{}", e.message);
    }
}
