//! How often a step asks for memory, once it has run a few times: a count that does not grow with the nodes of its graph,
//! and does not creep up.
//!
//! One test in a process of its own, because it counts what the whole process does.

#![allow(unsafe_code, reason = "an allocator that counts must be one")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and shows its figures"
)]

use downpour::{Graph, Init, LocalCluster, Operation, Output, Server, ServerConfig, Session};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const STEPS: u64 = 200;

/// The fewest allocations that `step` was seen to make: other threads of the process allocate now and then.
fn allocations(mut step: impl FnMut()) -> u64 {
    for _ in 0..50 {
        step();
    }
    let one = |step: &mut dyn FnMut()| {
        let before = COUNT.load(Ordering::Relaxed);
        step();
        COUNT.load(Ordering::Relaxed) - before
    };
    let counts: Vec<u64> = (0..STEPS).map(|_| one(&mut step)).collect();
    counts.into_iter().min().unwrap()
}

/// A step that passes one value through so many nodes.
fn chain(server: &downpour::RunningServer, length: usize) -> u64 {
    let g = Graph::new();
    let x = g.variable("x").init(Init::value(1.0f32)).build();
    let mut y: Output = x.read();
    for _ in 0..length {
        y = g.op("Identity").input(&y).output();
    }
    let session = Session::new(server, &g).unwrap();
    session.run(x.initializer()).unwrap();
    let operation = y.operation();
    allocations(|| session.run(&operation).unwrap())
}

#[test]
fn a_step_asks_for_no_memory_for_its_nodes_and_little_for_itself() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let (short, long) = (chain(&server, 10), chain(&server, 1010));
    println!("a local step: {short} allocations with 10 nodes, {long} with 1010");
    // The arrays of a step grow with it, their number does not.
    assert!(long <= short + 8, "{short} and {long}");
    assert!(short <= 32, "{short}");
    // A step over two tasks: both ends are in this process, so both are counted.
    let cluster = LocalCluster::start(1, 1).unwrap();
    let (one, many) = (pull_and_push(&cluster, 1), pull_and_push(&cluster, 201));
    println!(
        "a pull and a push: {one} allocations on both tasks with one variable, {many} with 201"
    );
    assert!(one <= 150, "{one}");
    // A value that arrives needs memory of its own, on either task, and so does the signal that may go with it; the
    // lists that values travel in grow.
    assert!(many <= one + 5 * 200, "{one} and {many}");
}

/// A step that reads so many variables of a ps and changes them.
fn pull_and_push(cluster: &LocalCluster, count: usize) -> u64 {
    let g = Graph::new();
    let made = g.with_device("/job:ps/task:0", || {
        let one = |i| {
            g.variable(&format!("w{i}"))
                .init(Init::value(1.0f32))
                .build()
        };
        (0..count).map(one).collect::<Vec<_>>()
    });
    let update: Vec<Operation> = made
        .iter()
        .map(|w| {
            let step = g.with_device("/job:worker/task:0", || w.read() + 1.0);
            w.assign(&step)
        })
        .collect();
    let first: Vec<Operation> = made.iter().map(|w| w.initializer().clone()).collect();
    let (first, update) = (g.group("first", &first), g.group("update", &update));
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    session.run(&first).unwrap();
    allocations(|| session.run(&update).unwrap())
}
