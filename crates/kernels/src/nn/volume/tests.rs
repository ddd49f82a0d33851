//! Volumes against the definition, and against planes: a volume of depth one is an image.

use crate::testing::run_op;
use downpour_graph::AttrValue;
use downpour_tensor::{DType, Tensor};

fn numbers(dims: &[usize], seed: usize) -> Tensor {
    let n = dims.iter().product::<usize>();
    let v = (0..n).map(|i| ((i * 7 + seed) % 11) as f32 - 5.0).collect();
    Tensor::from_vec(v, dims).unwrap()
}

fn attrs(stride: i64, padding: &str) -> Vec<(&'static str, AttrValue)> {
    vec![
        ("T", DType::Float.into()),
        ("strides", vec![1, stride, stride, stride, 1].into()),
        ("padding", padding.into()),
    ]
}

fn values(t: &[Tensor]) -> Vec<f32> {
    t[0].as_slice::<f32>().unwrap().to_vec()
}

fn size(d: &[usize]) -> Tensor {
    Tensor::vector(d.iter().map(|&v| v as i32).collect())
}

#[test]
fn a_volume_of_depth_one_is_an_image() {
    for (stride, padding) in [(1, "SAME"), (2, "SAME"), (2, "VALID")] {
        let (x, f) = (numbers(&[2, 1, 7, 6, 3], 1), numbers(&[1, 3, 2, 3, 5], 2));
        let y = run_op(
            "Conv3D",
            vec![x.clone(), f.clone()],
            &attrs(stride, padding),
        )
        .unwrap();
        let plane = [
            ("T", DType::Float.into()),
            ("strides", vec![1, stride, stride, 1].into()),
            ("padding", padding.into()),
        ];
        let x2 = x.reshaped([2, 7, 6, 3]).unwrap();
        let f2 = f.reshaped([3, 2, 3, 5]).unwrap();
        let want = run_op("Conv2D", vec![x2, f2], &plane).unwrap();
        assert_eq!(values(&y), values(&want));
    }
}

/// A filter as large as what it reaches over, zero between its taps.
fn spread(f: &Tensor, rate: usize) -> Tensor {
    let d = f.dims();
    let size: Vec<usize> = d[..3].iter().map(|n| (n - 1) * rate + 1).collect();
    let row = d[3] * d[4];
    let mut wide = vec![0.0; size.iter().product::<usize>() * row];
    for (i, tap) in f.as_slice::<f32>().unwrap().chunks(row).enumerate() {
        let [z, y, x] = [i / (d[1] * d[2]), i / d[2] % d[1], i % d[2]].map(|v| v * rate);
        let at = ((z * size[1] + y) * size[2] + x) * row;
        wide[at..at + row].copy_from_slice(tap);
    }
    Tensor::from_vec(wide, [size[0], size[1], size[2], d[3], d[4]]).unwrap()
}

#[test]
fn a_dilated_filter_is_one_with_zeros_between_its_taps() {
    for (stride, rate, padding) in [(1, 2, "SAME"), (2, 2, "VALID"), (1, 3, "VALID")] {
        let (x, f) = (numbers(&[2, 9, 8, 9, 2], 1), numbers(&[2, 3, 2, 2, 3], 2));
        let mut a = attrs(stride, padding);
        let want = run_op("Conv3D", vec![x.clone(), spread(&f, rate)], &a).unwrap();
        let rate = rate as i64;
        a.push(("dilations", vec![1, rate, rate, rate, 1].into()));
        let got = run_op("Conv3D", vec![x, f], &a).unwrap();
        assert_eq!(values(&got), values(&want));
    }
}

#[test]
fn gradients_are_dual_to_the_convolution() {
    let cases = [(1, 1, "SAME"), (2, 1, "SAME"), (2, 1, "VALID")];
    let dilated = [(1, 2, "SAME"), (2, 2, "SAME"), (1, 2, "VALID")];
    for (stride, rate, padding) in cases.into_iter().chain(dilated) {
        let (xd, fd) = ([2, 5, 6, 5, 3], [2, 3, 2, 3, 4]);
        let (x, f) = (numbers(&xd, 1), numbers(&fd, 2));
        let mut a = attrs(stride, padding);
        a.push(("dilations", vec![1, rate, rate, rate, 1].into()));
        let y = run_op("Conv3D", vec![x.clone(), f.clone()], &a).unwrap();
        let dy = numbers(y[0].dims(), 3);
        let mut with_shape = a.clone();
        with_shape.push(("Tshape", DType::Int32.into()));
        let inputs = vec![size(&xd), f.clone(), dy.clone()];
        let dx = run_op("Conv3DBackpropInputV2", inputs, &with_shape).unwrap();
        let inputs = vec![x.clone(), size(&fd), dy.clone()];
        let df = run_op("Conv3DBackpropFilterV2", inputs, &a).unwrap();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let want = dot(&values(&y), dy.as_slice().unwrap());
        assert_eq!(dot(&values(&dx), x.as_slice().unwrap()), want);
        assert_eq!(dot(&values(&df), f.as_slice().unwrap()), want);
    }
}

#[test]
fn pools_over_volumes() {
    let mut a = attrs(2, "VALID");
    a.push(("ksize", vec![1i64, 2, 2, 2, 1].into()));
    let x: Vec<f32> = (0..16).map(|v| v as f32).collect();
    let x = Tensor::from_vec(x, [1, 2, 2, 4, 1]).unwrap();
    let y = run_op("MaxPool3D", vec![x.clone()], &a).unwrap();
    assert_eq!(values(&y), [13.0, 15.0]);
    let mean = run_op("AvgPool3D", vec![x.clone()], &a).unwrap();
    assert_eq!(values(&mean), [6.5, 8.5]);
    let mut both = a.clone();
    both.push(("TInput", DType::Float.into()));
    let dx = run_op(
        "MaxPool3DGrad",
        vec![x.clone(), y[0].clone(), y[0].clone()],
        &both,
    )
    .unwrap();
    let mut want = vec![0.0; 16];
    (want[13], want[15]) = (13.0, 15.0);
    assert_eq!(values(&dx), want);
    let back = run_op("MaxPool3DGradGrad", vec![x.clone(), y[0].clone(), x], &a).unwrap();
    assert_eq!(values(&back), [13.0, 15.0]);
    let dx = run_op(
        "AvgPool3DGrad",
        vec![size(&[1, 2, 2, 4, 1]), y[0].clone()],
        &a,
    )
    .unwrap();
    assert_eq!(values(&dx)[..4], [1.625, 1.625, 1.875, 1.875]);
}

#[test]
fn wrong_arguments_are_refused_in_tensorflows_words() {
    let fail = |x: &[usize], f: &[usize]| {
        let inputs = vec![numbers(x, 0), numbers(f, 0)];
        run_op("Conv3D", inputs, &attrs(1, "VALID"))
            .unwrap_err()
            .message
    };
    assert!(fail(&[3, 3, 3, 2], &[2, 2, 2, 2, 3]).starts_with("input must be 5-dimensional"));
    assert!(
        fail(&[1, 3, 3, 3, 3], &[2, 2, 2, 2, 3])
            .starts_with("Input depth must be evenly divisible by filter depth: 3 vs 2")
    );
}
