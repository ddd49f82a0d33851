//! The tensor list: a value that holds tensors of one type, some perhaps not there yet. Ops give a
//! new list; one that nobody else holds is changed in place.

use super::shapes::merge;
use super::travel;
use super::values::zeros;
use crate::args;
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, OpContext};
use downpour_tensor::{
    DType, Encoded, PartialShape, Shape, ShapeError, Tensor, Variant, VariantValue,
};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A list of tensors.
#[derive(Clone)]
pub(super) struct TensorList {
    pub(super) dtype: DType,
    /// What every element's shape agrees with.
    pub(super) shape: PartialShape,
    /// Most elements it may have; -1 if there is no limit.
    pub(super) max: i64,
    /// The elements; `None` where one was only reserved.
    pub(super) tensors: Vec<Option<Tensor>>,
}

impl fmt::Debug for TensorList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TensorList")
    }
}

impl VariantValue for TensorList {
    fn type_name(&self) -> &str {
        "tensorflow::TensorList"
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn encoded(&self) -> Option<Encoded> {
        Some(travel::list(self))
    }
}

/// A variant as errors show it.
pub(super) fn shown(variant: Option<&Variant>) -> String {
    match variant {
        Some(v) => format!("Variant<type: {} value: {:?}>", v.0.type_name(), v.0),
        None => "Variant<type: <unspecified> value: <unspecified>>".into(),
    }
}

impl TensorList {
    /// An empty list without a limit.
    pub(super) fn new(dtype: DType, shape: PartialShape, tensors: Vec<Option<Tensor>>) -> Self {
        TensorList {
            dtype,
            shape,
            max: -1,
            tensors,
        }
    }

    /// The list in the scalar input `i`.
    pub(super) fn of<'c>(ctx: &'c OpContext<'_>, i: usize) -> Result<&'c TensorList> {
        let input = ctx.input(i)?;
        check_scalar(input)?;
        let variant = input.as_variants()?.first();
        variant
            .and_then(Variant::downcast)
            .ok_or_else(|| not_a_list(variant))
    }

    /// The list in the scalar input `i`, for changing: copied only if someone else holds it.
    pub(super) fn take(ctx: &mut OpContext<'_>, i: usize) -> Result<TensorList> {
        check_scalar(ctx.input(i)?)?;
        let mut input = ctx.take(i)?;
        TensorList::out_of(input.make_mut_variants()?.first_mut())
    }

    /// The list in `variant`, which is left empty if nobody else holds it.
    pub(super) fn out_of(variant: Option<&mut Variant>) -> Result<TensorList> {
        let Some(variant) = variant else {
            return Err(not_a_list(None));
        };
        if let Some(value) = Arc::get_mut(&mut variant.0) {
            let value: &mut dyn Any = value;
            if let Some(list) = value.downcast_mut::<TensorList>() {
                let empty = TensorList::new(list.dtype, PartialShape::unknown(), Vec::new());
                return Ok(std::mem::replace(list, empty));
            }
        }
        let list: Option<&TensorList> = variant.downcast();
        list.cloned().ok_or_else(|| not_a_list(Some(variant)))
    }

    /// The list as a scalar.
    pub(super) fn into_tensor(self) -> Tensor {
        Tensor::variant(Variant::new(self))
    }

    /// Refuses an op that is declared for another type of elements.
    pub(super) fn check_type(&self, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "Invalid data types; op elements {dtype} but list elements {}",
            self.dtype
        )))
    }

    /// What the list and the shape in input `i` say together.
    pub(super) fn element_shape(&self, ctx: &OpContext<'_>, i: usize) -> Result<PartialShape> {
        merge(&given_shape(ctx.input(i)?)?, &self.shape)
    }

    /// `shape` and what the elements that are there say together.
    pub(super) fn refined(&self, shape: PartialShape) -> Result<PartialShape> {
        self.tensors
            .iter()
            .flatten()
            .try_fold(shape, |known, t| merge(&known, &t.shape().into()))
    }

    /// The tensors of `chosen`, zeros of `shape` where one is not there.
    pub(super) fn filled<'t>(
        ctx: &OpContext<'_>,
        dtype: DType,
        shape: &Shape,
        chosen: impl IntoIterator<Item = Option<&'t Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let mut blank = None;
        chosen
            .into_iter()
            .map(|tensor| match (tensor, &blank) {
                (Some(tensor), _) => Ok(tensor.clone()),
                (None, Some(blank)) => Ok(Tensor::clone(blank)),
                (None, None) => {
                    let made = zeros(ctx, dtype, shape)?;
                    Ok(blank.insert(made).clone())
                }
            })
            .collect()
    }
}

fn check_scalar(input: &Tensor) -> Result<()> {
    if input.shape().is_scalar() {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "Input list must be a scalar saw: {}",
        input.shape()
    )))
}

fn not_a_list(variant: Option<&Variant>) -> Status {
    Status::invalid_argument(format!(
        "Input handle is not a list. Saw: '{}'",
        shown(variant)
    ))
}

/// The shape that a vector of dimensions (-1 for unknown) or the scalar -1 (nothing known) gives.
pub(super) fn given_shape(tensor: &Tensor) -> Result<PartialShape> {
    let dims = args::ints(tensor)?;
    match tensor.rank() {
        0 if dims == [-1] => Ok(PartialShape::unknown()),
        0 => Err(Status::invalid_argument(
            "The only valid scalar shape tensor is the fully unknown shape specified as -1.",
        )),
        1 => PartialShape::checked(dims).map_err(|e| {
            Status::invalid_argument(match e {
                ShapeError::Negative(_, d) => format!("Dimension {d} must be >= -1"),
                other => other.to_string(),
            })
        }),
        rank => Err(Status::invalid_argument(format!(
            "Shape must be at most rank 1 but is rank {rank}"
        ))),
    }
}

/// Refuses a number of elements whose places alone are over the memory budget.
pub(super) fn check_length(device: &Device, length: usize) -> Result<()> {
    let bytes = length.saturating_mul(size_of::<Option<Tensor>>());
    device.check_alloc(DType::UInt8, &Shape::from([bytes]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::floats;

    #[test]
    fn a_list_nobody_else_holds_is_moved_out() {
        let list = || {
            let tensors = vec![Some(floats(&[1.0]))];
            TensorList::new(DType::Float, PartialShape::unknown(), tensors).into_tensor()
        };
        let mut alone = list();
        let at = |t: &Tensor| {
            let v = &t.as_variants().unwrap()[0];
            v.downcast::<TensorList>().unwrap().tensors.as_ptr()
        };
        let before = at(&alone);
        let moved = TensorList::out_of(alone.make_mut_variants().unwrap().first_mut()).unwrap();
        assert_eq!(moved.tensors.as_ptr(), before);

        let mut shared = list();
        let other = shared.clone();
        let copy = TensorList::out_of(shared.make_mut_variants().unwrap().first_mut()).unwrap();
        assert_ne!(copy.tensors.as_ptr(), at(&other));
        assert_eq!(copy.tensors.len(), 1);
    }

    #[test]
    fn shapes_are_given_as_vectors_or_as_minus_one() {
        let unknown = given_shape(&Tensor::scalar(-1i32)).unwrap();
        assert_eq!(unknown, PartialShape::unknown());
        let some = given_shape(&Tensor::vector(vec![-1i64, 3])).unwrap();
        assert_eq!(some.to_string(), "[?,3]");
        let e = given_shape(&Tensor::vector(vec![-2i32])).unwrap_err();
        assert_eq!(e.message, "Dimension -2 must be >= -1");
    }
}
