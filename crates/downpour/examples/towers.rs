//! In-graph replication: one client builds a tower of the model for each worker, averages their
//! gradients in the graph and updates the parameters once for all: 91 % of the test images.
//!
//! `cargo run --release --example towers -- --ps 2 --workers 2 [--json]`

use downpour::losses::sparse_softmax_cross_entropy;
use downpour::mnist::{Digits, Mnist, PIXELS};
use downpour::program::Args;
use downpour::train::{GradientDescent, Minimize, global_step};
use downpour::{Gradient, Graph, Init, LocalCluster, Output, Result, Session, gradients};
use std::process::ExitCode;

struct Tower {
    digits: Digits,
    gradients: Vec<Output>,
}

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program's main"
)]
fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1), None) {
        Ok(args) => args,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(2);
        }
    };
    let options = &args.options;
    match train(options.ps.max(1), options.workers.max(1), options.steps) {
        Ok(accuracy) => {
            println!(
                "{{\"steps\":{},\"test_accuracy\":{accuracy}}}",
                options.steps
            );
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn train(ps: usize, workers: usize, steps: i64) -> Result<f64, Box<dyn std::error::Error>> {
    let data = Mnist::shipped()?;
    let cluster = LocalCluster::start(ps, workers)?;
    let g = Graph::new();
    let step = g.with_device("/job:ps/task:0", || global_step(&g));
    let weights = g.with_device("/job:ps/task:0", || {
        g.variable("weights")
            .shape([PIXELS, 10])
            .init(Init::zeros())
            .build()
    });
    let bias = g.with_device(&format!("/job:ps/task:{}", ps - 1), || {
        g.variable("bias").shape([10]).init(Init::zeros()).build()
    });
    let logits = |images: &Output| images.matmul(&weights).bias_add(&bias);
    let tower = |worker: usize| -> Result<Tower> {
        g.with_device(&format!("/job:worker/task:{worker}"), || {
            g.with_scope(&format!("tower_{worker}"), || {
                let digits = Digits::placeholders(&g);
                let loss = sparse_softmax_cross_entropy(&digits.labels, &logits(&digits.images));
                let xs = [weights.handle().clone(), bias.handle().clone()];
                let found = gradients(&[loss], &xs)?;
                let dense = found.iter().flatten().map(Gradient::to_dense);
                Ok(Tower {
                    digits,
                    gradients: dense.collect(),
                })
            })
        })
    };
    let towers: Vec<Tower> = (0..workers).map(tower).collect::<Result<_>>()?;
    let mean = |i: usize| {
        let parts: Vec<Output> = towers.iter().map(|t| t.gradients[i].clone()).collect();
        downpour::stack(&parts, 0).mean(0)
    };
    let pairs = [
        (Gradient::Dense(mean(0)), weights.clone()),
        (Gradient::Dense(mean(1)), bias.clone()),
    ];
    let train = GradientDescent::new(0.5).apply_gradients(&pairs, Some(&step))?;
    let init = g.initialize_variables();
    let session = Session::new(&cluster.workers()[0], &g)?;
    session.run(&init)?;
    let mut batches = data.train.batches(100, 1);
    for _ in 0..steps {
        let mut step = session.step().target(&train);
        for tower in &towers {
            let (images, labels) = batches.next_batch();
            step = step.feed(&tower.digits.images, images);
            step = step.feed(&tower.digits.labels, labels);
        }
        step.run()?;
    }
    let first = towers[0].digits.clone();
    let guesses = logits(&first.images);
    Ok(first.classifier(&guesses).accuracy(&session, &data.test)?)
}
