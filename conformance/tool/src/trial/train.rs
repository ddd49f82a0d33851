//! Linear regression, the model of `fault_client.py`: every step is written down with its time.

use anyhow::{Result, anyhow};
use downpour::program::{self, Args, Program, Worker};
use downpour::train::{GradientDescent, MonitoredSession};
use downpour::{DType, Init, Operation, Output};
use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Between steps, as in `fault_client.py`.
const PAUSE: Duration = Duration::from_millis(20);

struct Line {
    trace: File,
}

struct Model {
    x: Output,
    step: Output,
    train: Operation,
}

impl Program for Line {
    type Model = Model;

    fn build(&self, worker: &Worker) -> downpour::Result<Model> {
        let g = worker.graph();
        let x = g.placeholder("x", DType::Float, [Some(50)]);
        let w = g.variable("w").init(Init::value(vec![1.0f32])).build();
        let b = g.variable("b").init(Init::value(vec![0.0f32])).build();
        let loss = (&*w * &x + &*b - (&x * 0.1 + 0.3)).square().mean(());
        Ok(Model {
            train: worker.minimize(&GradientDescent::new(0.05), &loss)?,
            step: worker.global_step().value().clone(),
            x,
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> downpour::Result<()> {
        let x: Vec<f32> = (0..50).map(|i| i as f32 / 50.0).collect();
        let step = session.step().feed(&m.x, x).target(&m.train);
        let step = step.fetch(&m.step)?.scalar_value::<i64>()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let line = format!(
            "{{\"t\": {:.4}, \"step\": {step}}}\n",
            now.unwrap_or_default().as_secs_f64()
        );
        // A trace that cannot be written is missed by its reader.
        let _ = (&self.trace).write_all(line.as_bytes());
        std::thread::sleep(PAUSE);
        Ok(())
    }
}

pub(crate) fn run(trace: &str, flags: impl Iterator<Item = String>) -> Result<()> {
    program::log_to_stderr();
    let args = Args::parse(flags, None).map_err(|e| anyhow!(e))?;
    let trace = File::options().append(true).create(true).open(trace)?;
    program::run(&Line { trace }, &args.options)?;
    Ok(())
}
