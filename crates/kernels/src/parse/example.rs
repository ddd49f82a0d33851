//! `ParseExample`, `ParseExampleV2` and `ParseSingleExample`: attributes and inputs in
//! TensorFlow's order of checks, the work is in [`super::batch`].

use super::batch::{parse_batch, parse_single};
use super::config::{Config, DenseShape, dense, ragged, sparse};
use super::invalid;
use bytes::Bytes;
use downpour_graph::{Attrs, Result};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add("ParseExample", parse_example);
    r.add("ParseExampleV2", parse_example_v2);
    r.add("ParseSingleExample", parse_single_example);
}

/// The types and shapes that an op's attributes give.
struct Types {
    dense: Vec<DType>,
    shapes: Vec<DenseShape>,
    sparse: Vec<DType>,
    ragged: Vec<DType>,
    splits: Vec<DType>,
}

impl Types {
    fn parse(attrs: &Attrs) -> Result<Types> {
        let optional = |name: &str| match attrs.find(name) {
            Some(_) => attrs.dtypes(name).map(<[DType]>::to_vec),
            None => Ok(Vec::new()),
        };
        let types = Types {
            dense: attrs.dtypes("Tdense")?.to_vec(),
            shapes: DenseShape::parse(attrs.shapes("dense_shapes")?)?,
            sparse: attrs.dtypes("sparse_types")?.to_vec(),
            ragged: optional("ragged_value_types")?,
            splits: optional("ragged_split_types")?,
        };
        Ok(types)
    }

    /// Compares with the numbers of keys.
    fn check(&self, num_sparse: usize, num_dense: usize) -> Result<()> {
        if num_sparse != self.sparse.len() {
            return invalid("len(sparse_keys) != len(sparse_types)");
        }
        if num_dense != self.dense.len() {
            return invalid("len(dense_keys) != len(dense_types)");
        }
        if num_dense != self.shapes.len() {
            return invalid("len(dense_keys) != len(dense_shapes)");
        }
        if self.ragged.len() != self.splits.len() {
            return invalid("len(ragged_value_types) != len(ragged_split_types)");
        }
        Ok(())
    }
}

fn set_outputs(ctx: &mut OpContext<'_>, outputs: Vec<Tensor>) {
    for (i, tensor) in outputs.into_iter().enumerate() {
        ctx.set_output(i, tensor);
    }
}

/// `names` must be empty or have the shape of `serialized`.
fn check_names(ctx: &OpContext<'_>) -> Result<()> {
    let (serialized, names) = (ctx.input(0)?, ctx.input(1)?);
    if names.num_elements() > 0 && names.shape() != serialized.shape() {
        return invalid(format!(
            "Expected names have the same shape as serialized: name.shape={}, serialized.shape={}",
            names.shape(),
            serialized.shape()
        ));
    }
    Ok(())
}

/// Keys that come one to an input.
fn scalar_keys(ctx: &OpContext<'_>, first: usize, count: usize) -> Result<Vec<Bytes>> {
    let key = |t: &Tensor| match t.as_strings()? {
        [key] => Ok(key.clone()),
        _ => invalid(format!(
            "Expected a key to be a scalar, got shape: {}",
            t.shape()
        )),
    };
    (first..first + count).map(|i| key(ctx.input(i)?)).collect()
}

fn parse_example(b: &KernelBuilder<'_>) -> Result<Built> {
    let types = Types::parse(b.attrs())?;
    let (num_sparse, num_dense) = (b.attrs().size("Nsparse")?, b.attrs().size("Ndense")?);
    types.check(num_sparse, num_dense)?;
    Built::costly(move |ctx| {
        let sparse_keys = scalar_keys(ctx, 2, num_sparse)?;
        let dense_keys = scalar_keys(ctx, 2 + num_sparse, num_dense)?;
        let serialized = ctx.input(0)?;
        if serialized.rank() != 1 {
            return invalid(format!(
                "Expected serialized to be a vector, got shape: {}",
                serialized.shape()
            ));
        }
        check_names(ctx)?;
        let first = 2 + num_sparse + num_dense;
        let defaults = ctx.inputs(first..first + num_dense)?;
        let config = Config::new(
            dense(&dense_keys, &types.dense, &types.shapes, &defaults)?,
            sparse(&sparse_keys, &types.sparse),
            Vec::new(),
        )?;
        let names = ctx.input(1)?.as_strings()?;
        let parsed = parse_batch(ctx.device(), &config, serialized.as_strings()?, names)?;
        set_outputs(ctx, parsed.outputs());
        Ok(())
    })
}

fn parse_example_v2(b: &KernelBuilder<'_>) -> Result<Built> {
    let types = Types::parse(b.attrs())?;
    let num_sparse = b.attrs().size("num_sparse")?;
    types.check(num_sparse, types.dense.len())?;
    Built::costly(move |ctx| {
        let serialized = ctx.input(0)?;
        if serialized.rank() > 1 {
            return invalid(format!(
                "Expected serialized to be a scalar or vector, got shape: {}",
                serialized.shape()
            ));
        }
        check_names(ctx)?;
        let keys = |i: usize| -> Result<&[Bytes]> { Ok(ctx.input(i)?.as_strings()?) };
        let (sparse_keys, dense_keys, ragged_keys) = (keys(2)?, keys(3)?, keys(4)?);
        for (what, got, expected) in [
            (
                "dense_keys) == len(dense_types)",
                dense_keys.len(),
                types.dense.len(),
            ),
            ("sparse_keys) == num_sparse", sparse_keys.len(), num_sparse),
            (
                "ragged_keys) == len(ragged_value_types)",
                ragged_keys.len(),
                types.ragged.len(),
            ),
        ] {
            if got != expected {
                return invalid(format!("Expected len({what} but got: {got} vs. {expected}"));
            }
        }
        let defaults = ctx.inputs(5..5 + types.dense.len())?;
        let config = Config::new(
            dense(dense_keys, &types.dense, &types.shapes, &defaults)?,
            sparse(sparse_keys, &types.sparse),
            ragged(ragged_keys, &types.ragged, &types.splits),
        )?;
        let parsed = match (serialized.rank(), serialized.as_strings()?) {
            (0, [example]) => parse_single(ctx.device(), &config, example)?,
            (_, examples) => {
                let names = ctx.input(1)?.as_strings()?;
                parse_batch(ctx.device(), &config, examples, names)?
            }
        };
        set_outputs(ctx, parsed.outputs());
        Ok(())
    })
}

fn parse_single_example(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let sparse_keys = attrs.byte_strings("sparse_keys")?.to_vec();
    let dense_keys = attrs.byte_strings("dense_keys")?.to_vec();
    let num_sparse = attrs.size("num_sparse")?;
    let sparse_types = attrs.dtypes("sparse_types")?;
    if num_sparse != sparse_keys.len() || num_sparse != sparse_types.len() {
        return invalid(format!(
            "num_sparse ({num_sparse}) must match the size of sparse_keys ({}) and sparse_types ({})",
            sparse_keys.len(),
            sparse_types.len()
        ));
    }
    let types = Types::parse(attrs)?;
    types.check(sparse_keys.len(), dense_keys.len())?;
    Built::costly(move |ctx| {
        let serialized = ctx.input(0)?;
        let (0, [example]) = (serialized.rank(), serialized.as_strings()?) else {
            return invalid(format!(
                "Expected serialized to be a scalar, got shape: {}",
                serialized.shape()
            ));
        };
        let defaults = ctx.inputs(1..1 + dense_keys.len())?;
        let config = Config::new(
            dense(&dense_keys, &types.dense, &types.shapes, &defaults)?,
            sparse(&sparse_keys, &types.sparse),
            Vec::new(),
        )?;
        let parsed = parse_single(ctx.device(), &config, example)?;
        set_outputs(ctx, parsed.outputs());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{run_op, text};
    use bytes::Bytes;
    use downpour_graph::{AttrList, AttrValue, Code};
    use downpour_tensor::{DType, PartialShape, Tensor};

    fn field(number: u8, data: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, data.len() as u8];
        out.extend(data);
        out
    }

    /// An example with the integer feature `a`.
    fn example(values: &[u8]) -> Bytes {
        let feature = field(3, &field(1, values));
        let entry = [field(1, b"a"), field(2, &feature)].concat();
        field(1, &field(1, &entry)).into()
    }

    fn parse(examples: Vec<Bytes>, shape: PartialShape) -> downpour_graph::Result<Vec<Tensor>> {
        let n = examples.len();
        let words = |words: Vec<Bytes>| {
            let n = words.len();
            Tensor::strings(words, [n]).unwrap()
        };
        let inputs = vec![
            Tensor::strings(examples, [n]).unwrap(),
            words(vec![]),
            words(vec![]),
            words(vec![Bytes::from_static(b"a")]),
            words(vec![]),
            Tensor::vector(vec![7i64]),
        ];
        let attrs = [
            ("Tdense", vec![DType::Int64].into()),
            ("num_sparse", 0i64.into()),
            ("sparse_types", AttrValue::List(AttrList::Empty)),
            ("ragged_value_types", AttrValue::List(AttrList::Empty)),
            ("ragged_split_types", AttrValue::List(AttrList::Empty)),
            (
                "dense_shapes",
                AttrValue::List(AttrList::Shape(vec![shape])),
            ),
        ];
        run_op("ParseExampleV2", inputs, &attrs)
    }

    #[test]
    fn a_thousand_examples_come_out_in_order() {
        let examples = (0..1000u32).map(|i| example(&[(i % 100) as u8])).collect();
        let out = parse(examples, PartialShape::checked([1]).unwrap()).unwrap();
        assert_eq!(out[0].dims(), [1000, 1]);
        let values = out[0].as_slice::<i64>().unwrap();
        assert!(values.iter().enumerate().all(|(i, v)| *v == i as i64 % 100));
    }

    #[test]
    fn rows_are_filled_up_with_the_default_within_the_budget() {
        let shape = PartialShape::checked([-1]).unwrap();
        let out = parse(vec![example(&[1, 2]), Bytes::new()], shape.clone()).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [1, 2, 7, 7]);
        // One long example among many empty ones asks for the product of both.
        let long = {
            let list = vec![1u8; 4 << 20];
            let wrap = |tag: u8, data: &[u8]| {
                let mut out = vec![tag];
                let mut n = data.len();
                while n >= 0x80 {
                    out.push(n as u8 | 0x80);
                    n >>= 7;
                }
                out.push(n as u8);
                out.extend(data);
                out
            };
            let feature = wrap(0x1a, &wrap(0x0a, &list));
            let entry = [field(1, b"a"), wrap(0x12, &feature)].concat();
            Bytes::from(wrap(0x0a, &wrap(0x0a, &entry)))
        };
        let mut examples = vec![Bytes::new(); 1000];
        examples.push(long);
        let e = parse(examples, shape).unwrap_err();
        assert_eq!(e.code, Code::ResourceExhausted, "{e}");
    }

    #[test]
    fn the_first_bad_example_is_named() {
        let mut examples = vec![example(&[1]); 100];
        examples[60] = example(&[1, 2]);
        examples[90] = Bytes::from_static(b"\x0a\x05");
        let shape = PartialShape::checked([1]).unwrap();
        assert_eq!(
            text(parse(examples, shape)),
            "Name: <unknown>, Key: a, Index: 60.  Number of int64 values != expected.  Values size: 2 but output shape: [1]"
        );
    }
}
