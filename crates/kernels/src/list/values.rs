//! What can be done to a variant whatever it holds: its zeros, and the sum of two.

use super::map::TensorMap;
use super::optional::Optional;
use super::primitive::Primitive;
use super::shapes::{compatible, merge};
use super::tensor_list::TensorList;
use crate::types::NUMBERS;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor, Variant, VariantValue};
use std::any::Any;

pub(super) fn register(r: &mut Registry) {
    let variant: &[(&str, &[DType])] = &[("T", &[DType::Variant])];
    r.add_typed("ZerosLike", variant, |_| {
        Built::cheap(|ctx| {
            let input = ctx.input(0)?;
            let [variant] = input.as_variants()? else {
                return Err(not_scalar());
            };
            if !input.shape().is_scalar() {
                return Err(not_scalar());
            }
            let zeros = Tensor::variant(zeros_of(ctx, variant)?);
            ctx.set_output(0, zeros);
            Ok(())
        })
    });
    r.add_typed("AddN", variant, |_| {
        Built::cheap(|ctx| {
            let mut sum: Option<Variant> = None;
            for i in 0..ctx.num_inputs() {
                let input = ctx.input(i)?;
                let one = input.as_variants()?.first();
                let Some(one) = one.filter(|_| input.shape().is_scalar()) else {
                    return Err(Status::invalid_argument(format!(
                        "AddN of non-scalar Tensor with dtype=DT_VARIANT is not supported; inputs[{i} has shape: {}.",
                        input.shape()
                    )));
                };
                sum = Some(match sum {
                    None => one.clone(),
                    Some(sum) => sum_of(ctx, &sum, one)?,
                });
            }
            if let Some(sum) = sum {
                ctx.set_output(0, Tensor::variant(sum));
            }
            Ok(())
        })
    });
}

fn not_scalar() -> Status {
    Status::invalid_argument("ZerosLike non-scalar Tensor with dtype=DT_VARIANT is not supported.")
}

/// A variant that holds nothing: what an element of type variant is where none was set.
#[derive(Debug)]
struct Nothing;

impl VariantValue for Nothing {
    fn type_name(&self) -> &str {
        ""
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A tensor of zeros, empty strings or empty variants.
pub(super) fn zeros(ctx: &OpContext<'_>, dtype: DType, shape: &Shape) -> Result<Tensor> {
    if dtype != DType::Variant {
        return ctx.zeros(dtype, shape);
    }
    ctx.check_alloc(dtype, shape)?;
    let nothing = vec![Variant::new(Nothing); shape.num_elements()];
    Ok(Tensor::variants(nothing, shape.clone())?)
}

/// Zeros like `tensor`, for the elements of a value.
pub(super) fn zeros_like(ctx: &OpContext<'_>, tensor: &Tensor) -> Result<Tensor> {
    let dtype = tensor.dtype();
    match dtype {
        DType::Variant => {
            let zeros = tensor.as_variants()?.iter().map(|v| zeros_of(ctx, v));
            let zeros = zeros.collect::<Result<Vec<_>>>()?;
            Ok(Tensor::variants(zeros, tensor.shape().clone())?)
        }
        DType::Bool => ctx.zeros(dtype, tensor.shape()),
        _ if NUMBERS.contains(&dtype) => ctx.zeros(dtype, tensor.shape()),
        _ => Err(Status::invalid_argument(format!(
            "Trying to compute zeros_like for unsupported dtype {dtype}"
        ))),
    }
}

/// The sum of two elements of values.
pub(super) fn sum(ctx: &OpContext<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.shape() != b.shape() {
        return Err(Status::invalid_argument(format!(
            "Trying to add two tensors with incompatible element shapes. One is {} and the other is {}",
            a.shape(),
            b.shape()
        )));
    }
    let dtype = a.dtype();
    if dtype == DType::Variant {
        let pairs = a.as_variants()?.iter().zip(b.as_variants()?);
        let sums = pairs.map(|(a, b)| sum_of(ctx, a, b));
        let sums = sums.collect::<Result<Vec<_>>>()?;
        return Ok(Tensor::variants(sums, a.shape().clone())?);
    }
    if dtype != b.dtype() || !NUMBERS.contains(&dtype) {
        return Err(Status::invalid_argument(format!(
            "Trying to add unsupported dtype {}",
            dtype.number()
        )));
    }
    crate::math::sum(ctx, dtype, vec![a.clone(), b.clone()])
}

fn zeros_of(ctx: &OpContext<'_>, variant: &Variant) -> Result<Variant> {
    if let Some(list) = variant.downcast::<TensorList>() {
        let tensors = list
            .tensors
            .iter()
            .map(|t| t.as_ref().map(|t| zeros_like(ctx, t)).transpose());
        return Ok(Variant::new(TensorList {
            tensors: tensors.collect::<Result<_>>()?,
            ..list.with_no_tensors()
        }));
    }
    if variant.downcast::<TensorMap>().is_some() {
        return Ok(Variant::new(TensorMap::default()));
    }
    if let Some(Optional(components)) = variant.downcast::<Optional>() {
        let zeros = components.as_ref().map(|c| {
            let zeros = c.iter().map(|t| zeros_like(ctx, t));
            zeros.collect::<Result<Vec<_>>>()
        });
        return Ok(Variant::new(Optional(zeros.transpose()?)));
    }
    if let Some(number) = variant.downcast::<Primitive>() {
        return Ok(Variant::new(number.zero()));
    }
    Err(Status::internal(format!(
        "No unary variant unary_op function found for op ZEROS_LIKE Variant type_name: {} for device type: CPU",
        variant.0.type_name()
    )))
}

fn sum_of(ctx: &OpContext<'_>, a: &Variant, b: &Variant) -> Result<Variant> {
    match (a.downcast::<TensorList>(), b.downcast::<TensorList>()) {
        (Some(a), Some(b)) => return Ok(Variant::new(sum_lists(ctx, a, b)?)),
        (None, None) => {}
        _ => return Err(different(a, b)),
    }
    match (a.downcast::<TensorMap>(), b.downcast::<TensorMap>()) {
        (Some(a), Some(b)) => return Ok(Variant::new(a.sum(ctx, b)?)),
        (None, None) => {}
        _ => return Err(different(a, b)),
    }
    if let (Some(a), Some(b)) = (a.downcast::<Primitive>(), b.downcast::<Primitive>())
        && let Some(sum) = a.sum(b)
    {
        return Ok(Variant::new(sum));
    }
    match (a.downcast::<Optional>(), b.downcast::<Optional>()) {
        (Some(a), Some(b)) => Ok(Variant::new(a.sum(ctx, b)?)),
        (None, None) if a.0.type_name() == b.0.type_name() => Err(Status::internal(format!(
            "No binary variant binary_op function found for op ADD Variant type_name: '{}' for device type: CPU",
            a.0.type_name()
        ))),
        _ => Err(different(a, b)),
    }
}

fn different(a: &Variant, b: &Variant) -> Status {
    Status::internal(format!(
        "BinaryOpVariants: Variants a and b have different type ids.  Type names: '{}' vs. '{}'",
        a.0.type_name(),
        b.0.type_name()
    ))
}

fn sum_lists(ctx: &OpContext<'_>, a: &TensorList, b: &TensorList) -> Result<TensorList> {
    let refused = |what: &str, a: String, b: String| {
        Err(Status::invalid_argument(format!(
            "Trying to add two lists of tensors {what}. One is {a} and the other is {b}"
        )))
    };
    if a.dtype != b.dtype {
        return refused(
            "of different dtypes",
            a.dtype.to_string(),
            b.dtype.to_string(),
        );
    }
    if !compatible(&a.shape, &b.shape) {
        let (a, b) = (a.shape.to_string(), b.shape.to_string());
        return refused("with incompatible element shapes", a, b);
    }
    if a.tensors.len() != b.tensors.len() {
        let (a, b) = (a.tensors.len().to_string(), b.tensors.len().to_string());
        return refused("with different lengths", a, b);
    }
    let tensors = a.tensors.iter().zip(&b.tensors).map(|pair| match pair {
        (Some(a), Some(b)) => sum(ctx, a, b).map(Some),
        (a, b) => Ok(a.as_ref().or(b.as_ref()).cloned()),
    });
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    Ok(TensorList::new(
        a.dtype,
        merge(&a.shape, &b.shape)?,
        tensors,
    ))
}

impl TensorList {
    fn with_no_tensors(&self) -> TensorList {
        TensorList {
            dtype: self.dtype,
            shape: self.shape.clone(),
            max: self.max,
            tensors: Vec::new(),
        }
    }
}
