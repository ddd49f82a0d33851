//! `ParseSingleSequenceExample`: one sequence example, read as protobuf reads it (unlike the ops
//! in [`super::sequence_ops`], which use TensorFlow's quick parser).

use super::sequence_ops::full_shapes;
use super::values::{Values, type_of};
use super::{invalid, shown};
use bytes::Bytes;
use downpour_formats::example::{Feature, FeatureValues, Features, parse_sequence_example};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};
use std::collections::HashMap;
use std::fmt::Write as _;

pub(super) fn register(r: &mut Registry) {
    r.add("ParseSingleSequenceExample", build);
}

struct Op {
    context_sparse: Vec<DType>,
    context_dense: Vec<DType>,
    context_shapes: Vec<Shape>,
    list_sparse: Vec<DType>,
    list_dense: Vec<DType>,
    list_shapes: Vec<Shape>,
}

fn build(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let op = Op {
        context_sparse: attrs.dtypes("context_sparse_types")?.to_vec(),
        context_dense: attrs.dtypes("Tcontext_dense")?.to_vec(),
        context_shapes: full_shapes(attrs, "context_dense_shapes")?,
        list_sparse: attrs.dtypes("feature_list_sparse_types")?.to_vec(),
        list_dense: attrs.dtypes("feature_list_dense_types")?.to_vec(),
        list_shapes: full_shapes(attrs, "feature_list_dense_shapes")?,
    };
    for (count, what, types, of) in [
        (
            "Ncontext_sparse",
            "context_sparse",
            op.context_sparse.len(),
            "types",
        ),
        (
            "Ncontext_dense",
            "context_dense",
            op.context_dense.len(),
            "types",
        ),
        (
            "Ncontext_dense",
            "context_dense",
            op.context_shapes.len(),
            "shapes",
        ),
        (
            "Nfeature_list_sparse",
            "feature_list_sparse",
            op.list_sparse.len(),
            "types",
        ),
        (
            "Nfeature_list_dense",
            "feature_list_dense",
            op.list_dense.len(),
            "types",
        ),
        (
            "Nfeature_list_dense",
            "feature_list_dense",
            op.list_shapes.len(),
            "shapes",
        ),
    ] {
        if attrs.size(count)? != types {
            return invalid(format!("len({what}_keys) != len({what}_{of})"));
        }
    }
    Built::costly(move |ctx| {
        let outputs = op.run(ctx)?;
        for (i, tensor) in outputs.into_iter().enumerate() {
            ctx.set_output(i, tensor);
        }
        Ok(())
    })
}

/// The example while its features are taken.
struct Message<'a> {
    name: String,
    source: &'a Bytes,
}

impl Op {
    fn run(&self, ctx: &OpContext<'_>) -> Result<Vec<Tensor>> {
        let counts = [
            ("context_sparse_keys", self.context_sparse.len()),
            ("context_dense_keys", self.context_dense.len()),
            ("feature_list_sparse_keys", self.list_sparse.len()),
            ("feature_list_dense_keys", self.list_dense.len()),
        ];
        let mut at = 2;
        let mut keys: Vec<Vec<Bytes>> = Vec::with_capacity(4);
        for (_, count) in counts {
            keys.push(Vec::with_capacity(count));
        }
        // TensorFlow looks at dense keys before sparse ones.
        let mut starts = Vec::with_capacity(4);
        for (_, count) in counts {
            starts.push(at);
            at += count;
        }
        for k in [1, 0, 3, 2] {
            let (what, count) = counts[k];
            for i in 0..count {
                let key = ctx.input(starts[k] + i)?;
                let (0, [key]) = (key.rank(), key.as_strings()?) else {
                    return invalid(format!(
                        "Expected {what}[{i}] to be a scalar, got shape: {}",
                        key.shape()
                    ));
                };
                keys[k].push(key.clone());
            }
        }
        let missing = ctx.input(1)?;
        if missing.rank() != 1 {
            return invalid(format!(
                "Expected feature_list_dense_missing_assumed_empty to be a vector, got shape: {}",
                missing.shape()
            ));
        }
        let defaults = ctx.inputs(at..at + self.context_dense.len())?;
        let debug_name = ctx.input(at + self.context_dense.len())?;
        if debug_name.num_elements() > 0 && debug_name.rank() != 0 {
            return invalid(format!(
                "Expected debug_name to be a scalar, got shape: {}",
                debug_name.shape()
            ));
        }
        let serialized = ctx.input(0)?;
        let (0, [source]) = (serialized.rank(), serialized.as_strings()?) else {
            return invalid(format!(
                "Expected serialized to be a scalar, got shape: {}",
                serialized.shape()
            ));
        };
        self.check_defaults(&defaults)?;
        let parsed = parse_sequence_example(source).filter(|(context, lists)| {
            let names = context.iter().map(|f| f.0).chain(lists.iter().map(|f| f.0));
            names.into_iter().all(|n| std::str::from_utf8(n).is_ok())
        });
        let Some((context, lists)) = parsed else {
            return invalid(format!(
                "Could not parse example input, value: '{}'",
                shown(source)
            ));
        };
        let name = debug_name.as_strings()?.first();
        let message = Message {
            name: name.map_or("<unknown>".into(), |n| shown(n)),
            source,
        };
        let context_dense = self.context_dense(ctx, &message, &context, &keys[1], &defaults)?;
        let context_sparse = self.context_sparse(&message, &context, &keys[0])?;
        let lists: HashMap<&[u8], Vec<Feature<'_>>> = lists.into_iter().collect();
        let missing = missing.as_strings()?;
        let list_dense = self.list_dense(ctx, &message, &lists, &keys[3], missing)?;
        let list_sparse = self.list_sparse(&message, &lists, &keys[2])?;
        let mut out = by_kind(context_sparse);
        out.extend(context_dense);
        out.extend(by_kind(list_sparse));
        out.extend(list_dense);
        Ok(out)
    }

    fn check_defaults(&self, defaults: &[&Tensor]) -> Result<()> {
        for (d, default) in defaults.iter().enumerate() {
            if default.num_elements() == 0 {
                continue;
            }
            if default.shape() != &self.context_shapes[d] {
                return invalid(format!(
                    "def_value[{d}].shape() == {} != context_dense_shapes_[{d}] == {}",
                    default.shape(),
                    self.context_shapes[d]
                ));
            }
            if default.dtype() != self.context_dense[d] {
                return invalid(format!(
                    "context_dense_defaults[{d}].dtype() == {} != context_dense_types_[{d}] == {}",
                    default.dtype(),
                    self.context_dense[d]
                ));
            }
        }
        Ok(())
    }

    fn context_dense(
        &self,
        ctx: &OpContext<'_>,
        message: &Message<'_>,
        context: &Features<'_>,
        keys: &[Bytes],
        defaults: &[&Tensor],
    ) -> Result<Vec<Tensor>> {
        let mut out = Vec::with_capacity(keys.len());
        for (d, key) in keys.iter().enumerate() {
            let (dtype, shape) = (self.context_dense[d], &self.context_shapes[d]);
            ctx.check_alloc(dtype, shape)?;
            let Some(feature) = context.get(key) else {
                if defaults[d].num_elements() == 0 {
                    return invalid(format!(
                        "Name: {}, Context feature '{}' is required but could not be found.",
                        message.name,
                        shown(key)
                    ));
                }
                out.push(defaults[d].clone());
                continue;
            };
            let what = format!("Context feature: {}", shown(key));
            let mut values = Values::new(dtype)?;
            message.read(feature, &mut values, &what)?;
            message.check_count(key, 0, dtype, values.len(), shape)?;
            out.push(values.tensor(shape.clone())?);
        }
        Ok(out)
    }

    fn context_sparse(
        &self,
        message: &Message<'_>,
        context: &Features<'_>,
        keys: &[Bytes],
    ) -> Result<Vec<[Tensor; 3]>> {
        let mut out = Vec::with_capacity(keys.len());
        for (d, key) in keys.iter().enumerate() {
            let mut values = Values::new(self.context_sparse[d])?;
            if let Some(feature) = context.get(key).filter(|f| f.kind().is_some()) {
                let what = format!("Context feature: {}", shown(key));
                message.read(feature, &mut values, &what)?;
            }
            let n = values.len();
            out.push([
                Tensor::from_vec((0..n as i64).collect(), [n, 1])?,
                values.vector()?,
                Tensor::vector(vec![n as i64]),
            ]);
        }
        Ok(out)
    }

    fn list_dense(
        &self,
        ctx: &OpContext<'_>,
        message: &Message<'_>,
        lists: &HashMap<&[u8], Vec<Feature<'_>>>,
        keys: &[Bytes],
        missing: &[Bytes],
    ) -> Result<Vec<Tensor>> {
        let mut out = Vec::with_capacity(keys.len());
        for (d, key) in keys.iter().enumerate() {
            let (dtype, row) = (self.list_dense[d], &self.list_shapes[d]);
            let list = lists.get(&key[..]);
            if list.is_none() && !missing.contains(key) {
                return invalid(format!(
                    "Name: {}, Feature list '{}' is required but could not be found.  Did you mean to include it in feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?",
                    message.name,
                    shown(key)
                ));
            }
            let features = list.map_or(&[][..], |l| l);
            let dims = std::iter::once(features.len()).chain(row.iter().copied());
            let shape = Shape::checked(dims.map(|d| d as i64))?;
            ctx.check_alloc(dtype, &shape)?;
            let mut values = Values::new(dtype)?;
            for (t, feature) in features.iter().enumerate() {
                let before = values.len();
                let what = format!("Feature list: {}, Index: {t}", shown(key));
                message.read(feature, &mut values, &what)?;
                message.check_count(key, t, dtype, values.len() - before, row)?;
            }
            out.push(values.tensor(shape)?);
        }
        Ok(out)
    }

    fn list_sparse(
        &self,
        message: &Message<'_>,
        lists: &HashMap<&[u8], Vec<Feature<'_>>>,
        keys: &[Bytes],
    ) -> Result<Vec<[Tensor; 3]>> {
        let mut out = Vec::with_capacity(keys.len());
        for (d, key) in keys.iter().enumerate() {
            let features = lists.get(&key[..]).map_or(&[][..], |l| l);
            let mut values = Values::new(self.list_sparse[d])?;
            let mut indices = Vec::new();
            let mut longest = 0;
            for (t, feature) in features.iter().enumerate() {
                let before = values.len();
                if feature.kind().is_some() {
                    let what = format!("Feature List: {}, Index: {t}", shown(key));
                    message.read(feature, &mut values, &what)?;
                }
                let n = values.len() - before;
                longest = longest.max(n);
                indices.extend((0..n).flat_map(|i| [t as i64, i as i64]));
            }
            out.push([
                Tensor::from_vec(indices, [values.len(), 2])?,
                values.vector()?,
                Tensor::vector(vec![features.len() as i64, longest as i64]),
            ]);
        }
        Ok(out)
    }
}

/// All indices, then all values, then all shapes.
fn by_kind(parts: Vec<[Tensor; 3]>) -> Vec<Tensor> {
    (0..3)
        .flat_map(|i| parts.iter().map(move |p| p[i].clone()).collect::<Vec<_>>())
        .collect()
}

impl Message<'_> {
    /// Appends the values of a feature, which must be of the right type.
    fn read(&self, feature: &Feature<'_>, values: &mut Values, what: &str) -> Result<()> {
        let expected = values.kind();
        if feature.kind() != Some(expected) {
            return invalid(format!(
                "Name: {}, {what}.  Data types don't match. Expected type: {}  Feature is: {}",
                self.name,
                type_of(expected),
                self.debug(feature)
            ));
        }
        let read = match values {
            Values::Floats(v) => feature.floats(v),
            Values::Ints(v) => feature.int64s(v),
            Values::Strings(v) => feature.bytes(|b| v.push(Bytes::copy_from_slice(b))),
        };
        read.ok_or_else(|| {
            Status::invalid_argument(format!(
                "Could not parse example input, value: '{}'",
                shown(self.source)
            ))
        })
    }

    fn check_count(
        &self,
        key: &[u8],
        index: usize,
        dtype: DType,
        count: usize,
        shape: &Shape,
    ) -> Result<()> {
        if count == shape.num_elements() {
            return Ok(());
        }
        // TensorFlow leaves out a colon and writes a capital for strings.
        let (colon, kind, values) = match dtype {
            DType::String => ("", "bytes", "Values"),
            other => (":", other.name(), "values"),
        };
        invalid(format!(
            "Name: {}, Key{colon} {}, Index: {index}.  Number of {kind} values != expected.  {values} size: {count} but output shape: {shape}",
            self.name,
            shown(key)
        ))
    }

    /// A feature as protobuf prints it, up to what an error can carry.
    fn debug(&self, feature: &Feature<'_>) -> String {
        const MOST: usize = 200;
        let mut out = String::new();
        let (list, values): (&str, Vec<String>) = match feature.values(self.source) {
            None | Some(FeatureValues::None) => return out,
            Some(FeatureValues::Bytes(v)) => {
                let text = |b: &Bytes| format!("\"{}\"", b.escape_ascii());
                ("bytes_list", v.iter().take(MOST).map(text).collect())
            }
            Some(FeatureValues::Floats(v)) => (
                "float_list",
                v.iter().take(MOST).map(f32::to_string).collect(),
            ),
            Some(FeatureValues::Int64s(v)) => (
                "int64_list",
                v.iter().take(MOST).map(i64::to_string).collect(),
            ),
        };
        let _ = writeln!(out, "{list} {{");
        for value in values {
            let _ = writeln!(out, "  value: {value}");
        }
        out.push_str("}\n");
        out
    }
}
