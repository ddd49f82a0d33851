//! The driver: what flows where, how gradients add up, what is refused.

use super::*;
use crate::{DType, Graph, Output};

fn scalar(g: &Graph, name: &str) -> Output {
    g.placeholder(name, DType::Float, ())
}

/// Op types on the way back from `y`, each once.
fn ops(y: &Output) -> Vec<String> {
    let inner = y.graph().inner.lock();
    let nodes = producers_first(&inner.graph, std::slice::from_ref(y), &mut HashMap::new());
    let mut names: Vec<String> = nodes
        .iter()
        .map(|id| inner.graph.node(*id).op_name().to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn what_y_does_not_depend_on_has_none() {
    let g = Graph::new();
    let (x, z) = (scalar(&g, "x"), scalar(&g, "z"));
    let dx = gradients(&[x.square()], &[x.clone(), z]).unwrap();
    assert!(dx[0].is_some() && dx[1].is_none());
    assert!(gradients(&[x.stop_gradient()], &[x]).unwrap()[0].is_none());
}

#[test]
fn gradients_that_meet_are_added() {
    let g = Graph::new();
    let x = scalar(&g, "x");
    let dx = gradients(&[x.sin() + x.cos() + x.exp()], &[x]).unwrap();
    let Some(Gradient::Dense(dx)) = &dx[0] else {
        panic!("{dx:?}")
    };
    assert_eq!(
        (dx.operation().op(), dx.operation().num_inputs()),
        ("AddN".to_owned(), 3)
    );
}

#[test]
fn rows_stay_rows_until_they_meet_a_dense_gradient() {
    let g = Graph::new();
    let table = g.variable("table").shape([10, 2]).build();
    let ids = g.placeholder("ids", DType::Int64, [None]);
    let (first, second) = (table.gather(&ids), table.gather(&ids).square());
    let x = [table.handle().clone()];
    let dx = gradients(&[first.clone(), second.clone()], &x).unwrap();
    let Some(Gradient::Sparse(rows)) = &dx[0] else {
        panic!("{dx:?}")
    };
    assert_eq!(rows.values.operation().op(), "ConcatV2");
    assert_eq!(rows.values.shape().to_string(), "[?,2]");
    let dx = gradients(&[first, second, table.value().square()], &x).unwrap();
    let Some(Gradient::Dense(sum)) = &dx[0] else {
        panic!("{dx:?}")
    };
    assert_eq!(sum.operation().op(), "AddN");
    assert!(ops(sum).contains(&"UnsortedSegmentSum".to_owned()));
}

#[test]
fn positions_of_both_widths_become_the_wider() {
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [4, 2]);
    let narrow = x.gather(&g.constant([1i32]), 0);
    let wide = x.gather(&g.constant([2i64]), 0);
    let dx = gradients(&[narrow, wide], &[x]).unwrap();
    let Some(Gradient::Sparse(rows)) = &dx[0] else {
        panic!("{dx:?}")
    };
    assert_eq!(rows.indices.dtype(), DType::Int64);
}

#[test]
fn an_op_without_a_gradient_is_named() {
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [2, 2]);
    let y = g.op("RFFT3D").name("rays").input(&x.reshape(&[1, 2, 2]));
    let y = y.input(&g.constant([1i32, 2, 2])).output();
    let size = g.op("ComplexAbs").input(&y).output();
    let error = gradients(&[size], &[x]).unwrap_err();
    assert_eq!(error.code, crate::Code::NotFound);
    let text = "No gradient defined for operation 'rays' (op type: RFFT3D)";
    assert!(error.message.contains(text), "{error}");
}

#[test]
fn stopped_tensors_count_as_constants() {
    let g = Graph::new();
    let x = scalar(&g, "x");
    let held = x.exp();
    let stop = [held.clone()];
    let what = Differentiate {
        ys: &[held.square()],
        xs: &[x.clone(), held.clone()],
        stop: &stop,
        ..Default::default()
    };
    let dx = what.run().unwrap();
    assert!(dx[0].is_none() && dx[1].is_some());
}

#[test]
fn gradients_to_begin_with_replace_ones() {
    let g = Graph::new();
    let (x, dy) = (scalar(&g, "x"), scalar(&g, "dy"));
    let dx = gradients_from(
        &[x.identity()],
        &[Some(dy.clone().into())],
        std::slice::from_ref(&x),
    )
    .unwrap();
    let Some(Gradient::Dense(dx)) = &dx[0] else {
        panic!("{dx:?}")
    };
    assert_eq!(*dx, dy);
    let error =
        gradients_from(&[x.identity()], &[None, None], std::slice::from_ref(&x)).unwrap_err();
    assert!(error.message.contains("2 gradients"), "{error}");
    let z = g.placeholder("z", DType::Complex64, ());
    assert!(gradients(&[z.identity()], std::slice::from_ref(&z)).is_err());
    assert!(gradients_from(&[z.identity()], &[Some(z.clone().into())], &[z]).is_ok());
}

#[test]
fn an_integer_has_no_gradient() {
    let g = Graph::new();
    let x = g.placeholder("x", DType::Int32, ());
    let error = gradients(&[x.identity()], &[x]).unwrap_err();
    assert!(error.message.contains("int32"), "{error}");
}

#[test]
fn colocated_gradients_share_the_device() {
    let g = Graph::new();
    let x = scalar(&g, "x");
    let y = g.with_device("/job:ps/task:1", || x.square());
    let what = Differentiate {
        ys: &[y],
        xs: &[x],
        colocate: true,
        ..Default::default()
    };
    let dx = what.run().unwrap()[0].as_ref().unwrap().to_dense();
    assert_eq!(dx.operation().device(), "/job:ps/task:1");
}

#[test]
fn a_hessian_vector_product_is_two_gradients() {
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [3]);
    let v = g.placeholder("v", DType::Float, [3]);
    let w = g.placeholder("w", DType::Float, [3, 3]);
    let y = x.expand_dims(0).matmul(&w).tanh().square().sum(());
    let slope = gradients(&[y], std::slice::from_ref(&x)).unwrap()[0]
        .as_ref()
        .unwrap()
        .to_dense();
    let along = (slope * v.stop_gradient()).sum(());
    let product = gradients(&[along], &[x, v]).unwrap();
    assert_eq!(
        product[0].as_ref().unwrap().to_dense().shape().to_string(),
        "[3]"
    );
    assert!(product[1].is_none());
}

#[test]
fn a_scope_overrides_a_gradient() {
    let g = Graph::new();
    let x = scalar(&g, "x");
    let doubled = |b: &Back| Ok(vec![Some((b.dy(0) * 2.0).into())]);
    let y = g.with_gradient("Floor", doubled, || x.floor());
    let outside = x.floor();
    assert!(gradients(&[y], std::slice::from_ref(&x)).unwrap()[0].is_some());
    assert!(gradients(&[outside], &[x]).unwrap()[0].is_none());
}

#[test]
fn a_piece_brings_its_own_gradient() {
    let g = Graph::new();
    let x = scalar(&g, "x");
    let y = custom_gradient(std::slice::from_ref(&x), |x| {
        // No gradient flows through what computes the result.
        let y = x[0].round();
        (vec![y], |dy: &[Output]| Ok(vec![Some(dy[0].tanh().into())]))
    });
    let dx = gradients(&y, std::slice::from_ref(&x)).unwrap()[0]
        .as_ref()
        .unwrap()
        .to_dense();
    assert_eq!(dx.operation().op(), "Tanh");
    let y = custom_gradient(std::slice::from_ref(&x), |x| {
        (vec![x[0].exp()], |_: &[Output]| Ok(vec![]))
    });
    let error = gradients(&y, &[x]).unwrap_err();
    assert!(
        error.message.contains("1 inputs has 0 gradients"),
        "{error}"
    );
}

#[test]
fn gradients_agree_with_shapes_known_in_part() {
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [None, Some(3)]);
    let bias = g.placeholder("b", DType::Float, [3]);
    let dx = gradients(&[(&x + &bias).square().mean(())], &[x, bias]).unwrap();
    let shapes: Vec<String> = dx
        .iter()
        .map(|d| d.as_ref().unwrap().to_dense().shape().to_string())
        .collect();
    assert_eq!(shapes, ["[?,3]", "[3]"]);
}

#[test]
fn parts_of_a_matrix_of_known_size_have_gradients_of_its_size() {
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [9, 3]);
    let y = x.slice(&[0, 0], &[5, -1]).sum(()) + x.slice(&[5, 1], &[-1, 2]).sum(());
    let dx = gradients(&[y], &[x]).unwrap();
    g.check().unwrap();
    assert_eq!(
        dx[0].as_ref().unwrap().to_dense().shape().to_string(),
        "[9,3]"
    );
}
