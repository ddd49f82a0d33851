//! Variables by reference: `VariableV2`, `Assign`, `IsVariableInitialized`.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry, Resource, Variable};
use downpour_tensor::{DType, Shape, Tensor};
use std::sync::Arc;

/// Types `Assign` has a kernel for.
const ASSIGNED: &[DType] = &[
    DType::Half,
    DType::BFloat16,
    DType::Float,
    DType::Double,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Complex64,
    DType::Complex128,
    DType::Bool,
    DType::String,
    DType::Resource,
    DType::Variant,
    DType::QInt8,
    DType::QUInt8,
    DType::QUInt16,
    DType::QInt32,
];

pub(super) fn register(r: &mut Registry) {
    r.add("VariableV2", variable);
    r.add("Variable", variable);
    r.add_typed("Assign", &[("T", ASSIGNED)], assign);
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
pub(crate) struct RefVariable(pub(crate) Arc<Variable>);

impl Resource for RefVariable {
    fn type_name(&self) -> &'static str {
        "N10tensorflow9LegacyVarE"
    }

    fn variable(&self) -> Option<&Variable> {
        Some(&self.0)
    }
}

/// The attribute `shape` of a variable's node: of unknown rank means a scalar.
pub(super) fn declared_shape(b: &KernelBuilder<'_>) -> Result<Shape> {
    let shape = b.attrs().shape("shape")?;
    match (shape.to_shape(), shape.rank()) {
        (Some(shape), _) => Ok(shape),
        (None, None) => Ok(Shape::scalar()),
        _ => Err(Status::invalid_argument(format!(
            "Shape {shape} is not fully defined"
        ))),
    }
}

fn variable(b: &KernelBuilder<'_>) -> Result<Built> {
    let (container, name) = b.resource_name()?;
    let (dtype, shape) = (b.attrs().dtype("dtype")?, declared_shape(b)?);
    Built::cheap(move |ctx| {
        let found = ctx
            .device()
            .resources
            .find_or_create(&container, &name, || {
                Ok(RefVariable(Arc::new(Variable::declared(
                    dtype,
                    shape.clone(),
                ))))
            })?;
        if let Some((other, _)) = found.0.declaration()
            && *other != dtype
        {
            return Err(Status::internal(format!(
                "Output 0 of type {other}_ref does not match declared output type {dtype}_ref for node {{{{node {}}}}}",
                ctx.name()
            )));
        }
        ctx.set_output_ref(0, found.0.clone());
        Ok(())
    })
}

fn assign(b: &KernelBuilder<'_>) -> Result<Built> {
    let validate = b.attrs().bool("validate_shape")?;
    Built::cheap(move |ctx| {
        let (variable, value) = (ctx.input_ref(0)?, ctx.take(1)?.kept());
        variable.update(|old| {
            let declared = variable.declaration().map(|(_, shape)| shape);
            let shape = old.as_ref().map(Tensor::shape).or(declared);
            if let (true, Some(shape)) = (validate, shape)
                && shape != value.shape()
            {
                return Err(Status::invalid_argument(format!(
                    "Assign requires shapes of both tensors to match. lhs shape= {shape} rhs shape= {}",
                    value.shape()
                )));
            }
            variable.note_update(ctx.env());
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

    fn variable(name: &str, dtype: DType, dims: &[i64]) -> downpour_graph::NodeDef {
        let shape = PartialShape::checked(dims.iter().copied()).unwrap();
        let shared = ("shared_name", "shared".into());
        node(
            name,
            "VariableV2",
            &[],
            &[("dtype", dtype.into()), ("shape", shape.into()), shared],
        )
    }

    #[test]
    fn a_declared_shape_binds_the_first_assignment_and_a_type_everyone() {
        let d = device();
        let t = ("T", DType::Float.into());
        let arg = node("x", "_Arg", &[], &[t.clone(), ("index", 0i64.into())]);
        let write = |v| {
            vec![
                v,
                arg.clone(),
                node("a", "Assign", &["v", "x"], std::slice::from_ref(&t)),
            ]
        };
        let e = run_on(
            &d,
            write(variable("v", DType::Float, &[2])),
            vec![floats(&[1.0])],
        );
        let e = e.unwrap_err().message;
        assert!(e.contains("lhs shape= [2] rhs shape= [1]"), "{e}");
        let other = vec![variable("w", DType::Int32, &[2])];
        let e = run_on(&d, other, vec![]).unwrap_err().message;
        assert!(
            e.starts_with("Output 0 of type float_ref does not match declared output type int32_ref for node {{node w}}"),
            "{e}"
        );
        let partial = vec![variable("v", DType::Float, &[-1, 2])];
        let e = run_on(&d, partial, vec![]).unwrap_err().message;
        assert!(e.starts_with("Shape [?,2] is not fully defined"), "{e}");
    }

    #[test]
    fn a_variable_without_elements_needs_no_assignment() {
        let nodes = vec![
            variable("v", DType::Float, &[0]),
            node(
                "i",
                "IsVariableInitialized",
                &["v"],
                &[("dtype", DType::Float.into())],
            ),
            node(
                "r",
                "_Retval",
                &["i"],
                &[("T", DType::Bool.into()), ("index", 0i64.into())],
            ),
        ];
        let out = run_on(&device(), nodes, vec![]).unwrap();
        assert_eq!(out[0].as_slice::<bool>().unwrap(), [true]);
    }
}
