//! Resizing against TensorFlow's values.

use crate::testing::run_op;
use downpour_graph::{AttrValue, Code};
use downpour_tensor::{DType, Tensor};

fn iota(dims: &[usize]) -> Tensor {
    let n = dims.iter().product::<usize>();
    Tensor::from_vec((0..n).map(|v| (v % 7) as f32).collect(), dims).unwrap()
}

fn size(h: i32, w: i32) -> Tensor {
    Tensor::vector(vec![h, w])
}

fn flags(names: &[&'static str]) -> Vec<(&'static str, AttrValue)> {
    let mut a = vec![("T", DType::Float.into())];
    a.extend(names.iter().map(|n| (*n, true.into())));
    a
}

fn run(op: &str, inputs: Vec<Tensor>, names: &[&'static str]) -> Vec<f32> {
    let out = run_op(op, inputs, &flags(names)).unwrap();
    out[0].as_slice::<f32>().unwrap().to_vec()
}

fn close(got: Vec<f32>, want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{got:?}");
    let near = |(g, w): (&f32, &f32)| (g - w).abs() < 1e-5;
    assert!(got.iter().zip(want).all(near), "{got:?} {want:?}");
}

#[test]
fn bilinear_in_each_mapping() {
    let x = || vec![iota(&[1, 2, 3, 1]), size(3, 2)];
    close(
        run("ResizeBilinear", x(), &[]),
        &[0.0, 1.5, 2.0, 3.5, 3.0, 4.5],
    );
    let want = [0.0, 2.0, 1.5, 3.5, 3.0, 5.0];
    close(run("ResizeBilinear", x(), &["align_corners"]), &want);
    let x = vec![iota(&[1, 2, 3, 1]), size(3, 5)];
    let got = run("ResizeBilinear", x, &["half_pixel_centers"]);
    close(got[..6].to_vec(), &[0.0, 0.4, 1.0, 1.6, 2.0, 1.5]);
    let dy = vec![iota(&[1, 3, 5, 1]), iota(&[1, 2, 3, 1])];
    let want = [4.9, 5.0, 7.1, 9.7, 10.4, 4.9];
    close(
        run("ResizeBilinearGrad", dy, &["half_pixel_centers"]),
        &want,
    );
}

#[test]
fn nearest_in_each_mapping() {
    let x = || vec![iota(&[1, 2, 3, 1]), size(3, 2)];
    close(
        run("ResizeNearestNeighbor", x(), &[]),
        &[0.0, 1.0, 0.0, 1.0, 3.0, 4.0],
    );
    let want = [0.0, 2.0, 3.0, 5.0, 3.0, 5.0];
    close(run("ResizeNearestNeighbor", x(), &["align_corners"]), &want);
    let dy = || vec![iota(&[1, 3, 5, 1]), size(2, 3)];
    let want = [12.0, 6.0, 6.0, 7.0, 11.0, 0.0];
    close(run("ResizeNearestNeighborGrad", dy(), &[]), &want);
    let want = [1.0, 2.0, 7.0, 18.0, 5.0, 9.0];
    close(
        run("ResizeNearestNeighborGrad", dy(), &["half_pixel_centers"]),
        &want,
    );
}

#[test]
fn bicubic_and_area() {
    let x = || vec![iota(&[1, 2, 3, 1]), size(3, 2)];
    let want = [0.0, 1.59375, 2.0566134, 3.6503637, 3.333333, 4.9270835];
    close(run("ResizeBicubic", x(), &[]), &want);
    let wide = vec![iota(&[1, 2, 3, 1]), size(3, 5)];
    let got = run("ResizeBicubic", wide, &["half_pixel_centers"]);
    let want = [
        -0.27319205,
        0.10869662,
        0.8023334,
        1.4959702,
        1.8778589,
        1.4244744,
    ];
    close(got[..6].to_vec(), &want);
    let dy = vec![iota(&[1, 3, 5, 1]), iota(&[1, 2, 3, 1])];
    let want = [
        1.9852703, 3.1164284, 7.300773, 9.374762, 12.591944, 7.6308236,
    ];
    close(run("ResizeBicubicGrad", dy, &[]), &want);
    let want = [
        0.33333334, 1.6666667, 1.8333335, 3.1666667, 3.333333, 4.6666665,
    ];
    close(run("ResizeArea", x(), &[]), &want);
    let want = [0.5, 2.0, 0.5, 2.0, 3.5, 5.0];
    close(run("ResizeArea", x(), &["align_corners"]), &want);
}

#[test]
fn crops_and_their_gradients() {
    let image = (0..40).map(|v| (v % 11) as f32).collect();
    let image = Tensor::from_vec(image, [2, 4, 5, 1]).unwrap();
    let boxes = vec![
        0.0f32, 0.0, 1.0, 1.0, 0.1, 0.2, 0.7, 0.9, -0.5, 0.0, 0.5, 1.2,
    ];
    let boxes = Tensor::from_vec(boxes, [3, 4]).unwrap();
    let index = Tensor::vector(vec![0i32, 1, 1]);
    let inputs = vec![image.clone(), boxes.clone(), index.clone(), size(2, 3)];
    let want = [
        0.0, 2.0, 4.0, 4.0, 6.0, 8.0, 8.0, 1.7, 3.1, 8.200001, 7.62, 1.0999994, 0.0, 0.0, 0.0, 5.5,
        5.7, 0.0,
    ];
    close(run("CropAndResize", inputs, &[]), &want);
    let dy = (0..18).map(|v| (v % 5) as f32).collect();
    let dy = Tensor::from_vec(dy, [3, 2, 3, 1]).unwrap();
    let inputs = vec![dy.clone(), image.clone(), boxes.clone(), index.clone()];
    let got = run("CropAndResizeGradBoxes", inputs, &[]);
    let want = [
        0.0, 0.0, 0.0, 0.0, 57.0, 24.0, -57.0, 20.0, 0.0, -9.0, 1.8, -9.0,
    ];
    assert!(
        got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-4),
        "{got:?}"
    );
    let inputs = vec![
        dy,
        boxes.clone(),
        index,
        Tensor::vector(vec![2i32, 4, 5, 1]),
    ];
    let got = run("CropAndResizeGradImage", inputs, &[]);
    close(got[..5].to_vec(), &[0.0, 0.0, 1.0, 0.0, 2.0]);
    close(got[20..23].to_vec(), &[0.13999999, 0.56, 1.1199999]);
    let far = Tensor::vector(vec![0i32, 1, 2]);
    let e = run_op(
        "CropAndResize",
        vec![image, boxes, far, size(2, 3)],
        &flags(&[]),
    );
    assert_eq!(e.unwrap_err().code, Code::OutOfRange);
}

#[test]
fn wrong_sizes_are_refused_in_tensorflows_words() {
    let fail = |x: Vec<Tensor>| {
        run_op("ResizeBilinear", x, &flags(&[]))
            .unwrap_err()
            .message
    };
    let starts = |m: String, s: &str| assert!(m.starts_with(s), "{m}");
    starts(
        fail(vec![iota(&[2, 3, 1]), size(3, 2)]),
        "input must be 4-dimensional[2,3,1]",
    );
    starts(
        fail(vec![iota(&[1, 2, 3, 1]), size(3, 0)]),
        "output dimensions must be positive",
    );
    starts(
        fail(vec![iota(&[1, 0, 3, 1]), size(3, 2)]),
        "input image must be of non-zero size",
    );
    let both = flags(&["align_corners", "half_pixel_centers"]);
    let e = run_op(
        "ResizeBilinear",
        vec![iota(&[1, 2, 3, 1]), size(3, 2)],
        &both,
    );
    starts(
        e.unwrap_err().message,
        "If half_pixel_centers is True, align_corners must be False.",
    );
}
