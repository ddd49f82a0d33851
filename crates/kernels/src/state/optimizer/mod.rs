//! Optimizer ops, `Apply…` and `SparseApply…`, by reference and by handle. An optimizer is a list
//! of checks, in TensorFlow's order, and one function from (variables, gradient) elements to new
//! variable elements; everything else is here.

mod adadelta;
mod adagrad;
mod adagrad_da;
mod adam;
mod check;
mod ftrl;
mod gradient_descent;
mod momentum;
mod rmsprop;
mod sign;
mod summed;

use super::number::Number;
use super::pass::{self, Repeats, Rows};
use super::resource_variable;
use super::variable_access::{Locked, VariableAccess};
use check::Check;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Tensor};

pub(super) fn register(r: &mut Registry) {
    gradient_descent::register(r);
    momentum::register(r);
    adagrad::register(r);
    adagrad_da::register(r);
    adadelta::register(r);
    adam::register(r);
    rmsprop::register(r);
    ftrl::register(r);
    sign::register(r);
}

/// Registers the kernel `$pass` with `$checks` for some ops (both forms of one optimizer) and a
/// group of types; `sparse` ops also have an index type.
macro_rules! add {
    ($r:expr, [$($op:literal),+ $(,)?], numbers $kind:ident, $checks:expr, $pass:ident) => {
        $crate::state::optimizer::add!(@kind $kind, $r, [$($op),+],
            [Half, BFloat16, Float, Double, Complex64, Complex128],
            [f32, f64, ::half::f16, ::half::bf16,
             ::num_complex::Complex32, ::num_complex::Complex64],
            $checks, $pass)
    };
    ($r:expr, [$($op:literal),+ $(,)?], numbers_but_bfloat16 $kind:ident, $checks:expr, $pass:ident) => {
        $crate::state::optimizer::add!(@kind $kind, $r, [$($op),+],
            [Half, Float, Double, Complex64, Complex128],
            [f32, f64, ::half::f16, ::num_complex::Complex32, ::num_complex::Complex64],
            $checks, $pass)
    };
    ($r:expr, [$($op:literal),+ $(,)?], floats $kind:ident, $checks:expr, $pass:ident) => {
        $crate::state::optimizer::add!(@kind $kind, $r, [$($op),+],
            [Half, BFloat16, Float, Double], [f32, f64, ::half::f16, ::half::bf16],
            $checks, $pass)
    };
    ($r:expr, [$($op:literal),+ $(,)?], floats_but_bfloat16 $kind:ident, $checks:expr, $pass:ident) => {
        $crate::state::optimizer::add!(@kind $kind, $r, [$($op),+],
            [Half, Float, Double], [f32, f64, ::half::f16], $checks, $pass)
    };
    ($r:expr, [$($op:literal),+ $(,)?], wide $kind:ident, $checks:expr, $pass:ident) => {
        $crate::state::optimizer::add!(@kind $kind, $r, [$($op),+],
            [Float, Double], [f32, f64], $checks, $pass)
    };
    (@kind dense, $r:expr, [$($op:literal),+], [$($d:ident),+], $($rest:tt)+) => {
        $crate::state::optimizer::add!(@go $r, [$($op),+],
            &[("T", &[$(::downpour_tensor::DType::$d),+])], $($rest)+)
    };
    (@kind sparse, $r:expr, [$($op:literal),+], [$($d:ident),+], [$($t:ty),+], $checks:expr, $pass:ident) => {
        $crate::state::optimizer::add!(@go $r, [$($op),+],
            &[("T", &[$(::downpour_tensor::DType::$d),+]), ("Tindices", $crate::types::INDEX)],
            [$($t),+], $checks, $pass);
        for op in [$($op),+] {
            // Sums of narrower types are rounded otherwise than by adding in pairs.
            $r.add_shortcut(op, |around| match around.builder().attrs().dtype("T").ok()? {
                ::downpour_tensor::DType::Float => {
                    $crate::state::optimizer::summed::find(around, $checks, $pass::<f32>)
                }
                ::downpour_tensor::DType::Double => {
                    $crate::state::optimizer::summed::find(around, $checks, $pass::<f64>)
                }
                _ => None,
            });
        }
    };
    (@go $r:expr, [$($op:literal),+], $types:expr, [$($t:ty),+], $checks:expr, $pass:ident) => {
        for op in [$($op),+] {
            $r.add_typed(op, $types, |b| {
                let dtype = b.attrs().dtype("T")?;
                $crate::types::with_type!(dtype, T in [$($t),+]
                    => $crate::state::optimizer::optimizer(b, $checks, $pass::<T>))
            });
        }
    };
}
use add;

/// Where an optimizer op's inputs are, and its flags.
struct Layout {
    access: VariableAccess,
    /// The first inputs are the variables.
    variables: usize,
    /// Names of all inputs.
    names: Vec<String>,
    grad: usize,
    indices: Option<usize>,
    dtype: DType,
    nesterov: bool,
    update_slots: bool,
    multiply_linear_by_lr: bool,
}

impl Layout {
    fn new(b: &KernelBuilder<'_>) -> Result<Layout> {
        let access = VariableAccess::of(b);
        let names: Vec<String> = b.node.op.inputs.iter().map(|a| a.name.clone()).collect();
        let variables = b
            .node
            .input_types
            .iter()
            .take_while(|(t, is_ref)| *is_ref || *t == DType::Resource)
            .count();
        let position = |wanted: &[&str]| names.iter().position(|n| wanted.contains(&n.as_str()));
        let flag = |name: &str, otherwise: bool| match b.attrs().find(name) {
            Some(_) => b.attrs().bool(name),
            None => Ok(otherwise),
        };
        Ok(Layout {
            access,
            variables,
            grad: position(&["grad", "delta"])
                .ok_or_else(|| Status::internal("an optimizer op without a gradient"))?,
            indices: position(&["indices"]),
            dtype: b.attrs().dtype("T")?,
            nesterov: flag("use_nesterov", false)?,
            update_slots: flag("update_slots", true)?,
            multiply_linear_by_lr: flag("multiply_linear_by_lr", false)?,
            names,
        })
    }
}

/// One run of an optimizer op: its variables, locked, and its other inputs.
struct Application<'a> {
    layout: &'a Layout,
    ctx: &'a OpContext<'a>,
    tensors: Vec<&'a mut Tensor>,
    /// Row numbers of a sparse gradient.
    rows: Vec<usize>,
    /// What is wrong with the index after those.
    bad_row: Option<Status>,
    repeats: Repeats,
}

/// The arrays of a pass: the variables to change, the gradient, and for a sparse one its rows.
type Arrays<'p, T, const N: usize> = ([&'p mut [T]; N], &'p [T], Option<Rows<'p>>);

impl<'a> Application<'a> {
    fn input(&self, name: &str) -> Result<&'a Tensor> {
        let i = self.layout.names.iter().position(|n| n == name);
        self.ctx.input(
            i.ok_or_else(|| Status::internal(format!("{} has no input {name}", self.ctx.name())))?,
        )
    }

    /// The scalar input `name`.
    fn scalar<T: Element>(&self, name: &str) -> Result<T> {
        Ok(self.input(name)?.scalar_value()?)
    }

    fn grad(&self) -> Result<&'a Tensor> {
        self.ctx.input(self.layout.grad)
    }

    /// Everything a pass over `N` variables needs.
    fn arrays<T: Element, const N: usize>(&mut self) -> Result<Arrays<'_, T, N>> {
        let grad = self.grad()?.as_slice::<T>()?;
        let inner = self
            .tensors
            .first()
            .and_then(|t| t.dims().get(1..))
            .map_or(0, |d| d.iter().product());
        let len = self.tensors.first().map_or(0, |t| t.num_elements());
        let mut slices = self.tensors.iter_mut();
        let mut next = || -> Result<&mut [T]> {
            let t = slices
                .next()
                .ok_or_else(|| Status::internal("an optimizer op lacks a variable"))?;
            if t.num_elements() != len {
                return Err(Status::invalid_argument(
                    "the variables of an optimizer do not have the same size",
                ));
            }
            Ok(t.make_mut::<T>()?)
        };
        let mut arrays: [&mut [T]; N] = std::array::from_fn(|_| Default::default());
        for array in &mut arrays {
            *array = next()?;
        }
        let rows = self.layout.indices.map(|_| Rows {
            rows: &self.rows,
            inner,
        });
        Ok((arrays, grad, rows))
    }
}

macro_rules! runs {
    ($n:literal, $run:ident, $dense:ident, $sparse:ident) => {
        impl Application<'_> {
            /// Runs `step` over all elements, or over the rows of a sparse gradient.
            fn $run<T: Number>(
                &mut self,
                step: impl Fn([T; $n], T) -> [T; $n] + Sync + Copy,
            ) -> Result<()> {
                let repeats = self.repeats;
                match self.arrays::<T, $n>()? {
                    (arrays, grad, None) => pass::$dense(arrays, grad, step),
                    (arrays, grad, Some(rows)) => {
                        pass::$sparse(arrays, (&rows, repeats), grad, step)
                    }
                }
                Ok(())
            }
        }
    };
}
runs!(1, run1, dense1, sparse1);
runs!(2, run2, dense2, sparse2);
runs!(3, run3, dense3, sparse3);
runs!(4, run4, dense4, sparse4);

/// A pass over one application.
type Pass = fn(&mut Application<'_>) -> Result<()>;

/// An optimizer op.
struct Optimizer {
    layout: Layout,
    checks: &'static [Check],
    pass: Pass,
}

impl Optimizer {
    /// Updates the variables, all inputs being where the op has them. With sums of repeats it does nothing
    /// and says `false` if something is wrong: what, the ops it stands for will say.
    fn apply(&self, ctx: &mut OpContext<'_>, repeats: Repeats) -> Result<bool> {
        let layout = &self.layout;
        let variables = (0..layout.variables)
            .map(|i| match layout.access {
                VariableAccess::Ref => ctx.input_ref(i),
                VariableAccess::Resource => resource_variable::find(ctx, ctx.handle(i)?)
                    .ok_or_else(|| Status::internal("Invalid variable reference.")),
            })
            .collect::<Result<Vec<_>>>()?;
        let mut locked = Locked::new(ctx, &variables)?;
        let mut application = Application {
            layout,
            ctx,
            tensors: locked.tensors(),
            rows: Vec::new(),
            bad_row: None,
            repeats,
        };
        let checked = check::run(self.checks, &mut application);
        if repeats == Repeats::Summed && (checked.is_err() || application.bad_row.is_some()) {
            return Ok(false);
        }
        checked?;
        (self.pass)(&mut application)?;
        if let Some(error) = application.bad_row.take() {
            return Err(error);
        }
        drop(application);
        for variable in &variables {
            variable.note_update(ctx.env());
        }
        drop(locked);
        layout.access.finish(ctx);
        Ok(true)
    }
}

/// The kernel of an optimizer op.
fn optimizer(b: &KernelBuilder<'_>, checks: &'static [Check], pass: Pass) -> Result<Built> {
    let layout = Layout::new(b)?;
    let optimizer = Optimizer {
        layout,
        checks,
        pass,
    };
    Built::costly(move |ctx| optimizer.apply(ctx, Repeats::InTurn).map(drop))
}

#[cfg(test)]
mod tests;
