//! Variables by reference: `VariableV2` and its assignments.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry, Resource, Variable};
use downpour_tensor::Tensor;
use std::sync::Arc;

pub(crate) fn register(r: &mut Registry) {
    r.add("VariableV2", variable);
    r.add("Variable", variable);
    r.add("Assign", assign);
    r.add("IsVariableInitialized", |_| {
        Built::cheap(|ctx| {
            let initialized = ctx.input_ref(0)?.is_initialized();
            ctx.set_output(0, Tensor::scalar(initialized));
            Ok(())
        })
    });
}

/// The variable of a `VariableV2` node: kept apart from resource variables of the same name, as
/// in TensorFlow.
struct RefVariable(Arc<Variable>);

impl Resource for RefVariable {
    fn type_name(&self) -> &'static str {
        "N10tensorflow9LegacyVarE"
    }
}

fn variable(b: &KernelBuilder<'_>) -> Result<Built> {
    let (container, name) = b.resource_name()?;
    Built::cheap(move |ctx| {
        let found = ctx
            .device()
            .resources
            .find_or_create(&container, &name, || {
                Ok(RefVariable(Arc::new(Variable::new())))
            })?;
        ctx.set_output_ref(0, found.0.clone());
        Ok(())
    })
}

fn assign(b: &KernelBuilder<'_>) -> Result<Built> {
    let validate = b.attrs().bool("validate_shape")?;
    Built::cheap(move |ctx| {
        let (variable, value) = (ctx.input_ref(0)?, ctx.take(1)?);
        variable.update(|old| {
            if let (true, Some(old)) = (validate, &*old)
                && old.shape() != value.shape()
            {
                return Err(Status::invalid_argument(format!(
                    "Assign requires shapes of both tensors to match. lhs shape= {} rhs shape= {}",
                    old.shape(),
                    value.shape()
                )));
            }
            *old = Some(value);
            Ok(())
        })?;
        ctx.forward(0, 0);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{device, floats, node, run_on};
    use downpour_tensor::{DType, PartialShape};

    #[test]
    fn a_variable_keeps_its_value_between_steps_and_says_when_it_has_none() {
        let d = device();
        let shape = PartialShape::checked([2]).unwrap();
        let t = ("T", DType::Float.into());
        let v = node(
            "v",
            "VariableV2",
            &[],
            &[("dtype", DType::Float.into()), ("shape", shape.into())],
        );
        let read = vec![
            v.clone(),
            node("read", "Identity", &["v"], std::slice::from_ref(&t)),
            node(
                "r",
                "_Retval",
                &["read"],
                &[t.clone(), ("index", 0i64.into())],
            ),
        ];
        let e = run_on(&d, read.clone(), vec![]).unwrap_err();
        assert!(
            e.message
                .starts_with("Attempting to use uninitialized value v\n\t [[{{node read}}]]")
        );
        let write = vec![
            v,
            node("x", "_Arg", &[], &[t.clone(), ("index", 0i64.into())]),
            node("a", "Assign", &["v", "x"], std::slice::from_ref(&t)),
        ];
        run_on(&d, write.clone(), vec![floats(&[1.0, 2.0])]).unwrap();
        let out = run_on(&d, read, vec![]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
        let e = run_on(&d, write, vec![floats(&[1.0])]).unwrap_err();
        assert!(
            e.message.contains("lhs shape= [2] rhs shape= [1]"),
            "{}",
            e.message
        );
    }
}
