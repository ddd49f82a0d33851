//! What splitting a wide layer costs and gives: training steps of two dense layers, 1024 wide at the
//! ends and 4096 in between, on one task and split over two and over four. Only the batch goes out
//! and only sums come back, so that what travels does not grow with the width: at most 3 MB a step
//! for each task beyond the first, where the weights alone have 33 MB.
//!
//! `cargo run --release --example wide_layer [-- --steps N]`

use downpour::layers::{ColumnDense, RowDense};
use downpour::program::Args;
use downpour::train::{GradientDescent, Minimize};
use downpour::{
    DType, Draws, Graph, Init, LocalCluster, ModelPartitions, Result, Session, Tensor, inspect_task,
};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const ENDS: usize = 1024;
const WIDTH: usize = 4096;
const BATCH: usize = 128;

/// Steps that are measured, unless the command line says.
const STEPS: i64 = 10;

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program's main"
)]
fn main() -> ExitCode {
    let options = downpour::program::Options {
        steps: STEPS,
        ..Default::default()
    };
    let args = match Args::parse_over(options, std::env::args().skip(1), None) {
        Ok(args) => args,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(2);
        }
    };
    match measure(args.options.steps.max(1)) {
        Ok(report) => {
            println!("{{{}}}", report.join(","));
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn measure(steps: i64) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut report = Vec::new();
    let mut losses = Vec::new();
    for tasks in [1, 2, 4] {
        let (millis, bytes, loss) = train(tasks, steps)?;
        report.push(format!("\"ms_{tasks}\":{millis:.2}"));
        report.push(format!("\"kb_{tasks}\":{:.1}", bytes / 1e3));
        if !loss.is_finite() {
            return Err(format!("the loss on {tasks} tasks is {loss}").into());
        }
        losses.push(loss);
    }
    // Sums of fewer terms first: the same but for rounding.
    let apart = losses.iter().map(|l| (l - losses[0]).abs() / losses[0]);
    let apart = apart.fold(0.0f32, f32::max);
    report.push(format!("\"loss\":{},\"loss_apart\":{apart:e}", losses[0]));
    Ok(report)
}

/// Milliseconds and bytes of a step, and the loss after some.
fn train(tasks: usize, steps: i64) -> Result<(f64, f64, f32), Box<dyn std::error::Error>> {
    let cluster = LocalCluster::start(0, tasks)?;
    let names = (0..tasks).map(|task| format!("/job:worker/task:{task}"));
    let partitions = ModelPartitions::new(names)?;
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [BATCH, ENDS]);
    let (train, loss) = g.with_device("/job:worker/task:0", || {
        let init = |seed, shape: [usize; 2]| {
            let values = numbers(ENDS * WIDTH, seed, 0.02).reshaped(shape);
            values.map(Init::value)
        };
        let (a, b) = (init(1, [ENDS, WIDTH])?, init(2, [WIDTH, ENDS])?);
        let first = ColumnDense::with_init(&g, "first", ENDS, WIDTH, a, &partitions);
        let second = RowDense::with_init(&g, "second", WIDTH, ENDS, b, &partitions);
        let y = second.apply(&first.apply(&x).map(|h| h.relu()));
        let loss = (y - &x).square().mean(());
        let train = GradientDescent::new(0.5).minimize(&loss, None)?;
        Ok::<_, Box<dyn std::error::Error>>((train, loss))
    })?;
    let init = g.initialize_variables();
    let session = Session::new(&cluster.workers()[0], &g)?;
    session.run(&init)?;
    let batch = numbers(BATCH * ENDS, 3, 1.0).reshaped([BATCH, ENDS])?;
    let step = || session.step().feed(&x, batch.clone()).target(&train).run();
    // The first one also prepares.
    step()?;
    let before = received(&cluster)?;
    let begin = Instant::now();
    for _ in 0..steps {
        step()?;
    }
    let millis = begin.elapsed().as_secs_f64() * 1e3 / steps as f64;
    let bytes = (received(&cluster)? - before) as f64 / steps as f64;
    let loss = session.step().feed(&x, batch.clone()).fetch(&loss)?;
    Ok((millis, bytes, loss.scalar_value::<f32>()?))
}

/// Numbers around zero that follow from the seed.
fn numbers(count: usize, seed: u64, scale: f32) -> Tensor {
    let mut draws = Draws::new(seed);
    Tensor::vector(
        (0..count)
            .map(|_| (draws.uniform() - 0.5) * scale)
            .collect(),
    )
}

/// Bytes that the tasks have got from each other so far.
fn received(cluster: &LocalCluster) -> Result<u64, Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Runtime::new()?;
    let mut total = 0;
    for worker in cluster.workers() {
        let address = worker.address().to_string();
        let report = runtime.block_on(inspect_task(&address, Duration::from_secs(30)));
        let report = report.map_err(|e| format!("{address}: {e}"))?;
        total += report.peers.iter().map(|p| p.bytes_received).sum::<u64>();
    }
    Ok(total)
}
