//! `ToBool`: what a condition makes of any tensor.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Registry};
use downpour_tensor::{DType, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add("ToBool", |_| {
        Built::cheap(|ctx| {
            let value = holds(ctx.input(0)?)?;
            ctx.set_output(0, Tensor::scalar(value));
            Ok(())
        })
    });
}

/// A scalar holds unless it is zero or empty; any other tensor holds if it has elements.
fn holds(t: &Tensor) -> Result<bool> {
    if t.rank() != 0 {
        return Ok(t.num_elements() > 0);
    }
    Ok(match t.dtype() {
        DType::String => t.as_strings()?.iter().any(|s| !s.is_empty()),
        // A negative zero is zero, though its bits are not.
        DType::Float => t.scalar_value::<f32>()? != 0.0,
        DType::Double => t.scalar_value::<f64>()? != 0.0,
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 | DType::UInt8 | DType::Bool => t
            .buffer()
            .is_some_and(|b| b.as_bytes().iter().any(|v| *v != 0)),
        other => {
            return Err(Status::invalid_argument(format!(
                "{other} cannot be converted to a boolean"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::holds;
    use downpour_tensor::Tensor;

    #[test]
    fn scalars_count_by_value_and_others_by_size() {
        assert!(!holds(&Tensor::scalar(-0.0f32)).unwrap());
        assert!(holds(&Tensor::scalar(f64::NAN)).unwrap());
        assert!(holds(&Tensor::vector(vec![0i32])).unwrap());
        assert!(!holds(&Tensor::vector(Vec::<i32>::new())).unwrap());
        assert!(!holds(&Tensor::string("")).unwrap());
        assert!(holds(&Tensor::string("0")).unwrap());
    }
}
