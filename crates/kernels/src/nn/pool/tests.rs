//! Pools and their gradients against TensorFlow's values, and its answers to wrong arguments.

use crate::testing::run_op;
use downpour_graph::{AttrValue, Code};
use downpour_tensor::{DType, Tensor};

fn iota(dims: &[usize]) -> Tensor {
    let n = dims.iter().product::<usize>();
    Tensor::from_vec((0..n).map(|v| (v % 7) as f32).collect(), dims).unwrap()
}

fn attrs(k: [i64; 4], s: [i64; 4], padding: &str) -> Vec<(&'static str, AttrValue)> {
    vec![
        ("T", DType::Float.into()),
        ("ksize", k.to_vec().into()),
        ("strides", s.to_vec().into()),
        ("padding", padding.into()),
    ]
}

fn values(t: &Tensor) -> &[f32] {
    t.as_slice::<f32>().unwrap()
}

const TWO: [i64; 4] = [1, 2, 2, 1];

#[test]
fn maxima_are_found_and_gradients_go_to_the_first_of_them() {
    let a = attrs(TWO, TWO, "VALID");
    let out = run_op("MaxPool", vec![iota(&[1, 4, 4, 1])], &a).unwrap();
    assert_eq!(values(&out[0]), [5.0, 6.0, 6.0, 4.0]);
    let ones = Tensor::from_vec(vec![1.0f32; 4], [1, 2, 2, 1]).unwrap();
    let y = Tensor::from_vec(vec![1.0f32], [1, 1, 1, 1]).unwrap();
    let dx = run_op("MaxPoolGrad", vec![ones, y.clone(), y], &a).unwrap();
    assert_eq!(values(&dx[0]), [1.0, 0.0, 0.0, 0.0]);
    // tf.raw_ops.MaxPoolGrad with explicit padding of one on every side.
    let mut e = attrs(TWO, TWO, "EXPLICIT");
    e.push(("explicit_paddings", vec![0, 0, 1, 1, 1, 1, 0, 0i64].into()));
    let (x, y) = (iota(&[1, 4, 4, 1]), iota(&[1, 3, 3, 1]));
    let dx = run_op("MaxPoolGrad", vec![x, y.clone(), y], &e).unwrap();
    let want = [
        0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0, 1.0,
    ];
    assert_eq!(values(&dx[0]), want);
}

#[test]
fn the_fast_path_agrees_with_the_general_one() {
    // Windows of two by two in steps of two over 6x6 take the fast path; the same input with a
    // row and a column more does not.
    let x = iota(&[2, 6, 6, 19]);
    let a = attrs(TWO, TWO, "VALID");
    let y = run_op("MaxPool", vec![x.clone()], &a).unwrap();
    let dx = run_op(
        "MaxPoolGrad",
        vec![x.clone(), y[0].clone(), y[0].clone()],
        &a,
    )
    .unwrap();
    let mut wide = Vec::new();
    for (i, row) in values(&x).chunks(6 * 19).enumerate() {
        wide.extend_from_slice(row);
        wide.extend([0.0; 19]);
        if i % 6 == 5 {
            wide.extend([0.0; 7 * 19]);
        }
    }
    let wide = Tensor::from_vec(wide, [2, 7, 7, 19]).unwrap();
    let y2 = run_op("MaxPool", vec![wide.clone()], &a).unwrap();
    assert_eq!(values(&y2[0]), values(&y[0]));
    let dx2 = run_op("MaxPoolGrad", vec![wide, y[0].clone(), y[0].clone()], &a).unwrap();
    let narrow: Vec<f32> = (0..2 * 6)
        .flat_map(|r| {
            let start = (r / 6 * 7 + r % 6) * 7 * 19;
            values(&dx2[0])[start..start + 6 * 19].to_vec()
        })
        .collect();
    assert_eq!(narrow, values(&dx[0]));
}

#[test]
fn maxima_and_gradients_agree_with_the_definition() {
    // Ties, NaN and both infinities; vectors of channels and some left over; odd sizes.
    let odd = [
        0.0,
        1.0,
        f32::NAN,
        -0.0,
        f32::INFINITY,
        1.0,
        f32::NEG_INFINITY,
        2.0,
        2.0,
    ];
    for (size, channels, padding) in [
        (6, 32, "VALID"),
        (6, 37, "SAME"),
        (4, 5, "VALID"),
        (7, 16, "SAME"),
        (7, 20, "VALID"),
    ] {
        let n = 2 * size * size * channels;
        let x: Vec<f32> = (0..n).map(|i| odd[(i * i + i / 7) % odd.len()]).collect();
        let a = attrs(TWO, TWO, padding);
        let t = Tensor::from_vec(x.clone(), [2, size, size, channels]).unwrap();
        let y = run_op("MaxPool", vec![t.clone()], &a).unwrap().remove(0);
        let out = y.dims()[1];
        let dy: Vec<f32> = (0..y.num_elements()).map(|i| i as f32 + 1.0).collect();
        let grad = Tensor::from_vec(dy.clone(), y.shape().clone()).unwrap();
        let dx = run_op("MaxPoolGrad", vec![t, y.clone(), grad], &a).unwrap();
        let mut want = vec![0.0; n];
        for (o, g) in dy.iter().enumerate() {
            let (c, pixel) = (o % channels, o / channels);
            let (ox, oy, image) = (pixel % out, pixel / out % out, pixel / out / out);
            let (mut top, mut best) = (f32::MIN, None::<usize>);
            for (wy, wx) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (iy, ix) = (2 * oy + wy, 2 * ox + wx);
                if iy >= size || ix >= size {
                    continue;
                }
                let at = ((image * size + iy) * size + ix) * channels + c;
                if x[at] > top {
                    top = x[at];
                }
                if best.is_none_or(|b| x[at] > x[b]) {
                    best = Some(at);
                }
            }
            assert_eq!(
                values(&y)[o].to_bits(),
                top.to_bits(),
                "{size} {channels} {o}"
            );
            want[best.unwrap()] += g;
        }
        assert_eq!(values(&dx[0]), want, "{size} {channels}");
    }
}

#[test]
fn odd_values_come_out_as_tensorflows() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let x = vec![
        nan, 1.0, 2.0, 3.0, 1.0, nan, 2.0, 3.0, -inf, -inf, -inf, -inf,
    ];
    let x = Tensor::from_vec(x, [3, 2, 2, 1]).unwrap();
    let a = attrs(TWO, TWO, "VALID");
    let y = run_op("MaxPool", vec![x.clone()], &a).unwrap();
    assert_eq!(values(&y[0]), [3.0, 3.0, f32::MIN]);
    let one = Tensor::from_vec(vec![1.0f32; 3], [3, 1, 1, 1]).unwrap();
    let dx = run_op("MaxPoolGrad", vec![x.clone(), one.clone(), one], &a).unwrap();
    let want = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0];
    assert_eq!(values(&dx[0]), want);
}

#[test]
fn averages_count_only_what_is_there() {
    let a = attrs(TWO, TWO, "SAME");
    let y = run_op("AvgPool", vec![iota(&[1, 3, 3, 1])], &a).unwrap();
    assert_eq!(values(&y[0]), [2.0, 3.5, 3.0, 1.0]);
    let size = Tensor::vector(vec![1i32, 3, 3, 1]);
    let dx = run_op("AvgPoolGrad", vec![size, iota(&[1, 2, 2, 1])], &a).unwrap();
    assert_eq!(
        values(&dx[0]),
        [0.0, 0.0, 0.5, 0.0, 0.0, 0.5, 1.0, 1.0, 3.0]
    );
}

#[test]
fn positions_of_maxima_count_within_an_image_or_the_batch() {
    let mut a = attrs(TWO, TWO, "VALID");
    a.push(("Targmax", DType::Int64.into()));
    let out = run_op("MaxPoolWithArgmax", vec![iota(&[2, 4, 4, 1])], &a).unwrap();
    assert_eq!(
        out[1].as_slice::<i64>().unwrap(),
        [5, 6, 13, 11, 4, 3, 9, 11]
    );
    let back = run_op(
        "MaxPoolGradWithArgmax",
        vec![iota(&[2, 4, 4, 1]), iota(&[2, 2, 2, 1]), out[1].clone()],
        &a,
    )
    .unwrap();
    assert_eq!(values(&back[0])[5..8], [0.0, 1.0, 0.0]);
    assert_eq!(values(&back[0])[16 + 3], 5.0);
    a.push(("include_batch_in_index", true.into()));
    let out = run_op("MaxPoolWithArgmax", vec![iota(&[2, 4, 4, 1])], &a).unwrap();
    assert_eq!(
        out[1].as_slice::<i64>().unwrap(),
        [5, 6, 13, 11, 20, 19, 25, 27]
    );
}

#[test]
fn wrong_arguments_are_refused_in_tensorflows_words() {
    let fail = |op: &str, x: Vec<Tensor>, a: Vec<(&'static str, AttrValue)>| {
        run_op(op, x, &a).unwrap_err()
    };
    let e = fail("MaxPool", vec![iota(&[4, 4, 1])], attrs(TWO, TWO, "VALID"));
    assert!(
        e.message
            .starts_with("tensor_in_shape must have 2 spatial dimensions. 3 0")
    );
    let e = fail(
        "MaxPool",
        vec![iota(&[1, 4, 4, 2])],
        attrs([2, 2, 2, 1], TWO, "VALID"),
    );
    assert_eq!(e.code, Code::Unimplemented);
    let e = fail(
        "MaxPoolGrad",
        vec![
            iota(&[1, 4, 4, 1]),
            iota(&[1, 3, 2, 1]),
            iota(&[1, 2, 2, 1]),
        ],
        attrs(TWO, TWO, "VALID"),
    );
    assert!(
        e.message
            .starts_with("Expected orig_output shape to be [1,2,2,1], but got [1,3,2,1]")
    );
    let out = run_op(
        "MaxPool",
        vec![iota(&[0, 4, 4, 1])],
        &attrs(TWO, TWO, "VALID"),
    )
    .unwrap();
    assert_eq!(out[0].dims(), [0, 2, 2, 1]);
}
