//! Layers split over tasks and pipelines through them, against the same layers on one task: values
//! and gradients from the same first values.

use downpour::layers::{
    ColumnDense, Dense, LocallyConnected2D, RowDense, Sharded, SplitConv2D,
    SplitLocallyConnected2D, Window,
};
use downpour::losses::sparse_softmax_cross_entropy;
use downpour::train::{GradientDescent, Minimize};
use downpour::{
    DType, Draws, Graph, Init, LocalCluster, ModelPartitions, Output, Padding, PartitionedVariable,
    Pipeline, Session, Tensor, Variable, gradients,
};

const TASKS: usize = 3;

fn tasks() -> ModelPartitions {
    ModelPartitions::new((0..TASKS).map(|t| format!("/job:worker/task:{t}"))).unwrap()
}

/// Numbers between -1 and 1 that follow from the seed.
fn numbers(shape: &[usize], seed: u64) -> Tensor {
    let mut draws = Draws::new(seed);
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|_| draws.below(2001) as f32 / 1000.0 - 1.0)
        .collect();
    Tensor::from_vec(values, shape).unwrap()
}

fn same(what: &str, a: &Tensor, b: &Tensor) {
    assert_eq!(a.dims(), b.dims(), "{what}");
    let pairs = a
        .as_slice::<f32>()
        .unwrap()
        .iter()
        .zip(b.as_slice::<f32>().unwrap());
    for (i, (a, b)) in pairs.enumerate() {
        assert!(
            (a - b).abs() <= 1e-5 * (1.0 + a.abs()),
            "{what}: {a}, {b} at {i}"
        );
    }
}

/// A gradient, whole.
enum Of<'a> {
    Output(&'a Output),
    Variable(&'a Variable),
    Parts(&'a PartitionedVariable),
}

/// The gradients of a weighted sum of `y`.
fn derived(g: &Graph, y: &Output, of: &[Of<'_>]) -> Vec<Output> {
    let weights = g.constant(numbers(y.shape().to_shape().unwrap().dims(), 99));
    let loss = (y * &weights).sum(());
    let mut handles = Vec::new();
    for of in of {
        match of {
            Of::Output(x) => handles.push((*x).clone()),
            Of::Variable(v) => handles.push(v.handle().clone()),
            Of::Parts(v) => handles.extend(v.parts().iter().map(|p| p.handle().clone())),
        }
    }
    let mut found = gradients(&[loss], &handles).unwrap().into_iter();
    let mut next = || found.next().unwrap().unwrap().to_dense();
    of.iter()
        .map(|of| match of {
            Of::Parts(v) => {
                let parts: Vec<Output> = v.parts().iter().map(|_| next()).collect();
                downpour::concat(&parts, v.axis() as i32)
            }
            _ => next(),
        })
        .collect()
}

/// Compares values and gradients of two ways to compute the same.
fn compare(g: &Graph, whole: (&Output, &[Of<'_>]), split: (&Output, &[Of<'_>])) {
    let cluster = LocalCluster::start(0, TASKS).unwrap();
    let mut wanted = vec![whole.0.clone()];
    let mut got = vec![split.0.clone()];
    // What is whole lies on one task.
    g.place_gradients_beside(false);
    wanted.extend(derived(g, whole.0, whole.1));
    g.place_gradients_beside(true);
    got.extend(derived(g, split.0, split.1));
    let init = g.initialize_variables();
    let session = Session::new(&cluster.workers()[0], g).unwrap();
    session.run(&init).unwrap();
    let wanted = session.step().fetch_list(&wanted).unwrap();
    let got = session.step().fetch_list(&got).unwrap();
    for (i, (a, b)) in wanted.iter().zip(&got).enumerate() {
        same(if i == 0 { "value" } else { "gradient" }, a, b);
    }
}

#[test]
fn dense_layers_split_by_columns_and_rows_are_the_whole_ones() {
    let (g, tasks) = (Graph::new(), tasks());
    let x = g.constant(numbers(&[4, 5], 1));
    let (k1, k2) = (numbers(&[5, 8], 2), numbers(&[8, 2], 3));
    let whole = [
        Dense::with_init(&g, "a", 5, 8, Init::value(k1.clone())),
        Dense::with_init(&g, "b", 8, 2, Init::value(k2.clone())),
    ];
    let y = whole[1].apply(&whole[0].apply(&x).relu());
    let columns = ColumnDense::with_init(&g, "c", 5, 8, Init::value(k1), &tasks);
    let rows = RowDense::with_init(&g, "d", 8, 2, Init::value(k2), &tasks);
    let split = rows.apply(&columns.apply(&x).map(|h| h.relu()));
    // 8 columns over 3 tasks: the first have one more.
    assert_eq!(columns.kernel.parts()[2].shape().to_string(), "[5,2]");
    let at = |v: &Variable| v.handle().operation().device();
    assert_eq!(at(&columns.bias.parts()[2]), "/job:worker/task:2");
    let bias = whole[0].bias.as_ref().unwrap();
    compare(
        &g,
        (
            &y,
            &[
                Of::Output(&x),
                Of::Variable(&whole[0].kernel),
                Of::Variable(bias),
                Of::Variable(&whole[1].kernel),
            ],
        ),
        (
            &split,
            &[
                Of::Output(&x),
                Of::Parts(&columns.kernel),
                Of::Parts(&columns.bias),
                Of::Parts(&rows.kernel),
            ],
        ),
    );
}

#[test]
fn convolutions_split_by_channels_are_the_whole_ones() {
    let (g, tasks) = (Graph::new(), tasks());
    let images = g.constant(numbers(&[2, 6, 6, 2], 1));
    let kernel = numbers(&[3, 3, 2, 7], 2);
    let whole = g
        .variable("whole")
        .init(Init::value(kernel.clone()))
        .build();
    let bias = g.variable("bias").shape([7]).init(Init::zeros()).build();
    let y = images.conv2d(&whole, 1, Padding::Same).bias_add(&bias);
    let split = SplitConv2D::with_init(&g, "split", [3, 3, 2, 7], Init::value(kernel), &tasks);
    let z = split.apply(&images).join();
    compare(
        &g,
        (
            &y,
            &[
                Of::Output(&images),
                Of::Variable(&whole),
                Of::Variable(&bias),
            ],
        ),
        (
            &z,
            &[
                Of::Output(&images),
                Of::Parts(&split.kernel),
                Of::Parts(&split.bias),
            ],
        ),
    );
}

#[test]
fn locally_connected_layers_split_by_region_exchange_halos() {
    for window in [
        Window::new([7, 6], 2, 3, 4).same(),
        Window::new([7, 6], 2, 3, 4),
        Window::new([7, 6], 2, 2, 4).stride(2).same(),
    ] {
        let (g, tasks) = (Graph::new(), tasks());
        let images = g.constant(numbers(&[2, 7, 6, 2], 1));
        let [height, width, _] = window.result();
        let next = Window::new([height, width], 4, 2, 3).same();
        let shape = |w: &Window| {
            let [h, v, outputs] = w.result();
            [h, v, w.size * w.size * w.inputs, outputs]
        };
        let (k1, k2) = (numbers(&shape(&window), 2), numbers(&shape(&next), 3));
        let a = LocallyConnected2D::with_init(&g, "a", window, Init::value(k1.clone()));
        let b = LocallyConnected2D::with_init(&g, "b", next, Init::value(k2.clone()));
        let y = b.apply(&a.apply(&images).relu());
        let c = SplitLocallyConnected2D::with_init(&g, "c", window, Init::value(k1), &tasks);
        let d = SplitLocallyConnected2D::with_init(&g, "d", next, Init::value(k2), &tasks);
        let z = d
            .apply_to_parts(&c.apply(&images).map(|part| part.relu()))
            .join();
        compare(
            &g,
            (
                &y,
                &[
                    Of::Output(&images),
                    Of::Variable(&a.kernel),
                    Of::Variable(&a.bias),
                    Of::Variable(&b.kernel),
                ],
            ),
            (
                &z,
                &[
                    Of::Output(&images),
                    Of::Parts(&c.kernel),
                    Of::Parts(&c.bias),
                    Of::Parts(&d.kernel),
                ],
            ),
        );
    }
}

#[test]
fn equal_kernels_everywhere_make_a_convolution() {
    let g = Graph::new();
    let images = g.constant(numbers(&[2, 7, 6, 2], 1));
    let filter = numbers(&[3, 3, 2, 4], 2);
    let window = Window::new([7, 6], 2, 3, 4).stride(2).same();
    let [height, width, _] = window.result();
    let one = filter.clone().reshaped([18, 4]).unwrap();
    let all = one.as_slice::<f32>().unwrap().repeat(height * width);
    let all = Tensor::from_vec(all, [height, width, 18, 4]).unwrap();
    let local = LocallyConnected2D::with_init(&g, "local", window, Init::value(all));
    let y = images.conv2d(&g.constant(filter), 2, Padding::Same);
    let z = local.apply(&images);
    compare(
        &g,
        (&y, &[Of::Output(&images)]),
        (&z, &[Of::Output(&images)]),
    );
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let (g, tasks) = (Graph::new(), tasks());
    let x = g.placeholder("x", DType::Float, [None, Some(9)]);
    let rows = RowDense::new(&g, "rows", 8, 2, &tasks);
    rows.apply(&Sharded::split(&x, 1, &tasks));
    let error = g.check().unwrap_err();
    let text = "'rows/kernel' takes columns in parts of [3, 3, 2], not parts of [3, 3, 3]";
    assert!(error.message.contains(text), "{error}");
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [None, Some(9)]);
    Sharded::split(&x, 0, &tasks);
    let error = g.check().unwrap_err();
    assert!(error.message.contains("its length is not known"), "{error}");
}

#[test]
fn a_pipeline_of_small_parts_learns_what_the_batch_teaches() {
    let cluster = LocalCluster::start(0, TASKS).unwrap();
    let (images, labels) = (
        numbers(&[12, 6], 1),
        Tensor::vector([0i32, 1, 2, 1].repeat(3)),
    );
    let trained = |parts: usize| {
        let (g, tasks) = (Graph::new(), tasks());
        let x = g.placeholder("x", DType::Float, [None, Some(6)]);
        let y = g.placeholder("y", DType::Int32, [None]);
        let layer = |k: usize, inputs: usize, outputs: usize| {
            let init = Init::value(numbers(&[inputs, outputs], k as u64));
            tasks.on(&g, k, || {
                Dense::with_init(&g, "layer", inputs, outputs, init)
            })
        };
        let (a, b, c) = (layer(0, 6, 8), layer(1, 8, 8), layer(2, 8, 3));
        let pipeline = Pipeline::new(&tasks, parts)
            .stage(|x| a.apply(x).tanh())
            .stage(|x| b.apply(x).tanh())
            .stage(|x| c.apply(x));
        let loss = pipeline.mean_loss(&x, &y, sparse_softmax_cross_entropy);
        let train = GradientDescent::new(0.5).minimize(&loss, None).unwrap();
        let options = downpour::SessionOptions::new().isolated(true);
        let session = options.open(&cluster.workers()[0], &g).unwrap();
        session.run(&g.initialize_variables()).unwrap();
        for _ in 0..3 {
            let step = session
                .step()
                .feed(&x, images.clone())
                .feed(&y, labels.clone());
            step.target(&train).run().unwrap();
        }
        let values: Vec<Output> = g.variables().iter().map(|v| v.value().clone()).collect();
        let values = session.step().fetch_list(&values).unwrap();
        let uneven = session.step().feed(&x, numbers(&[5, 6], 1));
        let uneven = uneven.feed(&y, vec![0i32; 5]).target(&train).run();
        assert_eq!(uneven.is_err(), parts > 1);
        values
    };
    let (whole, cut) = (trained(1), trained(4));
    assert_eq!(whole.len(), 6);
    for (a, b) in whole.iter().zip(&cut) {
        same("variable", a, b);
    }
}
