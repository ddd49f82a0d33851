//! How ops that only move elements see a tensor: as a slice of units. A unit is a whole element
//! of a string, resource or variant tensor, or an unsigned integer as wide as a plain element, so
//! one compiled loop serves every element type of that width.

use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, parallel_ranges};
use downpour_tensor::{Buffer, DType, ResourceHandle, Shape, Tensor, Variant};
use num_complex::Complex64;

/// What a data-movement loop is generic over.
pub(crate) trait Unit: Clone + Send + Sync + 'static {
    /// The tensor's elements.
    fn view(tensor: &Tensor) -> Result<&[Self]>;

    /// A tensor of these elements.
    fn tensor(dtype: DType, values: Vec<Self>, shape: Shape) -> Result<Tensor>;

    /// Zero, the empty string, the nameless handle; variants have none.
    fn zero() -> Result<Self>;

    /// `n` zeros.
    fn zeros(n: usize) -> Result<Vec<Self>> {
        Ok(vec![Self::zero()?; n])
    }

    /// Appends `a` where the condition holds and `b` elsewhere; either may be one element that stands for all.
    fn mix(out: &mut Vec<Self>, cond: &[bool], a: &[Self], b: &[Self]) {
        let at = |x: &[Self], i: usize| if x.len() == 1 { 0 } else { i };
        let pick = |(i, &c): (usize, &bool)| match c {
            true => a[at(a, i)].clone(),
            false => b[at(b, i)].clone(),
        };
        out.extend(cond.iter().enumerate().map(pick));
    }
}

/// Elements worth a thread of their own where one of two is taken.
const MIX_GRAIN: usize = 32 << 10;

macro_rules! plain_units {
    ($($t:ty),*) => {
        $(impl Unit for $t {
            fn view(tensor: &Tensor) -> Result<&[Self]> {
                tensor.buffer().and_then(Buffer::as_slice).ok_or_else(|| wrong_kind(tensor))
            }

            fn tensor(dtype: DType, values: Vec<Self>, shape: Shape) -> Result<Tensor> {
                Ok(Tensor::from_buffer(dtype, shape, Buffer::from_vec(values))?)
            }

            fn zero() -> Result<Self> {
                Ok(Self::default())
            }

            fn mix(out: &mut Vec<Self>, cond: &[bool], a: &[Self], b: &[Self]) {
                let start = out.len();
                out.resize(start + cond.len(), Self::default());
                parallel_ranges(&mut out[start..], 1, MIX_GRAIN, |at, out| {
                    let cond = &cond[at..at + out.len()];
                    // Both are read, whatever the condition says: so the loop has no branch.
                    match (a, b) {
                        (&[a], &[b]) => {
                            for (o, &c) in out.iter_mut().zip(cond) {
                                *o = if c { a } else { b };
                            }
                        }
                        (&[a], b) => {
                            for ((o, &c), &b) in out.iter_mut().zip(cond).zip(&b[at..]) {
                                *o = if c { a } else { b };
                            }
                        }
                        (a, &[b]) => {
                            for ((o, &c), &a) in out.iter_mut().zip(cond).zip(&a[at..]) {
                                *o = if c { a } else { b };
                            }
                        }
                        (a, b) => {
                            let both = a[at..].iter().zip(&b[at..]);
                            for ((o, &c), (&a, &b)) in out.iter_mut().zip(cond).zip(both) {
                                *o = if c { a } else { b };
                            }
                        }
                    }
                });
            }
        })*
    };
}

// Complex64 stands for any sixteen bytes.
plain_units!(u8, u16, u32, u64, Complex64);

fn wrong_kind(tensor: &Tensor) -> Status {
    Status::internal(format!(
        "a tensor of type {} seen as another kind",
        tensor.dtype()
    ))
}

impl Unit for Bytes {
    fn view(tensor: &Tensor) -> Result<&[Self]> {
        Ok(tensor.as_strings()?)
    }

    fn tensor(_: DType, values: Vec<Self>, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::strings(values, shape)?)
    }

    fn zero() -> Result<Self> {
        Ok(Bytes::new())
    }
}

impl Unit for ResourceHandle {
    fn view(tensor: &Tensor) -> Result<&[Self]> {
        Ok(tensor.as_resources()?)
    }

    fn tensor(_: DType, values: Vec<Self>, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::resources(values, shape)?)
    }

    fn zero() -> Result<Self> {
        Ok(ResourceHandle::default())
    }
}

impl Unit for Variant {
    fn view(tensor: &Tensor) -> Result<&[Self]> {
        Ok(tensor.as_variants()?)
    }

    fn tensor(_: DType, values: Vec<Self>, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::variants(values, shape)?)
    }

    fn zero() -> Result<Self> {
        Err(Status::unimplemented(
            "a variant element has no zero value to fill with",
        ))
    }

    fn zeros(n: usize) -> Result<Vec<Self>> {
        if n == 0 {
            Ok(Vec::new())
        } else {
            Self::zero().map(|v| vec![v; n])
        }
    }
}

/// Room for an output of `shape`, within the memory budget.
pub(crate) fn room<U: Unit>(ctx: &OpContext<'_>, dtype: DType, shape: &Shape) -> Result<Vec<U>> {
    ctx.check_alloc(dtype, shape)?;
    Ok(Vec::with_capacity(shape.num_elements()))
}

/// Runs `$body` with `$U` standing for the unit type of `$dtype`.
macro_rules! with_unit {
    ($dtype:expr, $U:ident => $body:expr) => {{
        let dtype: ::downpour_tensor::DType = $dtype;
        match dtype.size() {
            Some(1) => {
                type $U = u8;
                $body
            }
            Some(2) => {
                type $U = u16;
                $body
            }
            Some(4) => {
                type $U = u32;
                $body
            }
            Some(8) => {
                type $U = u64;
                $body
            }
            Some(_) => {
                type $U = ::num_complex::Complex64;
                $body
            }
            None => match dtype {
                ::downpour_tensor::DType::String => {
                    type $U = ::bytes::Bytes;
                    $body
                }
                ::downpour_tensor::DType::Resource => {
                    type $U = ::downpour_tensor::ResourceHandle;
                    $body
                }
                _ => {
                    type $U = ::downpour_tensor::Variant;
                    $body
                }
            },
        }
    }};
}
pub(crate) use with_unit;

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(t: &Tensor) -> Result<Tensor> {
        with_unit!(t.dtype(), U => {
            let values = U::view(t)?.to_vec();
            U::tensor(t.dtype(), values, t.shape().clone())
        })
    }

    #[test]
    fn every_kind_of_element_survives_the_trip() {
        let t = Tensor::vector(vec![1.5f32, f32::NAN]);
        let back = round_trip(&t).unwrap();
        assert_eq!(back.dtype(), DType::Float);
        assert_eq!(
            back.buffer().unwrap().as_bytes(),
            t.buffer().unwrap().as_bytes()
        );
        let t = Tensor::vector(vec![Complex64::new(1.0, -2.0)]);
        assert_eq!(
            round_trip(&t).unwrap().as_slice::<Complex64>().unwrap(),
            [Complex64::new(1.0, -2.0)]
        );
        let t = Tensor::string("abc");
        assert_eq!(round_trip(&t).unwrap().as_strings().unwrap(), ["abc"]);
        let t = Tensor::resource(ResourceHandle {
            name: "r".into(),
            ..Default::default()
        });
        assert_eq!(round_trip(&t).unwrap().as_resources().unwrap()[0].name, "r");
        assert!(Variant::zeros(1).is_err() && Variant::zeros(0).unwrap().is_empty());
    }
}
