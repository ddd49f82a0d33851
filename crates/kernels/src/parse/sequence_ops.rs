//! `ParseSequenceExample` and `ParseSequenceExampleV2`: keys from attributes or from inputs; the
//! work is in [`super::sequence`].

use super::config::{Dense, ragged, sparse};
use super::invalid;
use super::sequence::{Examples, Outputs, Wanted, parse};
use bytes::Bytes;
use downpour_graph::{Attrs, Result};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, PartialShape, Shape, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add("ParseSequenceExample", parse_v1);
    r.add("ParseSequenceExampleV2", parse_v2);
}

/// Shapes of an attribute that must be known in full.
pub(super) fn full_shapes(attrs: &Attrs, name: &str) -> Result<Vec<Shape>> {
    let full = |shape: &PartialShape| match shape.to_shape() {
        Some(shape) => Ok(shape),
        None => invalid(format!(
            "Shape {shape} of attr '{name}' is not fully defined"
        )),
    };
    attrs.shapes(name)?.iter().map(full).collect()
}

/// Types and shapes of the context or of the feature lists.
struct Types {
    dense: Vec<DType>,
    shapes: Vec<Shape>,
    sparse: Vec<DType>,
    ragged: Vec<DType>,
    splits: Vec<DType>,
}

impl Types {
    fn parse(attrs: &Attrs, part: &str, dense: &str) -> Result<Types> {
        let optional = |name: String| match attrs.find(&name) {
            Some(_) => attrs.dtypes(&name).map(<[DType]>::to_vec),
            None => Ok(Vec::new()),
        };
        Ok(Types {
            dense: attrs.dtypes(dense)?.to_vec(),
            shapes: full_shapes(attrs, &format!("{part}_dense_shapes"))?,
            sparse: attrs.dtypes(&format!("{part}_sparse_types"))?.to_vec(),
            ragged: optional(format!("{part}_ragged_value_types"))?,
            splits: optional(format!("{part}_ragged_split_types"))?,
        })
    }

    fn wanted(
        &self,
        keys: &Keys<'_>,
        defaults: &[Tensor],
        missing: impl Fn(usize, &Bytes) -> bool,
    ) -> Wanted {
        let dense = (keys
            .dense
            .iter()
            .zip(&self.dense)
            .zip(&self.shapes)
            .zip(defaults))
        .enumerate();
        Wanted {
            dense: dense
                .map(|(d, (((key, dtype), shape), default))| Dense {
                    key: key.clone(),
                    dtype: *dtype,
                    shape: PartialShape::from(shape),
                    default: default.clone(),
                    variable: missing(d, key),
                    stride: shape.num_elements(),
                })
                .collect(),
            sparse: sparse(keys.sparse, &self.sparse),
            ragged: ragged(keys.ragged, &self.ragged, &self.splits),
        }
    }
}

/// Keys of the context or of the feature lists.
#[derive(Clone, Copy)]
struct Keys<'a> {
    sparse: &'a [Bytes],
    dense: &'a [Bytes],
    ragged: &'a [Bytes],
}

/// The checks both ops make, then the examples.
fn run(
    ctx: &mut OpContext<'_>,
    types: (&Types, &Types),
    keys: (Keys<'_>, Keys<'_>),
    first_default: usize,
    missing: impl Fn(usize, &Bytes) -> bool,
) -> Result<(Outputs, Outputs)> {
    let (context, lists) = types;
    let defaults = ctx.inputs(first_default..first_default + context.dense.len())?;
    for (d, default) in defaults.iter().enumerate() {
        if default.num_elements() == 0 {
            continue;
        }
        if default.shape() != &context.shapes[d] {
            return invalid(format!(
                "default_value[{d}].shape() == {} != context_dense_shapes[{d}] == {}",
                default.shape(),
                context.shapes[d]
            ));
        }
        if default.dtype() != context.dense[d] {
            return invalid(format!(
                "context_dense_defaults[{d}].dtype() == {} != context_dense_types[{d}] == {}",
                default.dtype(),
                context.dense[d]
            ));
        }
    }
    let defaults: Vec<Tensor> = defaults.into_iter().cloned().collect();
    let empty = vec![Tensor::vector(Vec::<f32>::new()); lists.dense.len()];
    let (serialized, names) = (ctx.input(0)?, ctx.input(1)?);
    let examples = Examples {
        serialized: serialized.as_strings()?,
        names: names.as_strings()?,
        batch: serialized.rank() == 1,
    };
    parse(
        ctx.device(),
        &examples,
        &context.wanted(&keys.0, &defaults, |_, _| false),
        &lists.wanted(&keys.1, &empty, missing),
    )
}

fn check_serialized(ctx: &OpContext<'_>) -> Result<()> {
    let serialized = ctx.input(0)?;
    if serialized.rank() > 1 {
        return invalid(format!(
            "Expected serialized to be a scalar or vector, got shape: {}",
            serialized.shape()
        ));
    }
    Ok(())
}

/// The outputs in the order of the signatures.
fn set_outputs(ctx: &mut OpContext<'_>, context: Outputs, lists: Outputs, with_ragged: bool) {
    let mut out = Vec::new();
    let part = |parts: &[[Tensor; 3]], i: usize| -> Vec<Tensor> {
        parts.iter().map(|p| p[i].clone()).collect()
    };
    for i in 0..3 {
        out.extend(part(&context.sparse, i));
    }
    out.extend(context.dense);
    if with_ragged {
        out.extend(part(&context.ragged, 0));
        out.extend(part(&context.ragged, 1));
    }
    for i in 0..3 {
        out.extend(part(&lists.sparse, i));
    }
    out.extend(lists.dense);
    out.extend(lists.lengths);
    if with_ragged {
        out.extend(part(&lists.ragged, 0));
        out.extend(part(&lists.ragged, 2));
        out.extend(part(&lists.ragged, 1));
    }
    for (i, tensor) in out.into_iter().enumerate() {
        ctx.set_output(i, tensor);
    }
}

fn parse_v1(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let strings = |name: &str| attrs.byte_strings(name).map(<[Bytes]>::to_vec);
    let missing = strings("feature_list_dense_missing_assumed_empty")?;
    let context = Types::parse(attrs, "context", "Tcontext_dense")?;
    let lists = Types::parse(attrs, "feature_list", "feature_list_dense_types")?;
    let (context_sparse, context_dense) = (
        strings("context_sparse_keys")?,
        strings("context_dense_keys")?,
    );
    let (list_sparse, list_dense) = (
        strings("feature_list_sparse_keys")?,
        strings("feature_list_dense_keys")?,
    );
    for (what, keys, types) in [
        ("context_sparse", &context_sparse, &context.sparse),
        ("feature_list_sparse", &list_sparse, &lists.sparse),
    ] {
        let n = attrs.int(&format!("N{what}"))?;
        if n != keys.len() as i64 || n != types.len() as i64 {
            return invalid(format!(
                "num_{what} ({n}) must match the size of {what}_keys ({}) and {what}_types ({})",
                keys.len(),
                types.len()
            ));
        }
    }
    for (what, keys, types) in [
        ("context_dense", &context_dense, &context),
        ("feature_list_dense", &list_dense, &lists),
    ] {
        let n = attrs.int(&format!("N{what}"))?;
        let all = [keys.len(), types.dense.len(), types.shapes.len()];
        if all.iter().any(|len| n != *len as i64) {
            return invalid(format!(
                "num_{what} ({n}) must match the size of {what}_keys ({}), {what}_types ({}) and {what}_shapes ({})",
                all[0], all[1], all[2]
            ));
        }
    }
    Built::costly(move |ctx| {
        check_serialized(ctx)?;
        let keys = |sparse, dense| Keys {
            sparse,
            dense,
            ragged: &[],
        };
        let keys = (
            keys(&context_sparse, &context_dense),
            keys(&list_sparse, &list_dense),
        );
        let assumed = |_: usize, key: &Bytes| missing.contains(key);
        let (context, lists) = run(ctx, (&context, &lists), keys, 2, assumed)?;
        set_outputs(ctx, context, lists, false);
        Ok(())
    })
}

fn parse_v2(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let context = Types::parse(attrs, "context", "Tcontext_dense")?;
    let lists = Types::parse(attrs, "feature_list", "feature_list_dense_types")?;
    let size = |name: &str| attrs.size(name);
    let (context_sparse, list_sparse, list_dense) = (
        size("Ncontext_sparse")?,
        size("Nfeature_list_sparse")?,
        size("Nfeature_list_dense")?,
    );
    for (what, n, types) in [
        ("context_sparse", context_sparse, &context.sparse),
        ("feature_list_sparse", list_sparse, &lists.sparse),
    ] {
        if n != types.len() {
            return invalid(format!(
                "num_{what} ({n}) must match the size of {what}_types ({})",
                types.len()
            ));
        }
    }
    for (what, n, types) in [
        ("context_dense", context.dense.len(), &context),
        ("feature_list_dense", list_dense, &lists),
    ] {
        if n != types.dense.len() || n != types.shapes.len() {
            return invalid(format!(
                "num_{what} ({n}) must match the size of {what}_types ({}) and {what}_shapes ({})",
                types.dense.len(),
                types.shapes.len()
            ));
        }
    }
    for (what, types) in [("context", &context), ("feature_list", &lists)] {
        if types.ragged.len() != types.splits.len() {
            return invalid(format!(
                "num_{what}_ragged ({}) must match the size of {what}_ragged_value_types ({}) and {what}_ragged_split_types ({})",
                types.ragged.len(),
                types.ragged.len(),
                types.splits.len()
            ));
        }
    }
    Built::costly(move |ctx| {
        check_serialized(ctx)?;
        let inputs = ctx.inputs(2..9)?.into_iter().cloned().collect::<Vec<_>>();
        let counts = [
            (
                1,
                context.dense.len(),
                "context_dense_keys) to match len(Tcontext_dense)",
            ),
            (
                0,
                context_sparse,
                "context_sparse_keys) to match Ncontext_sparse",
            ),
            (
                2,
                context.ragged.len(),
                "context_ragged_keys) to match len(context_ragged_value_types)",
            ),
            (
                4,
                list_dense,
                "feature_list_dense_keys) to match Nfeature_list_dense",
            ),
            (
                6,
                list_dense,
                "feature_list_dense_missing_assumed_empty to match Nfeature_list_dense",
            ),
            (
                3,
                list_sparse,
                "feature_list_sparse_keys) to match Nfeature_list_sparse",
            ),
            (
                5,
                lists.ragged.len(),
                "feature_list_ragged_keys) to match len(feature_list_ragged_value_types)",
            ),
        ];
        for (i, expected, text) in counts {
            if inputs[i].num_elements() != expected {
                return invalid(format!("Expected len({text}"));
            }
        }
        let keys = |first: usize| -> Result<Keys<'_>> {
            Ok(Keys {
                sparse: inputs[first].as_strings()?,
                dense: inputs[first + 1].as_strings()?,
                ragged: inputs[first + 2].as_strings()?,
            })
        };
        let keys = (keys(0)?, keys(3)?);
        let missing = inputs[6].as_slice::<bool>()?;
        let assumed = |d: usize, _: &Bytes| missing.get(d).copied().unwrap_or(false);
        let (context, lists) = run(ctx, (&context, &lists), keys, 9, assumed)?;
        set_outputs(ctx, context, lists, true);
        Ok(())
    })
}
