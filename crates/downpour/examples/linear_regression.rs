//! A line through noisy points: the smallest distributed program. It finds the slope 3 and the
//! offset 2 to a hundredth.
//!
//! `cargo run --release --example linear_regression -- --ps 1 --workers 2 [--sync] [--json]`

use downpour::program::{Program, Report, Worker};
use downpour::train::{GradientDescent, MonitoredSession};
use downpour::{DType, Draws, Init, Operation, Output, Result};

struct Line;

struct Model {
    x: Output,
    y: Output,
    slope: Output,
    offset: Output,
    train: Operation,
    noise: Draws,
}

impl Program for Line {
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let x = g.placeholder("x", DType::Float, [None]);
        let y = g.placeholder("y", DType::Float, [None]);
        let slope = g.variable("slope").init(Init::value(0.0f32)).build();
        let offset = g.variable("offset").init(Init::value(0.0f32)).build();
        let loss = (&*slope * &x + &*offset - &y).square().mean(());
        let train = worker.minimize(&GradientDescent::new(0.1), &loss)?;
        Ok(Model {
            x,
            y,
            slope: slope.value().clone(),
            offset: offset.value().clone(),
            train,
            noise: Draws::new(worker.index() as u64),
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        let mut noise = || m.noise.uniform() - 0.5;
        let x: Vec<f32> = (0..32).map(|_| 2.0 * noise()).collect();
        let y: Vec<f32> = x.iter().map(|x| 3.0 * x + 2.0 + 0.1 * noise()).collect();
        let step = session.step().feed(&m.x, x).feed(&m.y, y);
        step.target(&m.train).run()
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let [slope, offset] = session.raw()?.step().fetch_all([&m.slope, &m.offset])?;
        Ok(Report::from([
            ("slope".to_owned(), slope.scalar_value::<f32>()?.into()),
            ("offset".to_owned(), offset.scalar_value::<f32>()?.into()),
        ]))
    }
}

fn main() -> std::process::ExitCode {
    downpour::program::main(|| Ok(Line))
}
