//! What conformance cases cannot reach: cancellation, depth, fairness, tasks.

use super::dataset::{Dataset, Got, Iter, Place};
use super::task::{Turnstile, spawn, yield_now};
use crate::testing::{device, node, run_op};
use downpour_executor::{CompileEnv, KernelCache, Plan, Step};
use downpour_graph::{AttrList, AttrValue, Code, Graph, GraphDef, Result, Status};
use downpour_runtime::{Cancellation, Device, Registry, StepEnv};
use downpour_tensor::{DType, PartialShape, Tensor};
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Attributes of an op over one component.
pub(super) fn component(dtype: DType) -> Vec<(&'static str, AttrValue)> {
    let shapes = AttrValue::List(AttrList::Shape(vec![PartialShape::unknown()]));
    vec![
        ("output_types", vec![dtype].into()),
        ("output_shapes", shapes),
    ]
}

/// A dataset op over int64s.
pub(super) fn op(name: &str, inputs: Vec<Tensor>) -> Result<Tensor> {
    let mut out = run_op(name, inputs, &component(DType::Int64))?;
    Ok(out.remove(0))
}

fn int(value: i64) -> Tensor {
    Tensor::scalar(value)
}

pub(super) fn range(stop: i64) -> Tensor {
    op("RangeDataset", vec![int(0), int(stop), int(1)]).unwrap()
}

/// Runs a future to its end on the device.
pub(super) fn block_on<T: Send + 'static>(
    device: &Arc<Device>,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let (tx, rx) = mpsc::channel();
    let _task = spawn(device, async move {
        let _ = tx.send(work.await);
    });
    rx.recv_timeout(Duration::from_secs(60))
        .expect("the future ends")
}

pub(super) fn walk(device: &Arc<Device>, dataset: &Tensor) -> Iter {
    let dataset = Dataset::from_tensor(dataset).unwrap();
    dataset.iterate(&Place::new(device, "Test")).unwrap()
}

pub(super) fn value(got: Got) -> Option<i64> {
    got.unwrap().map(|e| e[0].scalar_value::<i64>().unwrap())
}

/// All elements of a dataset of int64s.
pub(super) fn all(dataset: &Tensor) -> Vec<i64> {
    let device = device();
    let mut iter = walk(&device, dataset);
    block_on(&device, async move {
        let mut out = Vec::new();
        while let Some(v) = value(iter.next().await) {
            out.push(v);
        }
        out
    })
}

#[test]
fn a_million_elements_are_passed_over_without_recursion() {
    let skipped = op("SkipDataset", vec![range(1_000_003), int(1_000_000)]).unwrap();
    assert_eq!(all(&skipped), [1_000_000, 1_000_001, 1_000_002]);
}

#[test]
fn nothing_repeated_and_concatenated_is_found_to_be_nothing() {
    let mut empty = range(0);
    for count in [-1, 1000, -1, 3] {
        empty = op("RepeatDataset", vec![empty, int(count)]).unwrap();
        empty = op("ConcatenateDataset", vec![empty.clone(), empty]).unwrap();
    }
    assert_eq!(all(&empty), []);
}

#[test]
fn pipelines_as_deep_as_allowed_run_and_deeper_ones_are_refused() {
    let mut dataset = range(3);
    for _ in 0..1500 {
        dataset = op("TakeDataset", vec![dataset, int(-1)]).unwrap();
    }
    assert_eq!(all(&dataset), [0, 1, 2]);
    let refused = op("TakeDataset", vec![dataset, int(-1)]).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
}

#[test]
fn datasets_that_open_too_many_iterators_are_refused() {
    let mut dataset = range(1);
    let refused = (0..64).find_map(|_| {
        match op("ConcatenateDataset", vec![dataset.clone(), dataset.clone()]) {
            Ok(doubled) => {
                dataset = doubled;
                None
            }
            Err(e) => Some(e),
        }
    });
    assert_eq!(refused.unwrap().code, Code::ResourceExhausted);
}

#[test]
fn a_walk_whose_element_was_not_waited_for_goes_on() {
    let device = device();
    let stile = Arc::new(Turnstile::new(walk(&device, &range(5))));
    let inside = stile.clone();
    // Stopped between taking its turn and giving it back.
    let task = spawn(&device, async move {
        let mut turn = inside.enter().await;
        turn.next().await.unwrap();
        loop {
            yield_now().await;
        }
    });
    let waiting = stile.clone();
    let queued = spawn(&device, async move {
        waiting.enter().await;
    });
    std::thread::yield_now();
    drop(queued);
    drop(task);
    let next = block_on(&device, async move { stile.enter().await.next().await });
    assert!(value(next).is_some());
}

#[test]
fn callers_have_their_turn_in_the_order_of_their_arrival() {
    let device = device();
    let stile = Arc::new(Turnstile::new(Vec::new()));
    let first = stile.clone();
    let (go, wait) = mpsc::channel::<()>();
    let (there, arrived) = mpsc::channel();
    let mut tasks = vec![spawn(&device, async move {
        let mut turn = first.enter().await;
        there.send(()).unwrap();
        // Only in this test may a task block its thread.
        wait.recv().unwrap();
        turn.push(0);
    })];
    arrived.recv().unwrap();
    for i in 1..5 {
        let (stile, (tx, rx)) = (stile.clone(), mpsc::channel());
        tasks.push(spawn(&device, async move {
            let enter = stile.enter();
            let mut enter = std::pin::pin!(enter);
            std::future::poll_fn(|cx| {
                let polled = enter.as_mut().poll(cx);
                let _ = tx.send(());
                polled.map(|mut turn| turn.push(i))
            })
            .await;
        }));
        rx.recv().unwrap();
    }
    go.send(()).unwrap();
    let order = block_on(&device, async move {
        loop {
            let turn = stile.enter().await;
            if turn.len() == 5 {
                return turn.clone();
            }
            drop(turn);
            yield_now().await;
        }
    });
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

/// Starts a step of `nodes` and cancels it; its outcome.
pub(super) fn cancelled_step(
    nodes: Vec<downpour_graph::NodeDef>,
    args: Vec<Tensor>,
) -> Result<Vec<Tensor>> {
    let device = device();
    let mut registry = Registry::new();
    crate::register(&mut registry);
    let graph = Graph::new(GraphDef {
        nodes,
        ..Default::default()
    })
    .unwrap();
    let env = CompileEnv {
        registry: &registry,
        device: &device,
        cache: &KernelCache::default(),
        fold_constants: false,
        site: "",
        others: &[],
    };
    let plan = Plan::compile(&graph, &env).unwrap();
    let cancellation = Cancellation::new();
    let step = Arc::new(StepEnv::new(1, device.clone(), cancellation.clone()));
    let (tx, rx) = mpsc::channel();
    Step::start(plan, step, args, move |r| tx.send(r).unwrap());
    assert!(
        rx.recv_timeout(Duration::from_millis(50)).is_err(),
        "it must wait"
    );
    cancellation.cancel(Status::cancelled("by the test"));
    rx.recv_timeout(Duration::from_secs(30))
        .expect("a cancelled step ends")
}

#[test]
fn a_walk_that_never_finds_an_element_ends_with_its_step() {
    let endless = op("RepeatDataset", vec![range(10), int(-1)]).unwrap();
    let endless = op("SkipDataset", vec![endless, int(i64::MAX)]).unwrap();
    let nodes = vec![
        node(
            "d",
            "_Arg",
            &[],
            &[("T", DType::Variant.into()), ("index", 0i64.into())],
        ),
        node(
            "e",
            "DatasetToSingleElement",
            &["d"],
            &component(DType::Int64),
        ),
        node(
            "r",
            "_Retval",
            &["e"],
            &[("T", DType::Int64.into()), ("index", 0i64.into())],
        ),
    ];
    let outcome = cancelled_step(nodes, vec![endless]);
    assert_eq!(outcome.unwrap_err().code, Code::Cancelled);
}

#[test]
fn prefetching_stops_with_its_iterator() {
    let device = device();
    let endless = op("RepeatDataset", vec![range(10), int(-1)]).unwrap();
    let ahead = op("PrefetchDataset", vec![endless, int(3)]).unwrap();
    let before = Arc::strong_count(&device);
    let mut iter = walk(&device, &ahead);
    let (first, iter) = block_on(&device, async move { (value(iter.next().await), iter) });
    assert_eq!(first, Some(0));
    drop(iter);
    // The task and everything it holds are gone, at the latest when its poll returns.
    for _ in 0..10_000 {
        if Arc::strong_count(&device) == before {
            return;
        }
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_micros(100));
    }
    panic!("the task is still there");
}
