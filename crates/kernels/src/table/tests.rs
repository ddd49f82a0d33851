//! What cases cannot reach: limits, and graphs that abort TensorFlow.

use super::*;
use crate::testing::{device, node, run_on};
use downpour_graph::{AttrValue, NodeDef};

fn no_limit(_: DType, _: &Shape) -> Result<()> {
    Ok(())
}

fn at_most_100_rows(_: DType, shape: &Shape) -> Result<()> {
    match shape.dims().first() {
        Some(&rows) if rows > 100 => Err(Status::resource_exhausted("too much")),
        _ => Ok(()),
    }
}

fn words(words: &[&str]) -> Tensor {
    let words = words
        .iter()
        .map(|w| w.to_string().into())
        .collect::<Vec<_>>();
    let length = words.len();
    Tensor::strings(words, [length]).unwrap()
}

fn dense(buckets: i64, value_dtype: DType) -> Result<Table> {
    let spec = dense::Spec {
        value_dtype,
        key_shape: Shape::scalar(),
        value_shape: Shape::scalar(),
        max_load: 0.5,
    };
    let (empty, deleted) = (Tensor::scalar(0i64), Tensor::scalar(-1i64));
    let table = Dense::new(spec, empty, deleted, buckets, &at_most_100_rows)?;
    Ok(Table {
        key_dtype: DType::Int64,
        value_dtype,
        key_shape: Shape::scalar(),
        value_shape: Shape::scalar(),
        body: Body::Dense(RwLock::new(table)),
        held: Holding::new(),
    })
}

#[test]
fn a_removed_row_is_used_again() {
    let t = Table::mutable(DType::String, DType::Int64, Shape::scalar());
    for _ in 0..3 {
        t.insert(
            &words(&["a", "b"]),
            &Tensor::vector(vec![1i64, 2]),
            &no_limit,
        )
        .unwrap();
        t.remove(&words(&["a"])).unwrap();
    }
    t.insert(&words(&["c"]), &Tensor::vector(vec![3i64]), &no_limit)
        .unwrap();
    let (keys, values) = t.export().unwrap();
    assert_eq!(keys.num_elements(), 2);
    let mut values = values.as_slice::<i64>().unwrap().to_vec();
    values.sort_unstable();
    assert_eq!(values, [2, 3]);
}

#[test]
fn a_table_holds_no_more_than_a_tensor_may() {
    let t = Table::mutable(DType::Int64, DType::Int64, Shape::scalar());
    let many = Tensor::vector((0..101).collect::<Vec<i64>>());
    assert!(t.insert(&many, &many, &at_most_100_rows).is_err());
    assert!(t.import(&many, &many, &at_most_100_rows).is_err());
    assert_eq!(t.len(), 0);
    assert!(dense(128, DType::Int64).is_err());
    let t = dense(64, DType::Int64).unwrap();
    let keys = Tensor::vector((1..41).collect::<Vec<i64>>());
    assert!(t.insert(&keys, &keys, &at_most_100_rows).is_err());
    assert_eq!(t.len(), 0);
}

#[test]
fn buckets_that_are_none_are_refused() {
    let t = dense(4, DType::Int64).unwrap();
    let none = Tensor::zeros(DType::Int64, [0, 1]).unwrap();
    assert!(t.import(&none, &none, &no_limit).is_err());
    let flat = Tensor::vector(vec![1i64, 2]);
    assert!(t.import(&flat, &flat, &no_limit).is_err());
    // Three buckets: probing meets only some, and an absent key ends in an error, not a loop.
    let three = Tensor::from_vec(vec![4i64, 5, 6], [3, 1]).unwrap();
    t.import(&three, &three, &no_limit).unwrap();
    let e = t.find(&Tensor::vector(vec![9i64]), &Tensor::scalar(0i64));
    assert!(e.unwrap_err().message.starts_with("Internal error"));
}

#[test]
fn an_export_of_other_types_is_refused() {
    let device = device();
    let table = |name: &str| {
        let attrs: &[(&str, AttrValue)] = &[
            ("key_dtype", DType::String.into()),
            ("value_dtype", DType::Int64.into()),
        ];
        node(name, "MutableHashTableV2", &[], attrs)
    };
    let export = |keys: DType, values: DType| -> Vec<NodeDef> {
        let types = [("Tkeys", keys.into()), ("Tvalues", values.into())];
        let result = [("T", keys.into()), ("index", 0i64.into())];
        vec![
            table("t"),
            node("e", "LookupTableExportV2", &["t"], &types),
            node("r", "_Retval", &["e:0"], &result),
        ]
    };
    assert!(run_on(&device, export(DType::String, DType::Int64), vec![]).is_ok());
    let e = run_on(&device, export(DType::Int64, DType::String), vec![]).unwrap_err();
    assert!(e.message.starts_with("Signature mismatch"), "{}", e.message);
}
